"""Environments of verifiers that were added, each with verifiers in a Python environment of its own."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.envs.adapters.verifiers.worker import ProcessWorker
from moonmill.envs.elsewhere import wait_on_thread
from moonmill.installing import (
    Guest,
    Say,
    Step,
    cache_folder,
    install,
    installing,
    interpreter_in,
    making,
    read_marker,
)

VERSIONS = ("0.4.0", "0.3.1")
"""Of verifiers, the newest first; only 0.3.1 has the first API (`load_environment`) besides the second."""
MARKER = "moonmill-verifiers.json"
_PYTHONS = ((3, 11), (3, 14))
_GIB = 1.0
_LOOK = "import verifiers; print(verifiers.__version__)"


class Added(Struct, frozen=True):
    """What is known of an environment that was added."""

    id: str
    python: str
    """The interpreter that has verifiers and the environment's package."""
    version: str
    """Of verifiers."""
    api: str
    """`v1`, or `v0` for the first."""
    packages: tuple[str, ...] = ()


class _Made(Struct, frozen=True):
    version: str


class Found(Struct, frozen=True):
    """What was seen when an environment was tried."""

    added: Added
    splits: dict[str, str]
    """The first task of each split, by its id; those without tasks are left out."""


def module_name(id: str) -> str:
    """The module that verifiers imports for `id`."""
    return id.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()


def folder_of(id: str) -> Path:
    """Where the Python environment for `id` is made, unless another place is named."""
    return cache_folder("verifiers", module_name(id))


def find(id: str) -> Added | None:
    """The environment `id`, if it was added."""
    found = read_marker(_record_of(id), Added)
    return found if found is not None and os.access(found.python, os.X_OK) else None


def all_added() -> tuple[Added, ...]:
    """All that were added, in the order of their ids."""
    found = (read_marker(path, Added) for path in sorted(cache_folder("verifiers").glob("*.json")))
    return tuple(added for added in found if added is not None)


def add(
    id: str,
    packages: Sequence[str],
    args: Mapping[str, Any],
    *,
    version: str,
    folder: Path,
    python: str,
    anew: bool,
    say: Say,
    detail: Say,
) -> Found:
    """Make a Python environment with verifiers and `packages`, or take the one in `folder`, and try `id` in it.

    Args:
        id: as verifiers knows it.
        packages: folders, files and requirements for pip.
        args: of the environment, for trying it.
        version: of verifiers.
        folder: where.
        python: the interpreter it is made with.
        anew: make it from scratch, even where there is one.
        say: told each step as it begins.
        detail: told every line that a step prints.

    Raises:
        ConfigError: the interpreter, the folder or the space in it will not do.
        InstallError: a step failed.
        EnvCodeError: the environment cannot be loaded.
    """
    inside = str(interpreter_in(folder))
    there = read_marker(folder / MARKER, _Made)
    again = there is not None and there.version == version and not anew
    wanted = tuple(os.path.abspath(p) if os.path.exists(p) else p for p in packages)
    steps = [
        *([] if again else [making(folder, python)]),
        installing(folder, f"verifiers=={version}", *wanted),
        Step("importing verifiers", (inside, "-P", "-c", _LOOK)),
    ]
    guest = Guest("verifiers", "moonmill envs add", MARKER, f"verifiers=={version}", _GIB, _PYTHONS)
    made = install(guest, folder, python, steps, say, detail, _Made)
    say(f"trying {id}")
    worker = ProcessWorker(inside, id, args)
    api = wait_on_thread(worker.asking({"do": "look"}))["api"]
    splits = {}
    for split in ("train", "eval"):
        rows = wait_on_thread(worker.asking({"do": "rows", "split": split, "start": 0, "count": 1}))["rows"]
        if rows:
            splits[split] = rows[0]["name"]
    added = Added(id, inside, made.version, api, wanted)
    record = _record_of(id)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(msgspec.json.encode(added))
    return Found(added, splits)


def _record_of(id: str) -> Path:
    return cache_folder("verifiers", f"{module_name(id)}.json")
