"""`moonmill envs record` and `replay`: an episode as a file, and whether it still goes as it did."""

import difflib
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import args_option, json_option, sandbox_option
from moonmill.cli.play import Chosen, episode_options, play_by_hand
from moonmill.cli.results import Command
from moonmill.cli.scripts import HUMAN, agent_called, agent_option, whole
from moonmill.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from moonmill.agents.replaying import Replay
    from moonmill.config import EnvConfig
    from moonmill.envs import MultiTurnEnv
    from moonmill.types import Rollout

_NAMED = 3
"""Ids that a message names."""


@click.command(cls=Command)
@episode_options
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Appended to: JSON lines.")
@agent_option(default=HUMAN)
@json_option
def record(chosen: Chosen, out: Path, player: str, as_json: bool) -> None:
    """Play one episode and write it into a file, to be replayed."""
    from contextlib import closing

    from msgspec.structs import replace

    from moonmill.agents.replaying import undecided, untold
    from moonmill.cli.output import console, print_json
    from moonmill.cli.transcripts import print_rollout
    from moonmill.jsonl import JsonlWriter, read_jsonl
    from moonmill.types import Rollout

    screen = console(sys.stderr if as_json else None)
    file = out.absolute()  # what is imported may change the working directory
    agent = agent_called(whole(player))
    known = {rollout.id for rollout in read_jsonl(file, Rollout)}
    with closing(JsonlWriter(file)) as writer:
        rollout = play_by_hand(chosen, screen) if agent is None else chosen.played_by(agent, chosen.factory())
        rollout = replace(rollout, id=_free(rollout.id, known))
        if why := undecided(rollout):
            said = f"nothing is recorded, for it could not be replayed: {why}"
        else:
            writer.append(rollout)
            why = untold(rollout)
            said = f"recorded in {out}"
            said += f"; it cannot be replayed: {why}" if why else f": moonmill envs replay {out}{_given_again(chosen)}"
    if agent is not None:
        print_rollout(screen, rollout)
    screen.print(said, style="dim")
    if as_json:
        print_json(rollout)
    if rollout.error or undecided(rollout):
        click.get_current_context().exit(1)


def _free(id: str, known: set[str]) -> str:
    """`id`, or with a number behind it what is not known yet."""
    return next(free for n in count(1) if (free := f"{id}-{n}" if n > 1 else id) not in known)


@click.command(cls=Command)
@click.argument("file", metavar="FILE|RUN", type=click.Path(path_type=Path))
@click.option("--rollout", "ids", multiple=True, metavar="ID", help="Only this one. May be repeated.")
@sandbox_option
@args_option
@json_option
def replay(file: Path, ids: tuple[str, ...], provider: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Play recorded episodes again, and show where one goes otherwise.

    FILE was written by `moonmill envs record`; RUN is a run's directory, with all that was trained on. The environment
    is given the recorded task, seed and messages of the model; what it answers, and the rewards, must be the same byte
    by byte. Ends with the exit code 1 where they are not, and with 2 where a rollout cannot be replayed: its program
    asked more of the model than its record tells.
    """
    from moonmill.agents.replaying import replay as play_again
    from moonmill.cli.output import console, print_json
    from moonmill.config import EnvConfig, SandboxConfig
    from moonmill.envs import SandboxService
    from moonmill.sandboxes.providers import make_provider
    from moonmill.signals import run_until_stopped

    make_provider(provider)
    rollouts, env = recorded_in(file, ids)
    factories = {r.env: _factory(env or EnvConfig(r.env), overrides) for r in rollouts}
    out = console(sys.stderr if as_json else None)

    async def work() -> "list[Replay]":
        done = []
        for rollout in rollouts:
            done.append(await play_again(rollout, factories[rollout.env]))
            _show(out, done[-1])
        return done

    with SandboxService(SandboxConfig(provider=provider)):
        done = run_until_stopped(work)
    differing = sum(one.difference is not None for one in done)
    passed_over = sum(bool(one.skipped or one.refused) for one in done)
    out.print(f"{len(done) - differing - passed_over} as recorded, {differing} otherwise, {passed_over} passed over")
    if as_json:
        print_json(done)
    if differing or any(one.refused for one in done):
        click.get_current_context().exit(1 if differing else 2)


def recorded_in(file: Path, ids: tuple[str, ...]) -> "tuple[list[Rollout], EnvConfig | None]":
    """The rollouts of a file or a run; of a run also its environment.

    Raises:
        ConfigError: there is no such file, or none of these ids in it.
    """
    from moonmill.config_io import load_config
    from moonmill.jsonl import read_jsonl
    from moonmill.rundir import RunDirectory
    from moonmill.types import Rollout

    env, log = None, file
    if file.is_dir():
        run = RunDirectory.open(file)
        log, env = run.rollouts, load_config(run.config).env
    elif not file.exists():
        raise ConfigError(f"there is no file {file}: give one of `moonmill envs record`, or a run's directory")
    known, found = [], []
    for rollout in read_jsonl(log, Rollout):
        known.append(rollout.id)
        if not ids or rollout.id in ids:
            found.append(rollout)
    if missing := [id for id in ids if id not in known]:
        shown = ", ".join(difflib.get_close_matches(missing[0], known, n=_NAMED, cutoff=0) or known[:_NAMED])
        raise ConfigError(f"{log} has no rollout {missing[0]!r}; it has {len(known)}, such as {shown or 'none'}")
    if not found:
        raise ConfigError(f"{log} has no rollouts")
    return found, env


def _factory(env: "EnvConfig", overrides: tuple[str, ...]) -> "Callable[[], MultiTurnEnv]":
    """What makes it, without the wrappers that keep files of their run and change nothing in an episode."""
    from msgspec.structs import replace

    from moonmill.config_io import make_env_config
    from moonmill.envs.wrappers import factory_of
    from moonmill.wrapper_config import CurriculumConfig, RecordConfig

    args = {**env.args, **make_env_config(env.id, overrides).args}
    wrappers = tuple(w for w in env.wrappers if not isinstance(w, CurriculumConfig | RecordConfig))
    return factory_of(replace(env, args=args, wrappers=wrappers))


def _show(out: "Console", done: "Replay") -> None:
    turns = f"{done.turns} turn{'s' * (done.turns != 1)}"
    if done.skipped:
        out.print(f"{done.id}: passed over: {done.skipped}, which its record does not decide", style="yellow")
    elif done.refused:
        out.print(f"{done.id}: cannot be replayed: {done.refused}", style="yellow")
    elif done.difference is None:
        out.print(f"{done.id}: as recorded, {turns}", style="green")
    else:
        out.print(f"{done.id}: goes otherwise at {done.difference.where}", style="red")
        out.print(f"  recorded: {done.difference.first}\n  now:      {done.difference.second}")


def _given_again(chosen: Chosen) -> str:
    """What a replay has to be told again."""
    from shlex import quote

    sandbox = () if chosen.provider == "local" else ("--sandbox", chosen.provider)
    given = (*sandbox, *(word for override in chosen.overrides for word in ("--set", override)))
    return "".join(f" {quote(word)}" for word in given)
