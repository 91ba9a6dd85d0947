"""What is known of conversations before a run: does the chat format fit the environment, do prompts fit the model."""

import itertools
from typing import TYPE_CHECKING

from moonmill.config import Config
from moonmill.envs import Taskset
from moonmill.envs.lifecycle import prompt_of
from moonmill.envs.wrappers import factory_of
from moonmill.errors import ConfigError
from moonmill.trainer.checks import Warned

if TYPE_CHECKING:
    from moonmill.agents.rendering import TurnRenderer

_TASKS_LOOKED_AT = 16
_LITTLE = 0.25
"""Share of a turn's most tokens; where less is left, most turns are likely to be cut off."""


def describe_renderer(config: Config) -> str:
    """The chat format, and what it can do.

    Raises:
        RenderError: as `load_renderer` raises.
    """
    renderer = _load_renderer(config)
    return f"{renderer.name}: {renderer.capabilities}"


def describe_prompts(config: Config) -> str | Warned:
    """The chat format can write the first tasks of both splits, and they leave room for an action.

    Raises:
        ConfigError: it cannot, or they do not.
        MoonmillError: as environment and renderer raise.
    """
    from moonmill.agents.telling import warning_of_untold

    factory = factory_of(config.env)
    env = factory()
    renderer = _load_renderer(config)
    if env.tool_specs and not renderer.capabilities.turns:
        raise ConfigError(
            f"model.renderer: {renderer.name!r} can put nothing behind a turn of the model {config.model.path} without "
            f"changing its tokens, and the tools of {config.env.id} have results: name the model's family"
        )
    longest = 0
    splits = ["train", *([config.eval.split] if config.eval.tasks else [])]
    tasksets = {split: Taskset(factory, split, config.train.seed) for split in splits}
    for split, index in itertools.product(splits, range(_TASKS_LOOKED_AT)):
        env.task = task = tasksets[split].task(index)
        prompt = prompt_of(env)
        if not renderer.capabilities.system and any(message.role == "system" for message in prompt):
            raise ConfigError(
                f"model.renderer: the chat format of the model {config.model.path} has no system messages, and task "
                f"{task.id} of {config.env.id} begins with one: say it in the user's message, or take a model whose "
                "format has them"
            )
        tokens = len(renderer.prompt(prompt, env.tool_specs))
        if tokens >= config.model.max_length:
            raise ConfigError(
                f"model.max_length: task {task.id} of {config.env.id} has a prompt of {tokens} tokens, but the context "
                f"has {config.model.max_length}, and an action needs room too: raise model.max_length, or shorten the "
                "task"
            )
        longest = max(longest, tokens)
    fits = f"up to {longest} of {config.model.max_length} tokens in the first {_TASKS_LOOKED_AT} tasks"
    warnings = [warning_of_untold(renderer, env.tool_specs, config.env.id)]
    room, turn = config.model.max_length - longest, config.sampling.max_tokens
    if room < _LITTLE * turn:
        warnings.append(
            f"the longest leaves {room} tokens for all that follows, and one turn may take {turn} "
            "(sampling.max_tokens): raise model.max_length"
        )
    warning = "; ".join(filter(None, warnings))
    return Warned(fits, warning) if warning else fits


def _load_renderer(config: Config) -> "TurnRenderer":
    from moonmill.agents.rendering import load_renderer  # transformers with it

    return load_renderer(config.model.path, config.model.renderer, config.model.tool_format)
