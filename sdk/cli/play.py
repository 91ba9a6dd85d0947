"""`moonmill envs play`: a person at the terminal in the model's place."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import json_option

if TYPE_CHECKING:
    from moonmill.envs import ToolSpec
    from moonmill.types import Task


@click.command()
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
    agent = HumanAgent(ask=partial(_ask, out.is_terminal), show=partial(print_message, out))
    run = partial(
        EpisodeRunner(env_id, factory, agent).run, task, id=f"play-{task.id}", seed=derive_seed(seed, split, index)
    )
    rollout = anyio.run(run)
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


def _ask(prompted: bool) -> str:
    return input("> " if prompted else "")
