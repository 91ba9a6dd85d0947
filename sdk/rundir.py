"""The directory of a run.

    config.yaml       what was asked for
    rollouts.jsonl    every finished rollout, written before it can be trained on
    steps.jsonl       every learner step: what it consumed, what was dropped, its metrics
    events.jsonl      versions, evaluations, restarts, warnings
    checkpoints/      policy, critic and optimizers
    weights/          published versions that may still be asked for
    logs/             what engine and learner said

One process writes to it at a time: `lock` holds it.
"""

import fcntl
import os
from pathlib import Path

from moonmill.config import Config
from moonmill.config_io import dump_config, load_config
from moonmill.errors import RunDirectoryError

_FIXED = ("env", "model", "sampling", "algorithm", "learner")


class RunDirectory:
    """Paths of a run, and its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.rollouts = path / "rollouts.jsonl"
        self.steps = path / "steps.jsonl"
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights"
        self.logs = path / "logs"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunDirectory":
        """A new run. Raises `RunDirectoryError` where one stands already or nothing can be written."""
        run = cls(path)
        if run.steps.exists() or run.rollouts.exists():
            raise RunDirectoryError(
                f"{path} already holds a run: continue it with --resume, choose another run_dir, or remove the folder"
            )
        run._prepare(config)
        return run

    @classmethod
    def resume(cls, path: Path, config: Config) -> "RunDirectory":
        """An earlier run, to be continued with a config that trains the same thing."""
        run = cls.open(path)
        before = load_config(run.config)
        for name in _FIXED:
            if getattr(before, name) != getattr(config, name):
                raise RunDirectoryError(
                    f"{path} was made with other values under `{name}`, and a run keeps what it was begun with: "
                    f"{getattr(before, name)} then, {getattr(config, name)} now. Set them back, or start a new run"
                )
        if before.train.seed != config.train.seed:
            raise RunDirectoryError(f"{path} was begun with train.seed {before.train.seed}, not {config.train.seed}")
        run._prepare(config)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run, to read."""
        run = cls(path)
        if not run.config.exists():
            raise RunDirectoryError(f"{path} is not a run directory: it has no config.yaml")
        return run

    def lock(self) -> None:
        """Hold the run until this process ends or `unlock` is called."""
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self.unlock()
            raise RunDirectoryError(f"another process is training in {self.path}") from e

    def in_use(self) -> bool:
        """A process is training in it now."""
        try:
            self.lock()
        except RunDirectoryError:
            return True
        self.unlock()
        return False

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _prepare(self, config: Config) -> None:
        try:
            for folder in (self.path, self.checkpoints, self.weights, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
            self.lock()
            temporary = self.config.with_suffix(".tmp")
            temporary.write_text(dump_config(config))
            temporary.replace(self.config)
        except OSError as e:
            raise RunDirectoryError(f"cannot write the run directory {self.path}: {e.strerror}") from e
