"""Checkpoint folders: `checkpoints/step-000020/`, whole or not there at all.

What always holds: a folder with such a name was complete once. It is filled under another name, flushed to disk, and
renamed in one step; a kill at any moment leaves the older checkpoints as they were, and rubbish that the next one
clears away. What a disk or a hand does to it later shows in its list of files, and the one before takes its place.

    policy/              a model folder: configuration, weights, tokenizer; or an adapter's, with the tokenizer
    critic.safetensors   where there is a critic
    optimizers.pt        optimizers, their schedules, random state
    state.json           step and version
    files.json           length and CRC of every file
"""

import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from moonmill.errors import RunDirectoryError
from moonmill.jsonl import bring_to_disk

_NAME = re.compile(r"step-\d+")
_UNFINISHED = ".unfinished-"
_LIST = "files.json"
_NEEDED = ("policy/", "optimizers.pt", "state.json")
"""No checkpoint is without them: the files, and some file in the folder."""
_CHUNK = 1 << 20

_Listed = dict[str, tuple[int, int]]
"""Length and CRC of each file, by its path in the checkpoint."""


class _Counters(msgspec.Struct):
    """What is read here of `state.json`."""

    version: int


def write(run_dir: Path, step: int, keep: int, fill: Callable[[Path], None], back_to: int | None = None) -> Path:
    """Make the checkpoint of a step and remove old ones.

    A checkpoint of this step that stands already is left as it is: a run is deterministic, so it is the same.

    Args:
        run_dir: the run's directory, in which the folder `checkpoints` stands.
        step: learner steps done.
        keep: so many checkpoints remain, this one among them.
        fill: writes the content into an empty folder.
        back_to: those of later steps than this remain as well, and the newest before them. None for no such step.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    folder = run_dir / "checkpoints"
    final = folder / f"step-{step:06d}"
    try:
        _clear_unfinished(folder)
        if not final.exists():
            unfinished = folder / f"{_UNFINISHED}{final.name}"
            try:
                unfinished.mkdir()
                fill(unfinished)
                (unfinished / _LIST).write_bytes(msgspec.json.encode(_listing(unfinished)))
                flush(unfinished)
                unfinished.rename(final)
            except BaseException:  # a full disk gets its room back, so that the logs can still say so
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
            bring_to_disk(folder)
        for old in _superfluous(_complete(folder), keep, back_to):
            _remove(old)
    except OSError as e:
        raise RunDirectoryError(f"cannot write the checkpoint {final}: {e.strerror or e}") from e
    return final


def latest(run_dir: Path) -> Path | None:
    """The newest checkpoint of a run, None where there is none."""
    return next(reversed(_complete(run_dir / "checkpoints")), None)


def newest_step(run_dir: Path) -> int:
    """The step of the newest checkpoint, damaged or not; 0 where there is none."""
    found = latest(run_dir)
    return step_of(found) if found else 0


def newest_of(run_dir: Path, first: int, last: int) -> Path | None:
    """The newest checkpoint of the steps `first` to `last`, None where there is none."""
    found = [path for path in _complete(run_dir / "checkpoints") if first <= step_of(path) <= last]
    return found[-1] if found else None


def forget(run_dir: Path, steps: Collection[int]) -> None:
    """Remove the checkpoints of these steps."""
    for path in _complete(run_dir / "checkpoints"):
        if step_of(path) in steps:
            _remove(path)


def forget_after(run_dir: Path, step: int) -> list[str]:
    """Remove the checkpoints of later steps: a power loss can leave one that is newer than the run's logs.

    Says of each what is wrong with it.
    """
    told = []
    for path in _complete(run_dir / "checkpoints"):
        if step_of(path) > step:
            _remove(path)
            told.append(f"{path} is newer than step {step}, the last in the run's logs")
    return told


def forget_damaged(run_dir: Path) -> list[str]:
    """Remove the newest checkpoints as long as they are damaged; says of each what is wrong with it.

    What they held is made again, from the one before or from the beginning.
    """
    told = []
    while (newest := latest(run_dir)) and (damage := damage_of(newest)):
        told.append(f"{newest} is damaged: {damage}")
        _remove(newest)
    return told


def damage_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, None where it is as it was written."""
    try:
        listed = msgspec.json.decode((checkpoint / _LIST).read_bytes(), type=_Listed)
        found = _listing(checkpoint)
    except (OSError, msgspec.MsgspecError) as e:
        return f"{_LIST} or what it lists cannot be read: {e}"
    if missing := listed.keys() - found.keys():
        return f"{min(missing)} is missing"
    if changed := sorted(name for name in listed if found[name] != listed[name]):
        return f"{changed[0]} is not what was written"
    lacking = (needed for needed in _NEEDED if not any(name.startswith(needed) for name in listed))
    return next((f"{needed} is not in {_LIST}" for needed in lacking), None)


def version_of(model: Path) -> int | None:
    """The version of a checkpoint's policy; None for a model that is in no checkpoint."""
    try:
        return msgspec.json.decode((model.resolve().parent / "state.json").read_bytes(), type=_Counters).version
    except (OSError, msgspec.MsgspecError):
        return None


def flush(folder: Path) -> None:
    """Bring a folder and everything in it to the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            bring_to_disk(Path(parent, name))
        bring_to_disk(Path(parent))


def _complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=step_of)


def _superfluous(complete: list[Path], keep: int, back_to: int | None) -> list[Path]:
    old = complete[:-keep]
    if back_to is None:
        return old
    return [path for path in old if step_of(path) <= back_to][:-1]


def step_of(checkpoint: Path) -> int:
    """The step behind a checkpoint, by its name."""
    return int(checkpoint.name.removeprefix("step-"))


def _listing(folder: Path) -> _Listed:
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / _LIST)
    return {str(path.relative_to(folder)): (path.stat().st_size, _crc(path)) for path in files}


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _remove(checkpoint: Path) -> None:
    # First under a name that `latest` passes over: a kill half-way must not leave half a checkpoint.
    doomed = checkpoint.with_name(f"{_UNFINISHED}{checkpoint.name}")
    try:
        checkpoint.rename(doomed)
        _delete(doomed)
    except OSError as e:
        raise RunDirectoryError(f"cannot remove the checkpoint {checkpoint}: {e.strerror or e}") from e


def _clear_unfinished(folder: Path) -> None:
    for path in folder.glob(f"{_UNFINISHED}*"):
        _delete(path)


def _delete(path: Path) -> None:
    """Remove a folder, or what a hand has put in the place of one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
