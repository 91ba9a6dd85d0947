"""How a copy of the supervisor becomes a command."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from typing import Any

from moonmill.sandboxes.inside.files import DOABLE
from moonmill.sandboxes.inside.frames import ERRNO
from moonmill.sandboxes.inside.processes import PR_SET_DUMPABLE, prctl

_LONGEST_TEXT = 2000
MOST_DESCRIPTORS = 4096


def become(call: dict[str, Any], setup: dict[str, Any], pipes: Sequence[int], note: int) -> None:
    """Turn this process into what `call` says. Does not return.

    Args:
        call: as in the frame START.
        setup: as in the frame SETUP.
        pipes: stdin, stdout and stderr.
        note: where it is told why it could not be. It is closed by the start of a program.
    """
    stage = "sandbox"
    try:
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):  # also those that whoever started us in the background had ignored
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass
        os.setsid()
        for fd, pipe in enumerate(pipes):
            if pipe >= 0:
                os.dup2(pipe, fd)
        # From here on others of the same user may get at this process: it has nothing left by which to speak for us.
        os.closerange(3, note)
        os.closerange(note + 1, MOST_DESCRIPTORS)
        _limit(setup, is_command="argv" in call)
        stage = "user"
        _take_identity(setup["user"] if call["user"] is None else call["user"])
        stage = "cwd"
        os.chdir(call["cwd"])
        if "do" in call:
            stage = "file"
            DOABLE[call["do"]](*call["args"])
            os._exit(0)
        stage = "program"
        _run(call["argv"], {**setup["env"], **call["env"]})
    except OSError as e:
        _refuse(note, stage, e.errno or 0, e.strerror or str(e))
    except BaseException as e:
        _refuse(note, stage, 0, type(e).__name__ + ": " + str(e))
    finally:
        os._exit(127)


def _run(argv: list[bytes], env: dict[str, str]) -> None:
    """Become a program. `os.execvpe` does the same, but imports `warnings` for it, which takes longer than the rest."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    found: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).encode().split(b":"):
        try:
            os.execve(os.path.join(folder or b".", argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as e:  # there may be another that can be run
            found = e
    raise found


def _refuse(note: int, stage: str, number: int, why: str) -> None:
    text = (stage + "\0" + why[:_LONGEST_TEXT]).encode("utf-8", "replace")
    os.write(note, ERRNO.pack(number) + text)


def _limit(setup: dict[str, Any], is_command: bool) -> None:
    import resource

    if is_command:
        if setup["hide"]:
            prctl(PR_SET_DUMPABLE, 1)  # else the next file is not ours
        with open("/proc/self/oom_score_adj", "wb") as file:  # rather this than the supervisor
            file.write(b"1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, most in setup["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))


def _take_identity(user: str | None) -> None:
    """Run as `user`: a name, a number, or None for whoever this is."""
    if user is None:
        return
    import pwd

    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        uid, gid = entry.pw_uid, entry.pw_gid
    except KeyError:
        if not user.isdigit():
            raise OSError(errno.ENOENT, "no such user") from None
        uid = gid = int(user)
    if uid == os.getuid():
        return
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
