"""What to change: which key, to what, and what that would do. Every change that is told was planned with first."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from moonmill.algorithm_config import CriticLoraConfig
from moonmill.config import Config, LoraConfig
from moonmill.errors import ConfigError
from moonmill.trainer.devices import shares_card
from moonmill.trainer.planning.parts import BYTES, count, gib
from moonmill.trainer.planning.plan import Planner, budgeted, search

_SHARES = 100
Change = tuple[str, Config]


def advice(planner: Planner) -> list[str]:
    """What would make the run fit, or go faster where it does."""
    config = planner.config
    return _to_fit(planner) if not planner.fits(config) else [*_more_episodes(planner), *_faster(planner)]


def notes(planner: Planner) -> list[str]:
    """What there is to know of the model before it is trained."""
    config, shape = planner.config, planner.shape(planner.config)
    found = []
    if shape.positions and config.model.max_length > shape.positions:
        found.append(f"model.max_length: the model was made for {shape.positions:,} tokens")
    if shape.lookups:
        size = shape.lookups * BYTES[config.model.dtype]
        found.append(
            f"per-layer embeddings are {count(shape.lookups)} of the parameters, {gib(size)}: rows are looked up and "
            "none multiplied, so they could stay in the machine's memory. vLLM and learner.backend: torch keep them on "
            "the card, as counted here, and no quantization reaches them"
        )
    if config.learner.quantization and shape.expert_weights:
        found.append(
            f"learner.quantization: the experts ({count(shape.expert_weights)}) stand in fused parameters, which "
            "bitsandbytes does not quantize: they are counted as they are"
        )
    if shape.linear_attention:
        found.append(
            f"{shape.linear_attention} of {len(shape.layers)} layers are linear attention, whose state runs on from "
            "one packed rollout into the next: a learner that cannot keep them apart refuses the model as it loads it"
        )
    return found


def _to_fit(planner: Planner) -> list[str]:
    """The changes of which one alone is enough; else the first of them that are together."""
    alone = [told for told, config in _changes(planner, planner.config) if planner.fits(config)]
    if alone:
        return [f"it fits with {told}" for told in alone]
    config, done = planner.config, list[str]()
    for change in _CHANGES:
        for told, changed in _plannable(planner, change(planner, config)):
            if planner.fits(changed):
                return [f"it fits with {' and '.join([*done, told])}"]
            # What had no share of the card that would do may have one now.
            for told_too, _ in _share(planner, changed):
                return [f"it fits with {' and '.join([*done, told, told_too])}"]
            if _worst(planner, changed) < _worst(planner, config):
                config, done = changed, [*done, told]
    over = gib(_worst(planner, config))
    return [
        f"no change known here makes it fit: with {' and '.join(done) or 'all as it is'} it is still {over} too much"
    ]


def _worst(planner: Planner, config: Config) -> int:
    """Bytes that are missing, of cards and of an engine that cannot hold one episode."""
    engine = planner.engine(config)
    short = -min(0, engine.parts[-1].bytes) if engine and not engine.episodes else 0
    return short + sum(card.missing for card in planner.cards(config))


def _changes(planner: Planner, config: Config) -> Iterator[Change]:
    for change in _CHANGES:
        yield from _plannable(planner, change(planner, config))


def _plannable(planner: Planner, changes: Iterator[Change]) -> Iterator[Change]:
    """Those that the model can be trained with: not all can have adapters everywhere."""
    for told, config in changes:
        try:
            planner.shape(config)
        except ConfigError:
            continue
        yield told, config


def _bfloat16(planner: Planner, config: Config) -> Iterator[Change]:
    if config.model.dtype == "float32":
        yield "model.dtype: bfloat16", replace(config, model=replace(config.model, dtype="bfloat16"))


def _adapter(planner: Planner, config: Config) -> Iterator[Change]:
    if config.model.lora is None:
        yield "model.lora: {}", replace(config, model=replace(config.model, lora=LoraConfig()))


def _critic_adapter(planner: Planner, config: Config) -> Iterator[Change]:
    algorithm = config.algorithm
    critic = planner.algorithm(config).critic
    if critic and critic.lora is None:
        adapted = replace(algorithm, critic=replace(critic, lora=CriticLoraConfig()))
        yield "algorithm.critic.lora: {}", replace(config, algorithm=adapted)


def _checkpointing(planner: Planner, config: Config) -> Iterator[Change]:
    if not config.learner.gradient_checkpointing:
        learner = replace(config.learner, gradient_checkpointing=True)
        yield "learner.gradient_checkpointing: true", replace(config, learner=learner)


def _quantized(planner: Planner, config: Config) -> Iterator[Change]:
    critic = planner.algorithm(config).critic
    if config.model.lora and (critic is None or critic.lora) and config.learner.quantization != "4bit":
        learner = replace(config.learner, quantization="4bit")
        yield "learner.quantization: 4bit", replace(config, learner=learner)


def _budget(planner: Planner, config: Config) -> Iterator[Change]:
    """The largest micro-batch that fits, or else the smallest there can be: one rollout."""
    most = config.learner.micro_batch_tokens
    found = search(lambda n: planner.fits(budgeted(config, n)), most) or config.model.max_length
    if found < most:
        yield f"learner.micro_batch_tokens: {found}", budgeted(config, found)


def _share(planner: Planner, config: Config) -> Iterator[Change]:
    """The largest share of the card that leaves the learner its own."""
    if config.engine.type != "vllm" or config.engine.urls or config.model.device == "cpu":
        return
    for hundredths in range(95, 0, -1):
        share = hundredths / _SHARES
        vllm = replace(config.engine.vllm, gpu_memory=share)
        changed = replace(config, engine=replace(config.engine, vllm=vllm))
        if share != config.engine.vllm.gpu_memory and planner.fits(changed):
            yield f"engine.vllm.gpu_memory: {share:g}", changed
            return


def _second_card(planner: Planner, config: Config) -> Iterator[Change]:
    if config.model.device != "cpu" and not config.learner.device:
        yield (
            "a second card (learner.device: cuda:1)",
            replace(config, learner=replace(config.learner, device="cuda:1")),
        )


_CHANGES: tuple[Callable[[Planner, Config], Iterator[Change]], ...] = (
    *(_checkpointing, _budget, _share, _bfloat16, _adapter, _critic_adapter, _quantized, _second_card),
)
"""In the order of what they cost a run."""


def _more_episodes(planner: Planner) -> list[str]:
    engine = planner.engine(planner.config)
    if engine is None or engine.episodes >= engine.wanted or planner.config.engine.type != "vllm":
        return []
    return [
        f"keys and values have room for {engine.episodes} of {engine.wanted} episodes of full length: where they get "
        "so long, vLLM has some wait and computes them again; raise engine.vllm.gpu_memory, or lower "
        "async.max_concurrent or model.max_length"
    ]


def _faster(planner: Planner) -> list[str]:
    made = planner.plan()
    if made.speed is None:
        return []
    config = planner.config
    if made.speed.bottleneck == "generation":
        room = ", and room for them by engine.vllm.gpu_memory" * (config.engine.type == "vllm")
        more = (
            "" if config.engine.urls else ", or a further engine on a card of its own (engine.replicas, engine.devices)"
        )
        return [
            "generation takes longer than learning: more episodes at once (async.max_concurrent with engine.max_batch"
            f"{room}){more}"
        ]
    keys = ["a card of its own (learner.device)"] if shares_card(config) else []
    if config.learner.gradient_checkpointing:
        plain = replace(config, learner=replace(config.learner, gradient_checkpointing=False))
        if planner.fits(plain):
            keys.insert(0, "learner.gradient_checkpointing: false, which fits")
    critic = planner.algorithm(config).critic
    if critic and critic.updates > 1:
        keys.append(f"fewer value updates (algorithm.critic.updates is {critic.updates})")
    return [f"learning takes longer than generation: {', '.join(keys) or 'nothing known here makes it faster'}"]
