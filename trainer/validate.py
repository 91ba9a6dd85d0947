"""What can be known before a run begins: does the environment load, do its prompts fit, does the algorithm make
sense."""

import itertools
import os
import re
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from moonmill.agents.rendering import load_renderer
from moonmill.config import Config
from moonmill.envs import MultiTurnEnv, Taskset
from moonmill.errors import ConfigError, MoonmillError
from moonmill.registry import make
from moonmill.trainer.algorithms.presets import resolve

_TASKS_LOOKED_AT = 16
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def validate(config: Config) -> tuple[Check, ...]:
    """Look at everything that can be looked at without an engine. Never raises for a bad config."""
    checks = {
        "environment": _environment,
        "algorithm": _algorithm,
        "asynchrony": _asynchrony,
        "model": _model,
        "prompts": _prompts,
    }
    return tuple(_run(name, partial(check, config)) for name, check in checks.items())


def require_valid(config: Config) -> None:
    """Raise `ConfigError` with everything `validate` finds wrong, each thing once."""
    wrong = dict.fromkeys(c.detail for c in validate(config) if not c.ok)
    if wrong:
        raise ConfigError("\n".join(wrong))


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except MoonmillError as e:
        return Check(name, False, str(e))


def _environment(config: Config) -> str:
    env = _make(config)
    return f"{config.env.id}: tools {', '.join(t.name for t in env.tool_specs) or 'none'}"


def _algorithm(config: Config) -> str:
    algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
    group = f", groups of {algorithm.group_size}" if algorithm.group_size > 1 else ", single rollouts"
    return f"{config.algorithm.preset}{group}{', with a critic' if algorithm.critic else ''}"


def _asynchrony(config: Config) -> str:
    window, batch = config.async_.window, config.learner.batch_rollouts
    if window is not None and window < batch:
        raise ConfigError(
            f"async.window: {window} is smaller than learner.batch_rollouts ({batch}), so a batch could never be "
            "taken; leave it out for twice the batch"
        )
    if config.sampling.temperature == 0:
        raise ConfigError("sampling.temperature: 0 is greedy, which explores nothing; train with 1.0")
    return f"at most {config.async_.max_staleness} versions stale, {config.async_.max_concurrent} episodes in flight"


def _model(config: Config) -> str:
    if not _may_exist(config.model.path):
        raise ConfigError(f"model.path: there is no folder {config.model.path}, and it is no hub id (owner/name)")
    load_renderer(config.model.path, config.model.renderer)
    return config.model.path


def _prompts(config: Config) -> str:
    """The first tasks of both splits leave room for an action."""
    if not _may_exist(config.model.path):
        return "not looked at: there is no model"
    env = _make(config)
    renderer = load_renderer(config.model.path, config.model.renderer)
    longest = 0
    splits = ["train", *([config.eval.split] if config.eval.samples else [])]
    for split, index in itertools.product(splits, range(_TASKS_LOOKED_AT)):
        task = Taskset(partial(_make, config), split, config.train.seed).task(index)
        tokens = len(renderer.prompt(task.messages(), env.tool_specs))
        if tokens >= config.model.max_length:
            raise ConfigError(
                f"model.max_length: task {task.id} of {config.env.id} has a prompt of {tokens} tokens, but the context "
                f"has {config.model.max_length}, and an action needs room too: raise model.max_length, or shorten the "
                "task"
            )
        longest = max(longest, tokens)
    return f"up to {longest} of {config.model.max_length} tokens in the first {_TASKS_LOOKED_AT} tasks"


def _may_exist(path: str) -> bool:
    """A folder, or what could be the id of a model on a hub."""
    return os.path.isdir(path) or _HUB_ID.fullmatch(path) is not None


def _make(config: Config) -> MultiTurnEnv:
    return make(config.env.id, **config.env.args)
