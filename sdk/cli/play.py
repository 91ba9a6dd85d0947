"""`moonmill envs play`: a person at the terminal in the model's place."""

import contextlib
import os
import select
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import args_option, json_option
from moonmill.cli.results import Command
from moonmill.errors import MoonmillError
from moonmill.types import StopReason

if TYPE_CHECKING:
    from moonmill.envs import ToolSpec
    from moonmill.types import Task

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


@click.command(cls=Command)
@click.argument("env_id", metavar="ID")
@click.option("--split", default="train", show_default=True, help="Which tasks.")
@click.option("--task", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Which one of them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the tasks and all chance in the episode.")
@click.option(
    "--sandbox",
    "provider",
    default="local",
    show_default=True,
    metavar="PROVIDER",
    help="What gives the episode's sandbox: local, docker, unsafe-subprocess, or module:factory.",
)
@args_option
@json_option
def play(
    env_id: str, split: str, index: int, seed: int, provider: str, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Play one episode: you are the model.

    A line that begins with / calls a tool, as in /calculate 2*3, /convert 3.5 mi or /convert value=3.5 to=mi; any other
    is your answer. /help, /tools and /quit are for you.
    """
    from moonmill.agents.human import HINT, HumanAgent
    from moonmill.agents.runner import EpisodeRunner
    from moonmill.cli.output import console, print_json
    from moonmill.cli.transcripts import outcome, print_message
    from moonmill.config import SandboxConfig
    from moonmill.config_io import make_env_config
    from moonmill.envs import SandboxService, Taskset
    from moonmill.registry import make
    from moonmill.sandboxes.providers import make_provider
    from moonmill.seeding import derive_seed
    from moonmill.signals import run_until_stopped
    from moonmill.types import Message

    make_provider(provider)  # whether it can be had, before anybody plays
    factory = partial(make, env_id, **make_env_config(env_id, overrides).args)
    out = console(sys.stderr if as_json else None)
    task = Taskset(factory, split, seed).task(index)
    lines = Lines("> " if out.is_terminal else "")
    for line in (*introduction(task, factory().tool_specs), HINT):
        out.print(line, style="dim")
    shown: list[Message] = []

    def show(message: Message) -> None:
        shown.append(message)
        print_message(out, message)

    with contextlib.closing(lines), SandboxService(SandboxConfig(provider=provider)):
        agent = HumanAgent(lines.ask, show, partial(out.print, style="dim"))
        runner = EpisodeRunner(env_id, factory, agent)
        rollout = run_until_stopped(
            partial(runner.run, task, id=f"play-{task.id}", seed=derive_seed(seed, split, index))
        )
    for message in rollout.messages[len(shown) + len(rollout.turn_rewards) :]:  # what answered the last turn
        print_message(out, message)
    out.print(f"\nthe episode is over: {_WHY[rollout.stop_reason]}", style="bold")
    for line in outcome(rollout):
        out.print(line)
    if as_json:
        print_json(rollout)
    if rollout.error:
        click.get_current_context().exit(1)


def introduction(task: "Task", tools: "Sequence[ToolSpec]") -> list[str]:
    """What a player should know before the first message."""
    from moonmill.agents.human import usage

    level = f", level {task.level}" if task.level else ""
    return [f"task {task.id}{level}", *(f"{usage(tool)}: {tool.description}" for tool in tools)]


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
