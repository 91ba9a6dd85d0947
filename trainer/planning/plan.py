"""A plan: what stands on which card, whether it fits, how far it could go, and what to change where it does not.

What always holds: what is searched for is found with the same formulas that are shown; the same config and card give
the same plan, but for speeds on this machine's processor, which are measured.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from moonmill.agents.engine.vllm_command import check_args
from moonmill.config import Config
from moonmill.errors import ConfigError
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.devices import engine_devices, learner_device
from moonmill.trainer.doctor.surroundings import machine
from moonmill.trainer.planning.catalogue import config_for
from moonmill.trainer.planning.engine_memory import EnginePlan, embedded_plan, places, vllm_plan
from moonmill.trainer.planning.gpus import GPUS, Gpu, Rates, gpu_here, gpu_named
from moonmill.trainer.planning.learner_memory import CONTEXT, learner_parts
from moonmill.trainer.planning.parts import GIB, Part, total
from moonmill.trainer.planning.processor import measured
from moonmill.trainer.planning.shapes import Shape, shape_of
from moonmill.trainer.planning.speed import Speed, speed_of

RESERVE = 0.03
"""Share of a card that is left free."""
_MOST = 1 << 20
"""Beyond it nothing is searched."""


class Card(Struct, frozen=True):
    """A card, or the machine's own memory, and who is on it."""

    device: str
    memory: int
    used: int
    holds: tuple[str, ...]

    @property
    def missing(self) -> int:
        """Bytes that are too much for it; 0 where it fits, with a reserve for what no formula knows."""
        return max(0, self.used - int((1 - RESERVE) * self.memory))


class Plan(Struct, frozen=True):
    """Everything that is told."""

    model: str
    source: str
    shape: Shape
    gpu: str
    cards: tuple[Card, ...]
    engine: EnginePlan | None
    """None where the engines run elsewhere (`engine.urls`)."""
    engines: int
    learner: tuple[Part, ...]
    fits: bool
    largest: dict[str, int | None]
    """Of each key, with all others as they are, the largest value that fits; None where none does."""
    speed: Speed | None


