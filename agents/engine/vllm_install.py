"""Make an environment with vLLM in it: step by step, begun anew where it was interrupted.

What always holds: the marker is written when vLLM was imported there and not before, so what counts as installed works;
two installations into one folder do not meet; nothing is installed into our own environment.
"""

import fcntl
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from moonmill.agents.engine.vllm_environment import MARKER, PACKAGES, Installed, Package, without_ours
from moonmill.errors import ConfigError, MoonmillError

_GIB = 1 << 30
_PYTHONS = ((3, 11), (3, 14))
"""The first and the last that vLLM has wheels for."""
_LOOK_SECONDS = 30.0
_LAST_WORDS = 12
_PIP_OPTIONS = ("--progress-bar", "off", "--no-compile")
_IMPORT = "import vllm, vllm.entrypoints.openai.api_server; print(vllm.__version__)"
_NO_NETWORK = ("NewConnectionError", "NameResolutionError", "Temporary failure in name resolution", "ConnectTimeout")

Say = Callable[[str], None]
"""Takes a line for people."""


class InstallError(MoonmillError):
    """An environment could not be made."""


class Step(Struct, frozen=True):
    """One program to run."""

    text: str
    argv: tuple[str, ...]


def plan(package: Package, folder: Path, python: str) -> tuple[Step, ...]:
    """What is run to make the environment, in order. The last one prints vLLM's version."""
    inside = str(interpreter_in(folder))
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "--no-input")
    steps = [
        Step(f"making an environment in {folder}", (python, "-m", "venv", "--clear", str(folder))),
        # What is imported is compiled then; compiling all of it would take longer than the rest.
        Step(f"installing {package.requirement}", (*pip, "install", *_PIP_OPTIONS, package.requirement)),
    ]
    if package.unwanted:
        steps.append(Step("taking out what does not work beside it", (*pip, "uninstall", "-y", *package.unwanted)))
    return (*steps, Step("importing vLLM", (inside, "-P", "-c", _IMPORT)))


def interpreter_in(folder: Path) -> Path:
    """The interpreter of the environment in `folder`."""
    return folder / "bin" / "python"


def install(name: str, folder: Path, python: str, say: Say, detail: Say) -> Installed:
    """Make the environment, whatever is in `folder` now.

    Args:
        name: a key of `PACKAGES`.
        folder: where.
        python: the interpreter it is made with.
        say: told each step as it begins.
        detail: told every line that a step prints.

    Raises:
        ConfigError: the interpreter, the folder or the space in it will not do.
        InstallError: a step failed.
    """
    package = PACKAGES[name]
    folder = folder.absolute()
    _check_python(python)
    _check_folder(folder)
    with _alone(folder):
        (folder / MARKER).unlink(missing_ok=True)
        _check_space(folder, package)
        steps, last = plan(package, folder, python), ""
        for number, step in enumerate(steps, 1):
            say(f"{number}/{len(steps)} {step.text}")
            last = _run(step, detail)
        made = Installed(name=name, version=last.strip(), python=str(interpreter_in(folder)))
        _write(folder / MARKER, msgspec.json.encode(made))
    return made


def _check_python(python: str) -> None:
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
    first, newest = _PYTHONS
    if not first <= (major, minor) <= newest:
        raise ConfigError(
            f"--python {python}: is Python {major}.{minor}, and vLLM is installed with {first[0]}.{first[1]} to "
            f"{newest[0]}.{newest[1]}: name another"
        )


def _check_folder(folder: Path) -> None:
    """Nothing is ever cleared but what an installation made, be it to its end or not."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARKER).exists() and not _lock_of(folder).exists():
            raise ConfigError(
                f"{folder} is not empty, and what is in it was not made by `moonmill engine install`: name another "
                "folder"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"cannot make {folder}: {e.strerror}") from e


def _check_space(folder: Path, package: Package) -> None:
    held = sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
    free = shutil.disk_usage(folder).free + held
    if free < package.gib * _GIB:
        raise ConfigError(
            f"{folder} has {free / _GIB:.1f} GiB of space, and {package.requirement} takes {package.gib:g}: free some, "
            "or name another folder with --dir"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time. The lock stands beside the folder, which is cleared, and stays as the sign of it."""
    with _lock_of(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise ConfigError(f"another installation into {folder} is going on: wait for its end") from e
        yield


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
