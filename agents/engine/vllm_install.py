"""Make an environment with vLLM in it. It counts as installed when vLLM was imported there."""

from pathlib import Path

from moonmill.agents.engine.vllm_environment import MARKER, PACKAGES, Installed, Package
from moonmill.installing import Guest, Say, Step, interpreter_in, making, removing
from moonmill.installing import install as carry_out
from moonmill.installing import installing as adding

_PYTHONS = ((3, 11), (3, 14))
"""The first and the last that vLLM has wheels for."""
_IMPORT = "import vllm, vllm.entrypoints.openai.api_server; print(vllm.__version__)"


def plan(package: Package, folder: Path, python: str) -> tuple[Step, ...]:
    """What is run to make the environment, in order. The last one prints vLLM's version."""
    steps = [making(folder, python), adding(folder, package.requirement)]
    if package.unwanted:
        steps.append(removing(folder, *package.unwanted))
    return (*steps, Step("importing vLLM", (str(interpreter_in(folder)), "-P", "-c", _IMPORT)))


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
    guest = Guest("vLLM", "moonmill engine install", MARKER, package.requirement, package.gib, _PYTHONS)

    def made(version: str) -> Installed:
        return Installed(name=name, version=version, python=str(interpreter_in(folder)))

    return carry_out(guest, folder, python, plan(package, folder, python), say, detail, made)
