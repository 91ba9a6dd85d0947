"""Python environments of their own, for programs that cannot live in ours: made step by step, begun anew where that was
interrupted.

What always holds: a marker is written when the last step was done and not before, so what counts as installed works;
two installations into one folder do not meet; nothing is installed into our own environment.
"""

import fcntl
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from moonmill.errors import ConfigError, MoonmillError

T = TypeVar("T")
_GIB = 1 << 30
_LOOK_SECONDS = 30.0
_LAST_WORDS = 12
_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")
_INSTALL_OPTIONS = ("--progress-bar", "off", "--no-compile")
_NO_NETWORK = ("NewConnectionError", "NameResolutionError", "Temporary failure in name resolution", "ConnectTimeout")

Say = Callable[[str], None]
"""Takes a line for people."""


class InstallError(MoonmillError):
    """An environment could not be made."""


class Step(Struct, frozen=True):
    """One program to run."""

    text: str
    argv: tuple[str, ...]


class Guest(Struct, frozen=True):
    """What is to live in an environment of its own."""

    name: str
    command: str
    """Of ours, which installs it."""
    marker: str
    """The file's name."""
    requirement: str
    gib: float
    """Space on disk that it takes."""
    pythons: tuple[tuple[int, int], tuple[int, int]]
    """The first and the last that it is installed with."""


def cache_folder(*inside: str) -> Path:
    """A folder in the user's cache, which `XDG_CACHE_HOME` can move."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "moonmill", *inside)


def without_ours(environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """An environment in which another interpreter finds its own packages, and keeps what it has compiled of them."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in environ.items() if name not in ours}


def interpreter_in(folder: Path) -> Path:
    """The interpreter of the environment in `folder`."""
    return folder / "bin" / "python"


def making(folder: Path, python: str) -> Step:
    """Makes an empty environment, whatever is in `folder` now."""
    return Step(f"making an environment in {folder}", (python, "-m", "venv", "--clear", str(folder)))


def installing(folder: Path, *requirements: str) -> Step:
    """Installs packages into it."""
    # What is imported is compiled then; compiling all of it would take longer than the rest.
    argv = (str(interpreter_in(folder)), "-m", "pip", *_PIP_OPTIONS, "install", *_INSTALL_OPTIONS, *requirements)
    return Step(f"installing {' '.join(requirements)}", argv)


def removing(folder: Path, *packages: str) -> Step:
    """Takes packages out of it."""
    argv = (str(interpreter_in(folder)), "-m", "pip", *_PIP_OPTIONS, "uninstall", "-y", *packages)
    return Step("taking out what does not work beside it", argv)


def install(
    guest: Guest,
    folder: Path,
    python: str,
    steps: Sequence[Step],
    say: Say,
    detail: Say,
    made: Callable[[str], T],
) -> T:
    """Carry out `steps`, and write the marker; returns what stands in it.

    Args:
        guest: what is installed.
        folder: where.
        python: the interpreter it is made with.
        steps: in order.
        say: told each step as it begins.
        detail: told every line that a step prints.
        made: what is to stand in the marker, from the last line that the last step printed.

    Raises:
        ConfigError: the interpreter, the folder or the space in it will not do.
        InstallError: a step failed.
    """
    _check_python(guest, python)
    _check_folder(guest, folder)
    with _alone(folder):
        (folder / guest.marker).unlink(missing_ok=True)
        _check_space(guest, folder)
        last = ""
        for number, step in enumerate(steps, 1):
            say(f"{number}/{len(steps)} {step.text}")
            last = _run(step, detail)
        marker = made(last.strip())
        _write(folder / guest.marker, msgspec.json.encode(marker))
        return marker


def read_marker(path: Path, type: type[T]) -> T | None:
    """What an installation wrote last; None where there is none, or it was interrupted."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError):
        return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time. The lock stands beside the folder, which is cleared, and stays as the sign of it."""
    with _lock_of(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise ConfigError(f"another installation into {folder} is going on: wait for its end") from e
        yield


def _check_python(guest: Guest, python: str) -> None:
    look = "import sys, venv, ensurepip; print('%d %d' % sys.version_info[:2])"
    try:
        told = subprocess.run(
            [python, "-c", look], capture_output=True, text=True, errors="replace", timeout=_LOOK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        reason = e.strerror if isinstance(e, OSError) else "it does not answer"
        raise ConfigError(f"--python {python}: cannot be run as a Python interpreter: {reason}") from e
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(
            f"--python {python}: cannot make an environment: {last}. On Debian and Ubuntu that is the package "
            "python3-venv"
        )
    major, minor = map(int, told.stdout.split()[-2:])
    first, newest = guest.pythons
    if not first <= (major, minor) <= newest:
        raise ConfigError(
            f"--python {python}: is Python {major}.{minor}, and {guest.name} is installed with {first[0]}.{first[1]} "
            f"to {newest[0]}.{newest[1]}: name another"
        )


def _check_folder(guest: Guest, folder: Path) -> None:
    """Nothing is ever cleared but what an installation made, be it to its end or not."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / guest.marker).exists() and not _lock_of(folder).exists():
            raise ConfigError(
                f"{folder} is not empty, and what is in it was not made by `{guest.command}`: name another folder"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"cannot make {folder}: {e.strerror}") from e


def _check_space(guest: Guest, folder: Path) -> None:
    held = sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
    free = shutil.disk_usage(folder).free + held
    if free < guest.gib * _GIB:
        raise ConfigError(
            f"{folder} has {free / _GIB:.1f} GiB of space, and {guest.requirement} takes {guest.gib:g}: free some, "
            "or name another folder with --dir"
        )


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _run(step: Step, detail: Say) -> str:
    """Run a step to its end; returns the last line it printed."""
    words: deque[str] = deque(maxlen=_LAST_WORDS * 4)
    environ = without_ours(os.environ) | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        step.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                words.append(line.rstrip())
                detail(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise InstallError(f"{step.text} failed: {_reason([*words])}")
    return next((line for line in reversed(words) if line), "")


def _reason(words: list[str]) -> str:
    """What went wrong, from the end of a step's output."""
    text = "\n".join(words)
    if any(mark in text for mark in _NO_NETWORK):
        return "the package index cannot be reached: check the network, or the mirror pip is set to (PIP_INDEX_URL)"
    if "(from versions: none)" in text:
        return "the package index cannot be reached, or has nothing for this machine's system and processor"
    if "No space left on device" in text:
        return "the disk is full"
    errors = [line for line in words if line.lower().startswith("error")]
    return errors[0] if errors else "it said:\n  " + "\n  ".join([w for w in words if w][-_LAST_WORDS:])


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing."""
    whole = path.with_suffix(".part")
    whole.write_bytes(data)
    os.replace(whole, path)