class Planner:
    """Makes plans of one model on one kind of card.

    Args:
        config: the run's.
        gpu: the card; None is the machine's own memory.
        measure: what this machine's processor does with so many threads in that precision; None tells no speed of what
            computes on it.

    Raises:
        ConfigError: the model's shape cannot be had, or algorithm or options of vLLM make no sense.
    """

    def __init__(self, config: Config, gpu: Gpu | None, measure: Callable[[int, str], Rates] | None = None) -> None:
        self._gpu = gpu
        self._measure = measure
        self._known, self._source = config_for(config.model.path)
        self._shapes: dict[object, Shape] = {}
        self.config = config
        self.algorithm(config)
        if config.engine.type == "vllm" and not config.engine.urls:
            check_args(config.engine.vllm.args)

    def algorithm(self, config: Config) -> ResolvedAlgorithm:
        return resolve(config.algorithm, config.learner.batch_rollouts)

    def shape(self, config: Config) -> Shape:
        critic = self.algorithm(config).critic
        key = (config.model.lora, critic)
        if key not in self._shapes:
            self._shapes[key] = shape_of(self._known, config.model.lora, critic)
        return self._shapes[key]

    def learner(self, config: Config) -> tuple[Part, ...]:
        gpu = self.learner_at(config) != "cpu"
        return learner_parts(config, self.algorithm(config), self.shape(config), gpu=gpu)

    def engine(self, config: Config) -> EnginePlan | None:
        if config.engine.urls:
            return None
        if config.engine.type == "embedded":
            return embedded_plan(config, self.shape(config), gpu=self._memory_of_engine(config) is not None)
        return vllm_plan(config, self.shape(config), self._memory_of_engine(config))

    def learner_at(self, config: Config) -> str:
        """The device of the learner."""
        return self._device(learner_device(config), config)

    def engines_at(self, config: Config) -> list[str]:
        """The device of each engine that the run starts."""
        return [] if config.engine.urls else [self._device(device, config) for device in engine_devices(config)]

    def cards(self, config: Config) -> tuple[Card, ...]:
        """Who is on which card, and what they take of it together, or in turns where the engines sleep."""
        parts, engine = self.learner(config), self.engine(config)
        learner, at_rest = total(parts), total(tuple(part for part in parts if not part.passing))
        at, on = self.learner_at(config), self.engines_at(config)
        cards = []
        for device in sorted({at, *on}):
            memory = self._gpu.memory if self._gpu and device != "cpu" else int(machine().memory_gib * GIB)
            engines = on.count(device)
            taken = engines * engine.bytes if engine else 0
            used = taken + learner * (device == at)
            if config.engine.sleep_while_learning and device == at != "cpu" and engines:
                used = max(taken + at_rest, engines * CONTEXT + learner)
            holds = ("engine",) * engines + ("learner",) * (device == at)
            cards.append(Card(device, memory, used, holds))
        return tuple(cards)

    def fits(self, config: Config) -> bool:
        """Every card has room, and every engine holds at least one episode of full length."""
        engine = self.engine(config)
        return not any(card.missing for card in self.cards(config)) and (engine is None or engine.episodes > 0)

    def holds_all(self, config: Config) -> bool:
        """It fits, and all episodes in flight can be of full length at once."""
        engine = self.engine(config)
        return self.fits(config) and (engine is None or engine.episodes >= engine.wanted)

    def plan(self) -> Plan:
        config, shape = self.config, self.shape(self.config)
        return Plan(
            model=config.model.path,
            source=self._source,
            shape=shape,
            gpu=self._gpu.name if self._gpu else "this machine's memory",
            cards=self.cards(config),
            engine=self.engine(config),
            engines=_engines(config),
            learner=self.learner(config),
            fits=self.fits(config),
            largest=self._largest(),
            speed=self.speed(config),
        )

    def speed(self, config: Config) -> Speed | None:
        """What to expect; None where nothing is known of a card, or no episode has room."""
        engine = self.engine(config)
        episodes = min(engine.wanted, engine.episodes) if engine else places(config)
        decoding = self._rates(self._device(engine_devices(config)[0], config), config.engine.threads, config)
        training = self._rates(self.learner_at(config), config.learner.threads, config)
        if decoding is None or training is None or not episodes:
            return None
        each = self.algorithm(config), self.shape(config)
        return speed_of(config, *each, decoding, training, episodes, _engines(config))

    def _rates(self, device: str, threads: int, config: Config) -> Rates | None:
        if device != "cpu":
            return self._gpu.rates if self._gpu else None
        return self._measure(threads, config.model.dtype) if self._measure else None

    def _largest(self) -> dict[str, int | None]:
        config, positions = self.config, self.shape(self.config).positions or _MOST
        batch = config.learner.batch_rollouts * config.model.max_length
        return {
            "async.max_concurrent": search(lambda n: self.holds_all(concurrent(config, n)), _MOST),
            "model.max_length": search(lambda n: self.holds_all(lengthened(config, n)), positions),
            "learner.micro_batch_tokens": search(lambda n: self.fits(budgeted(config, n)), batch),
        }

    def _memory_of_engine(self, config: Config) -> int | None:
        """Bytes of an engine's card; None on a CPU."""
        return self._gpu.memory if self._gpu and "cpu" not in self.engines_at(config) else None

    def _device(self, device: str, config: Config) -> str:
        if self._gpu is None:
            return "cpu"
        if device == "cpu" and {learner_device(config), *engine_devices(config)} == {"cpu"}:
            return "cuda:0"  # A card is named for a config that has been on a CPU all through.
        return "cuda:0" if device == "cuda" else device


def planner(config: Config, gpu: str | None) -> Planner:
    """A planner for the card that is named, or that is here.

    Args:
        config: the run's.
        gpu: a name of the catalogue; None takes the card that PyTorch finds, or where the config computes on the CPU
            alone, the machine's memory.

    Raises:
        ConfigError: there is no such card, or none here and none named.
    """
    if gpu is not None:
        return Planner(config, gpu_named(gpu), measured)
    engines = () if config.engine.urls else engine_devices(config)
    if {learner_device(config), *engines} == {"cpu"}:
        return Planner(config, None, measured)
    if (here := gpu_here()) is None:
        raise ConfigError(
            f"model.device: {config.model.device}, and this machine has no GPU to plan for: name one with --gpu: "
            f"{', '.join(GPUS)}"
        )
    return Planner(config, here, measured)


def _engines(config: Config) -> int:
    return len(config.engine.urls) or config.engine.replicas


def concurrent(config: Config, episodes: int) -> Config:
    """With so many episodes in flight, and places for them on the engines."""
    return replace(
        config,
        async_=replace(config.async_, max_concurrent=episodes),
        engine=replace(config.engine, max_batch=-(-episodes // config.engine.replicas)),
    )


def lengthened(config: Config, length: int) -> Config:
    """With contexts of so many tokens."""
    return replace(config, model=replace(config.model, max_length=length))


def budgeted(config: Config, tokens: int) -> Config:
    """With micro-batches of so many tokens."""
    return replace(config, learner=replace(config.learner, micro_batch_tokens=tokens))


def search(fits: Callable[[int], bool], most: int) -> int | None:
    """The largest number from 1 to `most` that fits, where all smaller ones do as well; None where 1 does not."""
    if not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
