"""What can be known before a run begins: does the environment load, do its prompts fit, does the algorithm make
sense.

What needs neither torch nor the model's tokenizer can be had alone (`AT_ONCE`): it is known in a moment.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from moonmill.agents.engine.folder import parts_of, positions_of, problem_of, require_hub, require_whole
from moonmill.blame import blaming
from moonmill.config import Config
from moonmill.envs import ForeignEnv, MultiTurnEnv, SandboxService
from moonmill.envs.limits import check_sandbox, limits_of
from moonmill.envs.sandbox_tools import SandboxTool
from moonmill.envs.wrappers import factory_of
from moonmill.errors import ConfigError, MoonmillError
from moonmill.rundir import RunDirectory, check_place
from moonmill.sandboxes import SandboxSpecError
from moonmill.sandboxes.providers import check_name
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.checks import Check, Warned
from moonmill.trainer.critic_folder import check_critic
from moonmill.trainer.devices import describe_devices
from moonmill.trainer.engine_commands import check_sleep, describe_engine, describe_versions
from moonmill.trainer.filters import check_filters
from moonmill.trainer.learner_check import describe_learner
from moonmill.trainer.planning.room import describe_memory
from moonmill.trainer.prompts_check import describe_prompts, describe_renderer
from moonmill.trainer.recurring import describe_recurrence
from moonmill.trainer.warm_up import check_warm_up
from moonmill.types import COOLEST

AT_ONCE = (
    *("environment", "sandbox", "algorithm", "critic", "asynchrony", "evaluation", "device", "learner"),
    *("run directory", "model", "adapter", "engine", "versions"),
)
"""Checks that import neither torch (but for a GPU) nor transformers."""
FOR_PLAYING = ("environment", "sandbox", "evaluation", "device", "model", "engine")
"""Those of them that concern an evaluation."""
FOR_OTHERS = ("environment", "sandbox", "evaluation")
"""Those of an evaluation that is played by an API or a script."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def validate(config: Config) -> tuple[Check, ...]:
    """Look at everything that can be looked at without an engine. Never raises for a bad config."""
    return tuple(_look(config))


def require_valid(config: Config, checks: Collection[str] | None = None) -> tuple[str, ...]:
    """Raise `ConfigError` with everything that is wrong; else return what is to be warned of.

    Args:
        config: the run's.
        checks: only these; None takes all.
    """
    looked_at = tuple(_look(config, checks))
    if wrong := [check.detail for check in looked_at if check.ok is False]:
        raise ConfigError("\n".join(wrong))
    return tuple(check.warning for check in looked_at if check.warning)


def _look(config: Config, names: Collection[str] | None = None) -> Iterator[Check]:
    failed = set()
    for name, (check, needs) in _CHECKS.items():
        if names is not None and name not in names:
            continue
        if missing := next((need for need in needs if need in failed), None):
            failed.add(name)
            yield Check(name, None, f"not looked at, because of the {missing}")
            continue
        try:
            found = check(config)
        except MoonmillError as e:
            failed.add(name)
            yield Check(name, False, str(e))
            continue
        yield Check(name, True, *found) if isinstance(found, Warned) else Check(name, True, found)


def _environment(config: Config) -> str:
    env = _make(config)
    with blaming(config.env.id, "its limits"):
        limits_of(env)
    none = "what play offers" if isinstance(env, ForeignEnv) else "none"
    tools = ", ".join(t.name for t in env.tool_specs) or none
    rewards = ", ".join(mark.method for mark in env._moonmill_class.marks if mark.kind == "reward")
    others = "what play says" if isinstance(env, ForeignEnv) else "those of its turns alone"
    return f"{config.env.id}, tools: {tools}; rewards: {rewards or others}"


def _sandbox(config: Config) -> str:
    """The provider works on this host, and can honour what the environment asks for."""
    wanted = config.sandbox
    check_name(wanted.provider)
    env = _make(config)
    spec = check_sandbox(type(env), env.sandbox)
    if spec is None:
        needed = isinstance(env, SandboxTool)
        return "none is asked for" + ", but its tools need one: sandbox = SandboxSpec() in the class" * needed
    try:
        with closing(SandboxService(replace(wanted, prewarm=0))) as service:
            name, enforced = service.check(spec)
    except SandboxSpecError as e:
        raise ConfigError(f"sandbox: {config.env.id} asks for one that cannot be given: {e}") from e
    kept = [promise for promise in enforced if promise != "network" or spec.network == "none"]
    held = f"it enforces here: {', '.join(kept)}" if kept else "NOTHING IS KEPT IN: commands run here, as you"
    return f"{name}, at most {wanted.max_open} at once; {held}{'; THE NETWORK IS OPEN' * (spec.network == 'open')}"


def _algorithm(config: Config) -> str:
    algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
    group = f", groups of {algorithm.group_size}" if algorithm.group_size > 1 else ", single rollouts"
    return f"{config.algorithm.preset}{group}{', with a critic' if algorithm.critic else ''}"


