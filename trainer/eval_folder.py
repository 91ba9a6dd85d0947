"""The folder of an evaluation: what `moonmill eval --out` writes.

    settings.json     what is played, and by whom
    rollouts.jsonl    every rollout, written when it has finished
    results.json      the figures, once all are there

What always holds: all rollouts were played with the settings that stand there; of one index the last line counts, for
what could not be scored is played again when the evaluation goes on; one process writes at a time. A kill loses the
episodes that were running and no others.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.config import Config, EnvConfig
from moonmill.config_io import differences
from moonmill.errors import RunDirectoryError
from moonmill.jsonl import JsonlWriter, bring_to_disk, read_jsonl
from moonmill.reporting import EvalResult
from moonmill.trainer.outcomes import Outcome, outcome_of
from moonmill.types import Rollout, Sampling
from moonmill.wrapper_config import WrapperConfig


class EvalSettings(Struct, frozen=True):
    """All that decides what is played. How many episodes are in flight, and on which engine's cores, does not."""

    player: dict[str, Any]
    """A model and how it is run, an API and the model's name there, or an agent and a digest of its code."""
    envs: dict[str, dict[str, Any]]
    """The environments' arguments, by their ids."""
    tasks: int
    samples: int
    temperatures: tuple[float, ...]
    split: str
    seed: int
    success: float
    sampling: Sampling | None
    """None of a script, which draws nothing from a model; it stands under temperature 0."""
    wrappers: dict[str, tuple[WrapperConfig, ...]] = {}
    """What is put around an environment, by its id; nothing around those that are not named."""

    @property
    def is_scripted(self) -> bool:
        return self.sampling is None

    def block(self, env: str, temperature: float) -> range:
        """The indexes of the rollouts of an environment at a temperature; those of a task stand together."""
        number = list(self.envs).index(env) * len(self.temperatures) + self.temperatures.index(temperature)
        size = self.tasks * self.samples
        return range(number * size, (number + 1) * size)


def settings_of(config: Config, envs: Sequence[EnvConfig], player: dict[str, Any]) -> EvalSettings:
    """The settings of an evaluation of `player` with what `config` says of it."""
    asked = config.eval
    return EvalSettings(
        player=player,
        envs={env.id: env.args for env in envs},
        tasks=asked.tasks,
        samples=asked.samples,
        temperatures=tuple(dict.fromkeys(asked.temperatures)),
        split=asked.split,
        seed=config.train.seed,
        success=asked.success,
        # It is `temperatures` that counts.
        sampling=None if "agent" in player else msgspec.structs.replace(config.sampling, temperature=1.0),
        wrappers={env.id: env.wrappers for env in envs if env.wrappers},
    )


class EvalFolder:
    """An evaluation's log, open for its one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # what is played may change the working directory
        self.outcomes = read_outcomes(self.path)
        """By their index."""
        self._log = JsonlWriter(self.path / "rollouts.jsonl")

    def keep(self, rollout: Rollout) -> None:
        """Write a rollout down."""
        self._log.append(rollout)

    def finish(self, results: Sequence[EvalResult]) -> None:
        """Write the figures, and wait for the disk."""
        self._log.sync()
        _write(self.path / "results.json", results)

    def close(self) -> None:
        self._log.close()


@contextmanager
def evaluating(path: Path, settings: EvalSettings) -> Iterator[EvalFolder]:
    """The folder, made, or gone on with.

    Raises:
        RunDirectoryError: it holds something else, was begun with other settings, is in use, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not (path / "eval.lock").exists():
            raise RunDirectoryError(f"--out: {path} holds something else than an evaluation: give another folder")
        lock = os.open(path / "eval.lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as e:
        raise RunDirectoryError(f"--out: cannot write to {path}: {e.strerror or e}") from e
    try:
        _take(lock, path)
        _begin(path, settings)
        folder = EvalFolder(path)
        try:
            yield folder
        finally:
            folder.close()
    finally:
        os.close(lock)


def read_settings(path: Path) -> EvalSettings:
    """What is played in `path`.

    Raises:
        RunDirectoryError: it is no evaluation's folder.
    """
    file = path / "settings.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=EvalSettings)
    except OSError as e:
        if (path / "config.yaml").is_file():
            raise RunDirectoryError(
                f"{path} is a run: evaluate it first, with `moonmill eval {path} --out evals/{path.absolute().name}`, "
                "and give that folder"
            ) from e
        raise RunDirectoryError(f"{path} is no folder of `moonmill eval --out`: {file}: {e.strerror}") from e
    except msgspec.MsgspecError as e:
        raise RunDirectoryError(f"{file} cannot be read: {e}") from e


def read_outcomes(path: Path) -> dict[int, Outcome]:
    """What has become of the rollouts so far, by their index."""
    return {rollout.index: outcome_of(rollout) for rollout in read_jsonl(path / "rollouts.jsonl", Rollout)}


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise RunDirectoryError(f"--out: another process is evaluating in {path}") from e


def _begin(path: Path, settings: EvalSettings) -> None:
    """Write the settings, unless rollouts were played with others."""
    if next(iter(read_jsonl(path / "rollouts.jsonl", Rollout)), None) is not None:
        if changed := differences(read_settings(path), settings):
            told = [f"{key}: {before!r:.100} then, {now!r:.100} now" for key, (before, now) in changed.items()]
            raise RunDirectoryError(
                "\n  ".join((f"--out: {path} was begun with other settings, so it cannot go on:", *told))
                + "\nSet them back, or give another folder"
            )
        return
    _write(path / "settings.json", settings)


def _write(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        bring_to_disk(temporary)
        temporary.replace(path)
    except OSError as e:
        raise RunDirectoryError(f"cannot write {path}: {e.strerror}") from e
