"""Checkpoints: everything the learner knows, in a folder that appears whole or not at all.

    checkpoints/step-000020/
        policy/             a model folder: transformers, the engine and `moonmill eval` load it
        critic.safetensors  backbone and value head
        optimizers.pt       both optimizers, and torch's random state
        state.json          step, version

A round trip is bit-exact.
"""

import os
import shutil
from pathlib import Path

import msgspec
import torch

from moonmill.errors import RunDirectoryError
from moonmill.trainer.learner import Learner
from moonmill.trainer.messages import State
from moonmill.trainer.models import WEIGHTS, copy_companions, read_tensors, write_tensors

_FOLDER = "checkpoints"


def save(learner: Learner, run: Path, keep: int) -> Path:
    """Write a checkpoint of the learner's present state and remove all but the newest `keep`."""
    folder = run / _FOLDER / f"step-{learner.step_count:06d}"
    if folder.exists():
        return folder
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "policy").mkdir(parents=True)
    copy_companions(learner.config.model.path, temporary / "policy")
    write_tensors(learner.policy, temporary / "policy" / WEIGHTS)
    if learner.critic is not None:
        write_tensors(learner.critic, temporary / "critic.safetensors")
    optimizers = {
        "policy": learner.policy_optimizer.state_dict(),
        "critic": learner.critic_optimizer.state_dict() if learner.critic_optimizer else None,
        "torch_rng": torch.get_rng_state(),
        "nan_steps": learner.nan_steps,
    }
    with open(temporary / "optimizers.pt", "wb") as file:
        torch.save(optimizers, file)
        os.fsync(file.fileno())
    (temporary / "state.json").write_bytes(msgspec.json.encode(State(learner.step_count, learner.version)))
    temporary.rename(folder)
    _sync_folder(folder.parent)
    for old in _all(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def restore(learner: Learner, folder: Path) -> State:
    """Bring the learner to the state that was saved.

    Raises:
        RunDirectoryError: the checkpoint cannot be read, or is of another model or algorithm.
    """
    try:
        state = msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
        optimizers = torch.load(folder / "optimizers.pt", weights_only=True, map_location=learner.policy.device)
        read_tensors(learner.policy, folder / "policy" / WEIGHTS)
        learner.policy_optimizer.load_state_dict(optimizers["policy"])
        if learner.critic is not None and learner.critic_optimizer is not None:
            read_tensors(learner.critic, folder / "critic.safetensors")
            learner.critic_optimizer.load_state_dict(optimizers["critic"])
        torch.set_rng_state(optimizers["torch_rng"].cpu())
    except (OSError, KeyError, ValueError, RuntimeError, msgspec.MsgspecError) as e:
        raise RunDirectoryError(f"the checkpoint {folder} cannot be restored: {e}") from e
    learner.nan_steps = optimizers["nan_steps"]
    learner.step_count, learner.version = state.step, state.version
    return state


def latest(run: Path) -> Path | None:
    """The newest whole checkpoint of a run."""
    found = _all(run)
    return found[-1] if found else None


def _all(run: Path) -> list[Path]:
    """Whole checkpoints, oldest first; what a kill left half-written has another name."""
    return sorted(p for p in (run / _FOLDER).glob("step-*") if (p / "state.json").exists())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
