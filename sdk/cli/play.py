"""`moonmill envs play`: a person at the terminal in the model's place."""

import contextlib
import functools
import os
import select
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from msgspec import Struct

from moonmill.cli.options import args_option, json_option, sandbox_option
from moonmill.cli.results import Command
from moonmill.errors import MoonmillError
from moonmill.types import StopReason

if TYPE_CHECKING:
    from rich.console import Console

    from moonmill.agents.agent import Agent
    from moonmill.envs import MultiTurnEnv
    from moonmill.types import Rollout, Task

F = TypeVar("F", bound=Callable[..., Any])

_POLL_SECONDS = 0.1
_WHY = {
    StopReason.ANSWERED: "your message called no tool, so it was your answer",
    StopReason.STOPPED: "the environment ended it",
    StopReason.MAX_TURNS: "its turns are used up",
    StopReason.MAX_TOKENS: "its tokens are used up",
    StopReason.LENGTH: "a turn was cut off",
    StopReason.TIME_LIMIT: "its time is used up",
    StopReason.PROMPT_TOO_LONG: "its prompt leaves no room for an answer",
    StopReason.ENGINE_ERROR: "you could not be asked",
    StopReason.ENV_ERROR: "the environment's code failed",
    StopReason.SANDBOX_ERROR: "its sandbox could not be had, or was lost",
    StopReason.SCORING_ERROR: "a reward or a metric could not be computed",
}


def episode_options(function: F) -> F:
    """Which episode: the environment's id and what decides its task, its chance and its sandbox, as one `Chosen`."""

    @click.argument("env_id", metavar="ID")
    @click.option("--split", default="train", show_default=True, help="Which tasks.")
    @click.option(
        "--task", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Which one of them."
    )
    @click.option("--seed", type=int, default=0, show_default=True, help="Decides the tasks and all chance.")
    @sandbox_option
    @args_option
    @functools.wraps(function)
    def command(
        env_id: str, split: str, index: int, seed: int, provider: str, overrides: tuple[str, ...], **rest: Any
    ) -> Any:
        return function(Chosen(env_id, split, index, seed, provider, overrides), **rest)

    return cast(F, command)


class Chosen(Struct, frozen=True):
    """The episode that a command's options choose."""

    env_id: str
    split: str
    index: int
    seed: int
    provider: str
    overrides: tuple[str, ...]

    def factory(self) -> "Callable[[], MultiTurnEnv]":
        """What makes its environment.

        Raises:
            ConfigError: the provider of its sandbox cannot be had, or the arguments are none.
        """
        from moonmill.config_io import make_env_config
        from moonmill.registry import make
        from moonmill.sandboxes.providers import make_provider

        make_provider(self.provider)
        return partial(make, self.env_id, **make_env_config(self.env_id, self.overrides).args)

    def played_by(self, agent: "Agent", factory: "Callable[[], MultiTurnEnv]") -> "Rollout":
        """The episode, as `agent` plays it."""
        from moonmill.agents.runner import EpisodeRunner
        from moonmill.config import SandboxConfig
        from moonmill.envs import SandboxService, Taskset
        from moonmill.seeding import derive_seed
        from moonmill.signals import run_until_stopped

        task = Taskset(factory, self.split, self.seed).task(self.index)
        runner = EpisodeRunner(self.env_id, factory, agent)
        seed = derive_seed(self.seed, self.split, self.index)
        with SandboxService(SandboxConfig(provider=self.provider)):
            return run_until_stopped(partial(runner.run, task, id=f"play-{task.id}", seed=seed))


@click.command(cls=Command)
@episode_options
@json_option
def play(chosen: Chosen, as_json: bool) -> None:
    """Play one episode: you are the model.

    A line that begins with / calls a tool, as in /calculate 2*3, /convert 3.5 mi or /convert value=3.5 to=mi; any other
    is your answer. /help, /tools, /last and /quit are for you.
    """
    from moonmill.cli.output import console, print_json

    rollout = play_by_hand(chosen, console(sys.stderr if as_json else None))
    if as_json:
        print_json(rollout)
    if rollout.error:
        click.get_current_context().exit(1)


def play_by_hand(chosen: Chosen, out: "Console") -> "Rollout":
    """The episode as a person at the terminal plays it: shown on `out`, from the first message to the reward."""
    from moonmill.agents.human import HINT, HumanAgent
    from moonmill.cli.transcripts import outcome, print_message
    from moonmill.envs import Taskset
    from moonmill.types import Message

    factory = chosen.factory()
    task = Taskset(factory, chosen.split, chosen.seed).task(chosen.index)
    lines = Lines("> " if out.is_terminal else "")
    env = factory()
    for line in (*introduction(task, env), HINT):
        out.print(line, style="dim")
    shown: list[Message] = []

    def show(message: Message) -> None:
        shown.append(message)
        print_message(out, message)

    with contextlib.closing(lines):
        agent = HumanAgent(lines.ask, show, partial(out.print, style="dim"), env.tool_specs)
        rollout = chosen.played_by(agent, factory)
    # What answered the last turn; where a program plays, nothing does.
    for message in rollout.messages[len(shown) + len(rollout.turn_rewards) :] if rollout.turn_rewards else ():
        print_message(out, message)
    out.print(f"\nthe episode is over: {_WHY[rollout.stop_reason]}", style="bold")
    for line in outcome(rollout):
        out.print(line)
    return rollout


def introduction(task: "Task", env: "MultiTurnEnv") -> list[str]:
    """What a player should know before the first message."""
    from moonmill.agents.human import usage

    level = f", level {task.level}" if task.level else ""
    tools = (f"{usage(tool)}: {tool.description}" for tool in env.tool_specs)
    return [f"task {task.id}{level}, at most {env.max_turns} turns", *tools]


class Lines:
    """Lines from stdin, for a reader in another thread that `close` sets free: `input` would hold it until Enter.

    Args:
        prompt: shown before each line.

    Raises:
        MoonmillError: there is no stdin.
    """

    def __init__(self, prompt: str) -> None:
        if sys.stdin is None:
            raise MoonmillError("your lines cannot be read: stdin is closed; leave it open, or lead a file into it")
        self._prompt = prompt
        self._fd = sys.stdin.fileno()
        self._read = b""
        self._closed = threading.Event()

    def ask(self) -> str:
        """The next line, without its end. Raises `EOFError` where there is none, or after `close`."""
        click.echo(self._prompt, nl=False, err=True)
        while b"\n" not in self._read:
            if self._closed.is_set():
                raise EOFError
            if not select.select([self._fd], [], [], _POLL_SECONDS)[0]:
                continue
            data = os.read(self._fd, 1 << 16)
            if not data and not self._read:
                raise EOFError
            self._read += data or b"\n"
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        self._closed.set()
