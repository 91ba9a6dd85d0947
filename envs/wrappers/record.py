"""Rollouts as lines of JSON."""

import threading
from functools import cache
from pathlib import Path

from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.wrapper import Wrapper
from moonmill.jsonl import JsonlWriter
from moonmill.types import Rollout


class Record(Wrapper):
    """Appends every rollout that was scored to a file, which all episodes of the process share.

    A rollout that cannot be written has failed.

    Args:
        env: what is wrapped.
        path: of the file.
    """

    def __init__(self, env: MultiTurnEnv, *, path: str) -> None:
        super().__init__(env)
        self._path = Path(path).absolute()

    def scored(self, rollout: Rollout) -> Rollout:
        shared_file(self._path).append(rollout)
        return rollout


class SharedFile:
    """One writer for all threads of the process."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._writer = JsonlWriter(path)

    def append(self, record: object) -> None:
        with self._lock:
            self._writer.append(record)


@cache
def shared_file(path: Path) -> SharedFile:
    """That of `path`, opened when it is first asked for.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    return SharedFile(path)
