"""`--agent`: what plays in a model's place. `moonmill envs record` and `moonmill eval` take the same."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moonmill.errors import ConfigError

if TYPE_CHECKING:
    from moonmill.agents.agent import Agent

F = TypeVar("F", bound=Callable[..., Any])

HUMAN, RANDOM = "human", "random"


def agent_option(default: str | None) -> Callable[[F], F]:
    """`--agent` as the argument `player`."""
    return click.option(
        "--agent",
        "player",
        default=default,
        show_default=True,
        help="Who plays: human (only where one episode is played), random, or file.py:function or module:function, "
        "which is given the messages so far and returns the next.",
    )


def whole(player: str) -> str:
    """`--agent` with a file by its whole path: what is imported may change the working directory."""
    file, colon, function = player.rpartition(":")
    return f"{Path(file).resolve()}{colon}{function}" if file.endswith(".py") else player


def agent_called(player: str) -> "Agent | None":
    """The agent of `--agent`, None for a person.

    Raises:
        ConfigError: there is none of that name.
    """
    from moonmill.agents.scripted import RandomAgent, ScriptedAgent
    from moonmill.registry import resolve

    if player == HUMAN:
        return None
    if player == RANDOM:
        return RandomAgent()
    if ":" not in player:
        near = difflib.get_close_matches(player, (HUMAN, RANDOM), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"--agent: {player!r} is neither human nor random, nor a place such as file.py:function{hint}"
        )
    return ScriptedAgent(resolve(player, "function"), player)
