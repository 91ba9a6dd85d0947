"""The directory of a run.

    config.yaml       what was asked for
    rollouts.jsonl    every finished rollout, written before it can be trained on
    steps.jsonl       every learner step: what it consumed, what was dropped, its metrics
    events.jsonl      versions, evaluations, restarts, warnings
    checkpoints/      policy, critic and optimizers
    weights/          published versions that may still be asked for
    logs/             what engine and learner said
    learner.json      the config as the learner's process reads it

One process writes to it at a time: `lock` holds it. Folders are made at the start alone, and `require_held` is asked
before anything is written by its path: a folder that was removed, and may stand here again as another's run, is left
alone. A run has begun once a rollout has finished; until then nothing is lost by beginning again, with whatever config.
"""

import fcntl
import os
import shutil
import stat
import time
from pathlib import Path
from weakref import WeakSet

from moonmill.config import Config
from moonmill.config_io import differences, dump_config, load_config
from moonmill.errors import RunDirectoryError, RunError

_FIXED = ("env", "model", "sampling", "algorithm", "learner", "train.seed")
"""What is trained: it stays what it was for the whole of a run."""
_FREE = (
    *("learner.device", "learner.gradient_checkpointing", "learner.micro_batch_tokens"),
    *("learner.start_timeout", "learner.step_timeout"),
)
"""What of that may differ all the same: where it is computed, in how much memory, and in what time."""
_LOCK_SECONDS = 1.0
"""Who looks whether a run is in use holds its lock for an instant: to be refused takes longer."""
_LOCK_POLL_SECONDS = 0.02
_SHOWN = 200
"""Characters of a path that a message repeats."""


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
        self._lock_file = path / "lock"
        self._lock: int | None = None
        _open.add(self)

    @classmethod
    def create(cls, path: Path, config: Config) -> "RunDirectory":
        """A new run. Raises `RunDirectoryError` where one has begun already or nothing can be written."""
        run = cls(path)
        run.check(config, resume=False)
        run._prepare(config, resume=False)
        return run

    @classmethod
    def resume(cls, path: Path, config: Config) -> "RunDirectory":
        """An earlier run, to be continued with a config that trains the same thing."""
        run = cls.open(path)
        run.check(config, resume=True)
        run._prepare(config, resume=run.has_begun)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run, to read."""
        run = cls(path)
        if not os.path.exists(run.config):
            raise RunDirectoryError(f"{_shown(path)} is not a run directory: it has no config.yaml")
        return run

    @property
    def has_begun(self) -> bool:
        """A rollout has finished, or a step was made."""
        logs = (self.rollouts, self.steps)
        made = (c for c in self.checkpoints.glob("step-*") if c != self._before_the_first_step)
        return any(log.exists() and log.stat().st_size for log in logs) or any(made)

    def check(self, config: Config, *, resume: bool) -> None:
        """Refuse what `create` or `resume` would refuse, and touch nothing."""
        check_place(self.path)
        if not resume:
            if self.has_begun:
                raise RunDirectoryError(
                    f"{self.path} already holds a run: continue it with --resume, choose another run_dir, or remove "
                    "the folder"
                )
            if self.config.exists() and not self._lock_file.exists():
                raise RunDirectoryError(
                    f"run_dir: {_shown(self.path)} holds a config.yaml that is no run's, and a run would write its own "
                    "in its place: choose another run_dir"
                )
            return
        self.open(self.path)
        if not self.has_begun:
            return
        falls_over = _falls_over(config)
        changed = [
            f"{key}: {before!r:.100} then, {now!r:.100} now"
            for key, (before, now) in differences(load_config(self.config), config).items()
            if key not in _FREE and any(key == f or key.startswith(f"{f}.") for f in (*_FIXED, *falls_over))
        ]
        if changed:
            raise RunDirectoryError(
                "\n  ".join((f"{self.path} was begun with other values, and a run keeps what it trains:", *changed))
                + "\nSet them back, or start a new run (another run_dir). On --resume may differ: engine, async, eval, "
                f"sandbox, alarms, {', '.join(_FREE)}, and train but for {' and '.join(('train.seed', *falls_over))}"
            )

    def lock(self) -> None:
        """Hold the run until this process ends or `unlock` is called."""
        self._lock = os.open(self._lock_file, os.O_CREAT | os.O_RDWR, 0o644)
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                if time.monotonic() < end:
                    time.sleep(_LOCK_POLL_SECONDS)
                    continue
                self.unlock()
                raise RunDirectoryError(f"another process is training in {self.path}") from e
            self.require_held()
            return

    def watch(self) -> None:
        """Remember which folder stands here now, as `lock` does: for processes of the one that holds it."""
        try:
            self._lock = os.open(self._lock_file, os.O_RDONLY)
        except OSError as e:
            raise RunDirectoryError(
                f"{self.path} is not a run directory in use: {self._lock_file}: {e.strerror}"
            ) from e

    def require_held(self) -> None:
        """Raise `RunError` where the folder of `lock` or `watch` is here no more: nothing may be written then."""
        assert self._lock is not None
        try:
            if os.path.samestat(os.fstat(self._lock), os.stat(self._lock_file)):
                return
        except OSError:  # not there, or where we cannot look
            pass
        raise RunError(
            f"the run directory {_shown(self.path)} was removed, moved or replaced while the run was going on, so the "
            "run has ended. If it was moved, move it back and continue it with --resume"
        )

    def in_use(self) -> bool:
        """A process is training in it now."""
        try:
            lock = os.open(self._lock_file, os.O_RDONLY)
        except OSError:  # never locked, or by somebody whose runs we cannot read
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _before_the_first_step(self) -> Path:
        """The checkpoint of a run that was stopped before its first step."""
        return self.checkpoints / "step-000000"

    def _prepare(self, config: Config, *, resume: bool) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            if not resume:
                self._begin_again()
            for folder in (self.checkpoints, self.weights, self.logs):
                folder.mkdir(exist_ok=True)
            temporary = self.config.with_suffix(".tmp")
            temporary.write_text(dump_config(config))
            temporary.replace(self.config)
        except OSError as e:
            self.unlock()
            raise RunDirectoryError(f"cannot write the run directory {self.path}: {e.strerror}") from e

    def _begin_again(self) -> None:
        """Forget an attempt from which no rollout came. Called with the lock held."""
        if self.has_begun:
            self.unlock()
            raise RunDirectoryError(f"another process has begun a run in {self.path} meanwhile")
        if self.events.exists():
            self.events.unlink()
            shutil.rmtree(self._before_the_first_step, ignore_errors=True)


def _falls_over(config: Config) -> tuple[str, ...]:
    """What decides how fast a learning rate falls: steps that are done again would come out otherwise."""
    critic = config.algorithm.critic
    falls = config.learner.schedule != "constant" or (critic is not None and critic.schedule != "constant")
    return ("train.steps",) if falls else ()


def check_place(path: Path) -> None:
    """A folder that can be written, or a name one could be made under."""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            raise RunDirectoryError(f"run_dir: {_shown(path)} is a file: choose another run_dir, or remove it")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as e:  # too long, below a file, with a NUL
        why = getattr(e, "strerror", None) or e
        raise RunDirectoryError(f"run_dir: {_shown(path)} cannot be a folder: {why}; choose another run_dir") from e
    nearest = next((p for p in (path, *path.absolute().parents) if p.exists()), path)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"run_dir: {path} cannot be written: {nearest} is read-only or not ours")


def _shown(path: Path) -> str:
    text = str(path).replace("\0", "\\0")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_open: WeakSet[RunDirectory] = WeakSet()


def _unlock_fork() -> None:
    """What author's code forks shares our open files, locks included, and may outlive us."""
    for run in _open:
        run.unlock()


os.register_at_fork(after_in_child=_unlock_fork)
