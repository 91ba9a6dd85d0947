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

from moonmill.cli.options import json_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from moonmill.envs import ToolSpec
    from moonmill.types import Task

_POLL_SECONDS = 0.1


@click.command(cls=Command)
@click.argument("env_id", metavar="ID")
@click.option("--split", default="train", show_default=True, help="Which tasks.")
@click.option("--task", "index", type=click.IntRange(min=0), default=0, show_default=True, help="Which one of them.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the tasks and all chance in the episode.")
@json_option
def play(env_id: str, split: str, index: int, seed: int, as_json: bool) -> None:
    """Play one episode: you are the model.

    A line that begins with / calls a tool, as in /calculate 2*3 or /convert value=3.5 to=mi; any other is your answer.
    """
    import anyio

    from moonmill.agents.human import HumanAgent
    from moonmill.agents.runner import EpisodeRunner
    from moonmill.cli.output import console, print_json
    from moonmill.cli.transcripts import outcome, print_message
    from moonmill.envs import Taskset
    from moonmill.registry import make
    from moonmill.seeding import derive_seed

    factory = partial(make, env_id)
    out = console(sys.stderr if as_json else None)
    task = Taskset(factory, split, seed).task(index)
    for line in introduction(task, factory().tool_specs):
        out.print(line, style="dim")
    with contextlib.closing(Lines("> " if out.is_terminal else "")) as lines:
        runner = EpisodeRunner(env_id, factory, HumanAgent(lines.ask, partial(print_message, out)))
        rollout = anyio.run(partial(runner.run, task, id=f"play-{task.id}", seed=derive_seed(seed, split, index)))
    for line in outcome(rollout):
        out.print(line)
    if as_json:
        print_json(rollout)
    if rollout.error:
        click.get_current_context().exit(1)


def introduction(task: "Task", tools: "Sequence[ToolSpec]") -> list[str]:
    """What a player should know before the first message."""
    lines = [f"task {task.id}{f', level {task.level}' if task.level else ''}"]
    for tool in tools:
        arguments = tool.parameters.get("properties", {})
        lines.append(f"/{tool.name} {' '.join(f'{name}=…' for name in arguments)}: {tool.description}")
    return lines


class Lines:
    """Lines from stdin, for a reader in another thread that `close` sets free: `input` would hold it until Enter.

    Args:
        prompt: shown before each line.
    """

    def __init__(self, prompt: str) -> None:
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
