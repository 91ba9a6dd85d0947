"""What to change: which key, to what, and what that would do. Every change that is told was planned with first.

What always holds: of changes that make a run fit together, none can be left out; none is told that takes back what was
done for memory, be it told here or in the config.
"""

from collections.abc import Iterable, Iterator

from moonmill.config import Config
from moonmill.trainer.devices import shares_card
from moonmill.trainer.doctor.surroundings import machine
from moonmill.trainer.planning.changes import FIGURES, KINDS, Kind, change_of, share, share_that_fits, shortest
from moonmill.trainer.planning.engine_memory import episode_bytes
from moonmill.trainer.planning.parts import BYTES, count, gib
from moonmill.trainer.planning.plan import Plan, Planner, concurrent
from moonmill.trainer.planning.speed import Speed

_WORTH = 1.1
"""How many times as fast as before more episodes must be sampled to be advised."""


def advice(planner: Planner, made: Plan) -> list[str]:
    """What would make the run fit, or go faster where it does.

    Args:
        planner: of the run.
        made: what it made.
    """
    if not made.fits:
        return _to_fit(planner)
    return [*_more_room(planner, made), *(_faster(planner, made, made.speed) if made.speed else ())]


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
            f"{shape.linear_attention} of {len(shape.layers)} layers are linear attention: times are those of their "
            "kernels (packages flash-linear-attention and causal-conv1d), without which transformers runs them in "
            "PyTorch, many times slower; the embedded engine cannot run them, vLLM may (engine.type: vllm)"
        )
    return found


def _to_fit(planner: Planner) -> list[str]:
    """The changes of which one alone is enough; else the fewest that are together."""
    changes = [change_of(kind, planner, planner.config) for kind in KINDS]
    if alone := [told for told, config in filter(None, changes) if planner.fits(config)]:
        return [f"it fits with {told}" for told in alone]
    config, done = planner.config, dict[Kind, str]()
    for kind in KINDS:
        if change := change_of(kind, planner, config):
            shared = change_of(share, planner, change[1])  # what had no share that would do may have one now
            if shared or _missing(planner, change[1]) < _missing(planner, config):
                done[kind], config = change
            if shared and not planner.fits(config):
                done[share], config = shared
        if planner.fits(config):
            return [f"it fits with {' and '.join(_fewest(planner, done))}"]
    over, told = gib(_missing(planner, config)), " and ".join(done.values()) or "all as it is"
    return [f"no change known here makes it fit: with {told} it is still {over} too much"]


def _fewest(planner: Planner, kinds: Iterable[Kind]) -> list[str]:
    """Of changes that together make it fit, those that it takes: what costs a run most is left out first."""
    done, _ = _together(planner, kinds)
    for kind in reversed(KINDS):
        fewer, config = _together(planner, [other for other in done if other is not kind])
        if planner.fits(config):
            done = fewer
    return [*done.values()]


def _together(planner: Planner, kinds: Iterable[Kind]) -> tuple[dict[Kind, str], Config]:
    """All of these changes, figures after the others, which make them as mild as can be; and what comes of them."""
    config, done = planner.config, dict[Kind, str]()
    for kind in sorted(kinds, key=lambda kind: (kind in FIGURES, kind is share)):
        if change := change_of(kind, planner, config):
            done[kind], config = change
    return done, config


def _missing(planner: Planner, config: Config) -> int:
    """Bytes, of cards and of an engine that cannot hold one episode; what takes more than its share is counted once."""
    engine, over = planner.engine(config), sum(card.missing for card in planner.cards(config))
    if engine is None:
        return over
    each = episode_bytes(config, planner.shape(config), config.model.max_length)
    return max(engine.lacking, over + min(engine.lacking, each))


def _more_room(planner: Planner, made: Plan) -> Iterator[str]:
    config, engine = planner.config, made.engine
    if engine is None or engine.episodes >= engine.wanted:
        return
    told = (
        f"keys and values have room for {engine.episodes} of {engine.wanted} episodes of full length: where they get "
        "so long, vLLM has some wait and computes them again"
    )
    larger = share_that_fits(planner, config)
    if larger and larger > config.engine.vllm.gpu_memory:
        told += f"; more have room with engine.vllm.gpu_memory: {larger:g}"
    enough = []
    if at_once := made.largest["async.max_concurrent"]:
        enough.append(_fewer(config, min(at_once, config.async_.max_concurrent)))
    if (length := made.largest["model.max_length"]) and length >= shortest(config):
        enough.append(f"model.max_length: {length}")
    if enough:
        told += f"; all have with {', or with '.join(enough)}"
    yield told


def _fewer(config: Config, episodes: int) -> str:
    """The keys that have so many episodes in flight, and no more places on an engine: these take room as well."""
    changed = concurrent(config, episodes)
    now = {"async.max_concurrent": config.async_.max_concurrent, "engine.max_batch": config.engine.max_batch}
    then = {"async.max_concurrent": changed.async_.max_concurrent, "engine.max_batch": changed.engine.max_batch}
    return " and ".join(f"{key}: {n}" for key, n in then.items() if n != now[key])


def _faster(planner: Planner, made: Plan, speed: Speed) -> Iterator[str]:
    if speed.bottleneck == "generation":
        slow, fast, keys = "generation", "learning", [*_for_generation(planner, made, speed)]
    else:
        slow, fast, keys = "learning", "generation", [*_for_learning(planner)]
    yield f"{slow} takes longer than {fast}: {', or '.join(keys) or 'nothing known here makes it faster'}"


def _for_generation(planner: Planner, made: Plan, speed: Speed) -> Iterator[str]:
    config = planner.config
    more = made.largest["async.max_concurrent"] or 0
    if more > config.async_.max_concurrent:
        faster = planner.speed(concurrent(config, more))
        if faster and faster.decoded > _WORTH * speed.decoded:
            yield f"more episodes at once (async.max_concurrent, and engine.max_batch with it: up to {more} fit)"
    if "cpu" in planner.engines_at(config):
        yield from _threads("engine", config.engine.threads)
    elif not config.engine.urls:
        yield "a further engine on a card of its own (engine.replicas, engine.devices)"


def _for_learning(planner: Planner) -> Iterator[str]:
    config, critic = planner.config, planner.algorithm(planner.config).critic
    if planner.learner_at(config) == "cpu":
        yield from _threads("learner", config.learner.threads)
    elif shares_card(config):
        yield "a card of its own (learner.device)"
    if critic and critic.updates > 1:
        yield f"fewer value updates (algorithm.critic.updates is {critic.updates})"


def _threads(section: str, threads: int) -> Iterator[str]:
    if threads < (cores := machine().cores):
        yield f"more threads ({section}.threads is {threads}, of {cores} cores)"
