"""What a comparison consists of: the arms that are compared, and a run of each for every seed.

Pure but for reading configs. What always holds: all arms train on as many rollouts, that many as the config itself
comes to with its critic's warm-up; an arm without one makes so many more policy updates. Runs of one seed draw from one
stream of tasks.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from moonmill.config import Config
from moonmill.config_io import differences
from moonmill.errors import ConfigError
from moonmill.trainer.algorithms.presets import resolve

MODES = ("sync", "async")
"""Arms that need not be described: `async.mode`."""
_NAME = re.compile(r"[\w.-]{1,60}", re.ASCII)
_OURS = ("train.steps", "train.seed", "run_dir", "name")
"""What the comparison itself decides for each run."""
_OPENING, _CLOSING = "[{(", "]})"


class Arm(Struct, frozen=True):
    """One side of a comparison."""

    name: str
    overrides: tuple[str, ...]
    """What it changes of the config, as `key=value`."""


class Job(Struct, frozen=True):
    """One run of a comparison."""

    arm: str
    seed: int
    config: Config

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.config.run_dir)


def arms_of(modes: str | None, variations: Sequence[str]) -> tuple[Arm, ...]:
    """The arms that a command line names.

    Args:
        modes: names, separated by commas: of variations, and `sync` or `async`. None takes all variations, or where
            there are none the two modes.
        variations: `name:key=value,key=value` each; one that comes again adds to what it changes.

    Raises:
        ConfigError: a name or a variation makes no sense.
    """
    known = {mode: Arm(mode, (f"async.mode={mode}",)) for mode in MODES}
    varied: dict[str, Arm] = {}
    for text in variations:
        name, colon, changes = text.partition(":")
        name = name.strip()
        overrides = tuple(_split(changes))
        if not colon or not overrides:
            raise ConfigError(f"--vary {text:.100}: expected name:key=value,key=value, such as low:learner.lr=1e-5")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--vary {text:.100}: a name has letters, digits, '.', '-' and '_', and names a folder")
        if name in known:
            raise ConfigError(f"--vary {text:.100}: {name} is the mode of that name already: choose another")
        varied[name] = Arm(name, (*(varied[name].overrides if name in varied else ()), *overrides))
    if modes is None:
        return tuple((varied or known).values())
    names = [name.strip() for name in modes.split(",")]
    arms = known | varied
    for name in names:
        if name not in arms:
            raise ConfigError(
                f"--modes {modes:.100}: {name!r} is not one of {', '.join(arms)}; --vary describes others"
            )
    if len({*names}) < len(names):
        raise ConfigError(f"--modes {modes:.100}: a name stands there twice")
    return tuple(arms[name] for name in names)


def plan(load: Callable[[Sequence[str]], Config], arms: Sequence[Arm], seeds: int, out: Path) -> tuple[Job, ...]:
    """The runs in their order: all arms with one seed, then all with the next.

    Args:
        load: the config with overrides.
        arms: what is compared.
        seeds: runs of each arm; the first has the config's own `train.seed`, each further one the next number.
        out: the folder in which they are kept.

    Raises:
        ConfigError: an arm makes no config, or cannot come to the budget of the others.
    """
    base = load(())
    budget = rollouts_of(base)
    configs: dict[str, Config] = {}
    for arm in arms:
        try:
            config = load(arm.overrides)
            _require_ours(base, config)
            configs[arm.name] = _with_budget(config, budget)
        except ConfigError as e:
            raise ConfigError(f"{arm.name}: {e}") from e
    return tuple(
        Job(arm.name, seed, _placed(configs[arm.name], f"{arm.name}-seed{seed}", seed, out))
        for seed in range(base.train.seed, base.train.seed + seeds)
        for arm in arms
    )


def rollouts_of(config: Config) -> int:
    """How many rollouts a run trains on, with those of the critic's warm-up."""
    return (config.train.steps + _warm_up(config)) * config.learner.batch_rollouts


def _require_ours(base: Config, config: Config) -> None:
    changed = differences(base, config)
    told = [f"{key} from {changed[key][0]!r:.100} to {changed[key][1]!r:.100}" for key in _OURS if key in changed]
    if told:
        raise ConfigError(
            f"changes {' and '.join(told)}: the comparison decides that, the same for all arms. Leave it out here, or "
            "change it for all with --set"
        )


def _with_budget(config: Config, budget: int) -> Config:
    batch, warm_up = config.learner.batch_rollouts, _warm_up(config)
    steps = budget // batch - warm_up
    if budget % batch or steps < 1:
        why = (
            f"is no multiple of its learner.batch_rollouts ({batch})"
            if steps >= 1
            else (f"leaves no policy update after {warm_up} steps of its critic's warm-up, of {batch} rollouts each")
        )
        raise ConfigError(f"the budget of {budget:,} rollouts, which all arms have, {why}: change train.steps")
    return replace(config, train=replace(config.train, steps=steps))


def _warm_up(config: Config) -> int:
    critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
    if critic and critic.pretrain:
        raise ConfigError(
            "algorithm.critic.pretrain: nobody knows beforehand how many rollouts that takes, and all arms are to have "
            "as many: pre-train the critic once (moonmill pretrain-critic) and begin with it (algorithm.critic.path)"
        )
    return critic.warmup_steps if critic else 0


def _placed(config: Config, name: str, seed: int, out: Path) -> Config:
    return replace(config, name=name, run_dir=str(out.absolute() / name), train=replace(config.train, seed=seed))


def _split(text: str) -> list[str]:
    """The parts between commas, but for commas within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in _OPENING) - (char in _CLOSING)
            if char == "," and depth <= 0:
                parts.append("")
                continue
        parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
