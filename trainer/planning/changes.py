"""The changes that can make a run fit, each of one key: what is told, and the config with it.

What always holds: a figure is the largest that fits or, where none does, the least there can be; what the learner
cannot be trained with is not offered.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from moonmill.algorithm_config import CriticLoraConfig
from moonmill.config import Config, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.devices import shares_card
from moonmill.trainer.planning.plan import Planner, budgeted, lengthened, search

_SHARES = 100
_MOST_SHARE = 95
Change = tuple[str, Config]
Kind = Callable[[Planner, Config], Change | None]
"""Makes a change of one kind; None where there is none to make."""


def change_of(kind: Kind, planner: Planner, config: Config) -> Change | None:
    """A change of that kind that the model can be trained with: not all can have adapters everywhere."""
    if change := kind(planner, config):
        try:
            planner.shape(change[1])
        except ConfigError:
            return None
    return change


def share_that_fits(planner: Planner, config: Config) -> float | None:
    """The largest share of its card that vLLM can have beside all else there; None where none will do."""
    if config.engine.type != "vllm" or config.engine.urls or "cpu" in planner.engines_at(config):
        return None
    found = search(lambda n: not any(card.missing for card in planner.cards(_with_share(config, n))), _MOST_SHARE)
    return found / _SHARES if found and planner.fits(_with_share(config, found)) else None


def shortest(config: Config) -> int:
    """The shortest context that is of use: an action, and as much before it."""
    return 2 * config.sampling.max_tokens


def share(planner: Planner, config: Config) -> Change | None:
    """Of vLLM, as much as leaves the learner its own."""
    found = share_that_fits(planner, config)
    if found is None or found == config.engine.vllm.gpu_memory:
        return None
    return f"engine.vllm.gpu_memory: {found:g}", _with_share(config, round(found * _SHARES))


def _checkpointing(planner: Planner, config: Config) -> Change | None:
    if config.learner.gradient_checkpointing:
        return None
    return "learner.gradient_checkpointing: true", _set(config, "learner", gradient_checkpointing=True)


def _budget(planner: Planner, config: Config) -> Change | None:
    """A micro-batch holds one rollout at least."""
    least, most = config.model.max_length, config.learner.micro_batch_tokens
    found = _largest(lambda n: planner.fits(budgeted(config, n)), least, most)
    return None if found is None else (f"learner.micro_batch_tokens: {found}", budgeted(config, found))


def _batch(planner: Planner, config: Config) -> Change | None:
    """Requests beyond it wait."""
    found = _largest(lambda n: planner.fits(_set(config, "engine", max_batch=n)), 1, config.engine.max_batch)
    return None if found is None else (f"engine.max_batch: {found}", _set(config, "engine", max_batch=found))


def _bfloat16(planner: Planner, config: Config) -> Change | None:
    if config.model.dtype == "bfloat16":
        return None
    return "model.dtype: bfloat16", _set(config, "model", dtype="bfloat16")


def _adapter(planner: Planner, config: Config) -> Change | None:
    """Trains something else, which is told."""
    if config.model.lora:
        return None
    return "model.lora: {} (an adapter in place of all weights)", _set(config, "model", lora=LoraConfig())


def _critic_adapter(planner: Planner, config: Config) -> Change | None:
    critic = planner.algorithm(config).critic
    if critic is None or critic.lora:
        return None
    told = "algorithm.critic.lora: {} (an adapter in place of a critic with weights of its own)"
    return told, _set(config, "algorithm", critic=replace(critic, lora=CriticLoraConfig()))


def _quantized(planner: Planner, config: Config) -> Change | None:
    critic = planner.algorithm(config).critic
    if config.model.lora is None or (critic and critic.lora is None) or config.learner.quantization == "4bit":
        return None
    return "learner.quantization: 4bit", _set(config, "learner", quantization="4bit")


def _length(planner: Planner, config: Config) -> Change | None:
    found = _largest(lambda n: planner.fits(lengthened(config, n)), shortest(config), config.model.max_length)
    return None if found is None else (f"model.max_length: {found}", lengthened(config, found))


def _turns(planner: Planner, config: Config) -> Change | None:
    if config.engine.sleep_while_learning or not shares_card(config):
        return None
    told = "async.mode: sync, engine.sleep_while_learning: true and train.eval_every: 0, which has the two take turns"
    taken = _set(_set(config, "async_", mode="sync"), "engine", sleep_while_learning=True)
    return told, _set(taken, "train", eval_every=0)


def _second_card(planner: Planner, config: Config) -> Change | None:
    if config.model.device == "cpu" or config.learner.device:
        return None
    return "a second card (learner.device: cuda:1)", _set(config, "learner", device="cuda:1")


KINDS: tuple[Kind, ...] = (
    *(_checkpointing, _budget, share, _batch, _bfloat16, _adapter, _critic_adapter, _quantized, _length),
    *(_turns, _second_card),
)
"""In the order of what they cost a run."""
FIGURES: tuple[Kind, ...] = (_budget, _batch, _length, share)
"""Those whose size follows from the others."""


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest that fits, or else the least there can be; None where that is no change."""
    found = max(search(fits, most) or least, least)
    return found if found < most else None


def _set(config: Config, section: str, **values: Any) -> Config:
    return replace(config, **{section: replace(getattr(config, section), **values)})


def _with_share(config: Config, hundredths: int) -> Config:
    return _set(config, "engine", vllm=replace(config.engine.vllm, gpu_memory=hundredths / _SHARES))