def _critic(config: Config) -> str:
    critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
    if critic is None:
        return "none"
    check_warm_up(critic)
    if critic.lora is None:
        kind = "a copy of the model"
    else:
        base = "the policy's base" if config.model.lora else "a frozen copy of the model"
        kind = f"an adapter (r {critic.lora.r}, alpha {critic.lora.alpha:g}) on {base}"
    if not critic.path:
        return kind
    check_critic(critic)
    return f"{kind}, beginning with {critic.path}"


def _asynchrony(config: Config) -> str:
    window, batch = config.async_.window, config.learner.batch_rollouts
    if window is not None and window < batch:
        raise ConfigError(
            f"async.window: {window} is smaller than learner.batch_rollouts ({batch}), so a batch could never be "
            "taken; leave it out for twice the batch"
        )
    if config.sampling.temperature == 0:
        raise ConfigError("sampling.temperature: 0 is greedy, which explores nothing; train with 1.0")
    if config.sampling.temperature < COOLEST:
        raise ConfigError(_too_cool("sampling.temperature", config.sampling.temperature))
    check_filters(config.async_.filters, resolve(config.algorithm, batch).group_size)
    check_sleep(config)
    if config.async_.mode == "sync":
        return f"none: one batch after the other, {config.async_.max_concurrent} episodes in flight"
    return f"at most {config.async_.max_staleness} versions stale, {config.async_.max_concurrent} episodes in flight"


def _evaluation(config: Config) -> str:
    for temperature in config.eval.temperatures:
        if 0 < temperature < COOLEST:
            raise ConfigError(_too_cool("eval.temperatures", temperature))
    tasks, samples = config.eval.tasks, config.eval.samples
    if samples > 1 and not tasks:
        raise ConfigError(
            f"eval.samples: {samples} is how often each task is played, but eval.tasks, how many there are, is 0: set "
            f"eval.tasks (to {samples}, and leave eval.samples out, where {samples} tasks are meant)"
        )
    if not tasks:
        return "none"
    if not config.eval.temperatures:
        raise ConfigError(
            "eval.temperatures: [] plays no task at all: give one, such as 0 for greedy, or set eval.tasks to 0"
        )
    temperatures = ", ".join(f"{t:g}" for t in config.eval.temperatures)
    return f"{tasks} tasks{f', each {samples} times,' * (samples > 1)} at temperature {temperatures}"


def _too_cool(key: str, temperature: float) -> str:
    return f"{key}: {temperature:g} is too low to be computed: the lowest is {COOLEST:g}, and 0 is greedy"


def _run_directory(config: Config) -> str:
    path = Path(config.run_dir)
    check_place(path)
    return f"{path}, where a run has begun: --resume continues it" if RunDirectory(path).has_begun else str(path)


def _model(config: Config) -> str:
    if not _may_exist(config.model.path):
        raise ConfigError(f"model.path: there is no folder {config.model.path}, and it is no hub id (owner/name)")
    if not os.path.isdir(config.model.path):
        return f"{config.model.path}, from {require_hub(config.model.path)}"
    if problem := problem_of(config.model.path):
        raise ConfigError(f"model.path: {problem}")
    positions = positions_of(Path(config.model.path))
    if positions is not None and config.model.max_length > positions:
        raise ConfigError(
            f"model.max_length: {config.model.max_length} is more than the {positions} positions that the model "
            f"{config.model.path} has: lower it"
        )
    base, _ = parts_of(config.model.path)
    return config.model.path if os.path.isdir(base) else f"{config.model.path}, on {base} from {require_hub(base)}"


def _adapter(config: Config) -> str:
    require_whole(config.model.path)
    lora = config.model.lora
    if lora is None:
        return "none: all weights are trained"
    places = lora.target_modules if isinstance(lora.target_modules, str) else ", ".join(lora.target_modules)
    return f"LoRA: r {lora.r}, alpha {lora.alpha:g}, target_modules {places}"


def _may_exist(path: str) -> bool:
    """A folder, or what could be the id of a model on a hub."""
    return os.path.isdir(path) or _HUB_ID.fullmatch(path) is not None


def _make(config: Config) -> MultiTurnEnv:
    return factory_of(config.env)()


_CHECKS: dict[str, tuple[Callable[[Config], str | Warned], tuple[str, ...]]] = {
    "environment": (_environment, ()),
    "sandbox": (_sandbox, ("environment",)),
    "algorithm": (_algorithm, ()),
    "critic": (_critic, ("algorithm",)),
    "asynchrony": (_asynchrony, ("algorithm",)),
    "evaluation": (_evaluation, ()),
    "device": (describe_devices, ()),
    "learner": (describe_learner, ("algorithm", "device")),
    "run directory": (_run_directory, ()),
    "model": (_model, ()),
    "adapter": (_adapter, ("model",)),
    "engine": (describe_engine, ("device",)),
    "versions": (describe_versions, ()),
    "memory": (describe_memory, ("algorithm", "device", "model")),
    "renderer": (describe_renderer, ("model",)),
    "tasks": (describe_recurrence, ("environment", "algorithm")),
    "prompts": (describe_prompts, ("environment", "renderer")),
}
"""The checks in their order, each with those that it needs to have passed."""
