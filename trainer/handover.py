"""How an engine takes a version over, and how it is known that it did."""

import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
from msgspec import Struct

from moonmill.agents.control import EngineControl, ModelCard
from moonmill.agents.pending import version_name, version_named
from moonmill.config import Config, ModelConfig
from moonmill.errors import ConfigError, EngineError
from moonmill.rundir import RunDirectory

_TOLERANCE = {"float32": 1e-2, "bfloat16": 0.25}
"""How far the log-probabilities of engine and learner may be apart, by `model.dtype`. Between two programs that compute
in float32 it is about 1e-5."""
_QUANTIZED = {"4bit": 2.0, "8bit": 1.0}
"""The same where the learner's base is quantized, and the engine's is not. Over 1,082 contexts of SmolLM2-135M, which
is as small as they come, the two were at most 1.83 and 0.72 apart, on average 0.32 and 0.10."""
_DEPTH = 3
"""A run's weights are in `RUN/weights/v000001`, or in `RUN/checkpoints/step-000001/policy`."""


class Weights(Struct, frozen=True):
    """A version's weights, and how to know them."""

    path: Path
    probe: float | None = None
    """What the learner answers to the probe with them; None where that is not known."""


class Taken(Struct, frozen=True):
    """How an engine took a version over."""

    value: float
    """Its answer to the probe."""
    difference: float | None
    """How far the learner's answer is from it."""
    seconds_load: float
    seconds_probe: float


class WrongWeightsError(EngineError):
    """An engine does not answer as the learner does."""


async def take_over(
    engine: EngineControl, version: int, weights: Weights, probe: Sequence[int], config: Config
) -> Taken:
    """Have an engine load a version, and see that it answers the probe as the learner does. Version 0 it has.

    A single token tells. What arrives is either all of a version's weights or other ones, of another version or another
    folder. The log-probability of the likeliest token depends on every layer, and the probe's prompt ends where much
    can follow, so that other weights give another number. Weights that differ so little that this number is the same
    within rounding would not be told apart by more tokens either.

    Raises:
        WrongWeightsError: it answers otherwise. The version is unloaded again.
        EngineError: it would not take it, or does not answer.
    """
    begin = time.perf_counter()
    if version:
        await engine.load_version(version, weights.path.absolute())  # it may have been started in another folder
    loaded = time.perf_counter()
    value = await engine.probe(probe, version)
    probed = time.perf_counter()
    difference = None if weights.probe is None else abs(value - weights.probe)
    quantization = config.learner.quantization
    tolerance = _QUANTIZED[quantization] if quantization else _TOLERANCE[config.model.dtype]
    if difference is not None and not difference <= tolerance:  # also where it is not a number
        apart = (
            f"the likeliest token after a fixed prompt has the log-probability {value:.6g}, with the learner "
            f"{weights.probe:.6g}; they may be {tolerance:g} apart"
        )
        if not version:
            raise WrongWeightsError(
                f"{engine.base_url} does not sample from the model that is trained, {weights.path}: {apart}. Either it "
                "serves another model or other numbers, such as a quantized one's, or it computes this kind of model "
                "otherwise than transformers does, and another engine.type is needed"
            )
        with suppress(EngineError):
            await engine.unload_version(version)
        raise WrongWeightsError(
            f"{engine.base_url} does not sample from the weights that the learner made: with version {version}, "
            f"loaded from {weights.path}, {apart}"
        )
    return Taken(value, difference, loaded - begin, probed - loaded)


async def refuse_other_runs(engine: EngineControl, run_dir: Path) -> None:
    """Raise `EngineError` where a run that goes on, in another folder than `run_dir`, has versions on the engine.

    Versions of two runs have the same names, so each would sample from the other's weights.
    """
    cards = [card for card in await engine.models() if version_named(card.id)]
    if other := await anyio.to_thread.run_sync(_other_run, cards, run_dir):
        raise EngineError(
            f"the run in {other} is using {engine.base_url} now: give each run engines of its own (engine.urls), or "
            "wait until that one has ended"
        )


def _other_run(cards: Iterable[ModelCard], run_dir: Path) -> Path | None:
    """The folder of a run in use that versions were loaded from."""
    own = run_dir.resolve()
    for card in cards:
        parents = Path(card.root or "").resolve().parents
        if own in parents:
            continue
        for folder in parents[:_DEPTH]:
            if RunDirectory(folder).in_use():
                return folder
    return None


async def forget_all(engine: EngineControl, model: ModelConfig) -> None:
    """Unload the versions that an engine has from another time.

    Raises:
        ConfigError: it does not serve the model of this run.
        EngineError: it does not do it.
    """
    first = version_name(0)
    cards = {card.id: card for card in await engine.models()}
    if first not in cards:
        raise ConfigError(
            f"engine.urls: {engine.base_url} serves {', '.join(cards) or 'nothing'}, but nothing under the name "
            f"{first}: start it with `moonmill engine serve MODEL --name {first}` (vLLM's own server: "
            f"--served-model-name {first}), on this run's model"
        )
    length = cards[first].max_model_len
    if length is not None and length < model.max_length:
        raise ConfigError(
            f"model.max_length: {model.max_length} is more than the context of {length} tokens that the engine "
            f"{engine.base_url} was started with"
        )
    for version in sorted(filter(None, map(version_named, cards))):
        await engine.unload_version(version)


async def other_models(config: Config) -> list[str]:
    """What attached engines say that they serve, in a warning for each that serves another folder than `model.path`."""
    told = []
    for url in config.engine.urls:
        async with EngineControl(url, request_timeout=config.engine.request_timeout) as engine:
            with suppress(EngineError):  # it is passed over, which is told elsewhere
                roots = {card.id: card.root for card in await engine.models()}
                root = roots.get(version_name(0))
                if root and not await anyio.to_thread.run_sync(_is_same, root, config.model.path):
                    told.append(
                        f"{url} serves {root}, and not {config.model.path}: the figures are those of the former"
                    )
    return told


def _is_same(root: str, path: str) -> bool:
    return root == path or Path(root).resolve() == Path(path).resolve()


def remove_weights(folder: Path, newest: int, used: Collection[int]) -> None:
    """Delete the weights in `folder` of versions before `newest` that are not in `used`."""
    for path in folder.glob("v[0-9]*"):
        digits = path.name[1:]
        if digits.isdecimal() and int(digits) < newest and int(digits) not in used:
            shutil.rmtree(path, ignore_errors=True)
