"""The learner: policy, critic and their optimizers, updated one batch of rollouts at a time.

A step is K value updates, advantages, and the policy's updates, one where the algorithm says nothing else; the steps of
the critic's warm-up train it alone and make no version. What always holds:

- What a token weighs in a loss depends on the whole batch, masked tokens included, however it is cut into
  micro-batches.
- Same state and same rollouts in the same order give bit-identical weights, so that steps lost in a crash can be done
  again.
- An update whose loss or gradients are not finite is left out and counted.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from moonmill.algorithm_config import GaeConfig, RunningMeanConfig
from moonmill.config import Config
from moonmill.errors import RunDirectoryError, RunError
from moonmill.seeding import derive_seed
from moonmill.trainer import checkpoint
from moonmill.trainer.advantages import OutcomeAdvantages, gae_advantages, normalized
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.attention import implementation_of
from moonmill.trainer.critic import Critic
from moonmill.trainer.devices import learner_device, shares_card
from moonmill.trainer.guard import notice
from moonmill.trainer.models import Packed, export_dtype, load_policy, precision
from moonmill.trainer.packing import pack
from moonmill.trainer.parts import make_parts
from moonmill.trainer.policy_update import PolicyUpdate
from moonmill.trainer.recompute import recompute_layers
from moonmill.trainer.value_update import ValueUpdate
from moonmill.trainer.weights import load_tensors, save_tensors
from moonmill.types import Rollout


class StepMetrics(Struct, frozen=True):
    """What a step came to. `updated` tells whether there is a new version."""

    step: int
    version: int
    updated: bool
    metrics: dict[str, float]
    notice: str = ""
    """What the user is to be told of it."""


class _State(Struct, frozen=True):
    """The counters of a checkpoint."""

    step: int
    version: int
    lr_scale: float = 1.0


class Learner:
    """Owns policy and critic. Not for several threads at once.

    Args:
        config: the run's.

    Raises:
        ConfigError: the model cannot be loaded, or the algorithm makes no sense.
    """

    def __init__(self, config: Config) -> None:
        self.step_number = 0
        """Steps done."""
        self.version = 0
        """Policy updates done."""
        self._config = config
        self._algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
        self._device = torch.device(learner_device(config))
        self.policy = load_policy(config)
        if config.learner.gradient_checkpointing:
            recompute_layers(self.policy)
        critic = self._algorithm.critic
        self._weights, made = make_parts(self.policy, critic, config)
        self._value_update = ValueUpdate(made, critic, config) if made and critic else None
        self._policy_update = PolicyUpdate(self.policy, self._weights.parameters, self._algorithm, config)
        advantage = self._algorithm.advantage
        self._outcomes = None if isinstance(advantage, GaeConfig) else OutcomeAdvantages(advantage)
        self._lr_scale = 1.0
        self._torn = False
        self._seconds: dict[str, float] = {}

    @property
    def critic(self) -> Critic | None:
        """None where advantages are not learned."""
        return self._value_update.critic if self._value_update else None

    def step(self, rollouts: Sequence[Rollout]) -> StepMetrics:
        """Learn from one batch.

        Raises:
            RunError: a rollout cannot be trained on, or an earlier step failed half-way.
        """
        self._refuse_torn()
        self._seconds = {}
        advantage = self._algorithm.advantage
        with self._timed("pack"):
            implementation = implementation_of(self.policy)
            micro_batches = pack(
                rollouts,
                self._config.learner.micro_batch_tokens,
                self._algorithm.minibatches,
                skip_observations=not isinstance(advantage, GaeConfig) or advantage.skip_observations,
            )
            batch = [Packed(m, implementation, self._device) for m in micro_batches]
        self._torn = True
        metrics = {
            "tokens": float(sum(len(p.batch.tokens) for p in batch)),
            "action_tokens": float(sum(len(p.batch.actions) for p in batch)),
            "micro_batches": float(len(batch)),
        }
        try:
            with precision(self._config.model, self._device):
                updated = self._learn(batch, rollouts, metrics)
        except torch.OutOfMemoryError as e:
            raise RunError(self._out_of_memory(e)) from e
        suspects = [rollouts[place].id for place in self._policy_update.suspects]
        told = notice(self.step_number + 1, metrics, suspects)
        metrics |= {f"seconds_{phase}": seconds for phase, seconds in self._seconds.items()}
        self.step_number += 1
        self.version += updated
        self._torn = False
        finite = {name: value for name, value in metrics.items() if isfinite(value)}
        return StepMetrics(self.step_number, self.version, updated, finite, told)

    def export(self, folder: Path) -> None:
        """Write what is trained of the policy into `folder` as the engine loads it: whole or not at all.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        try:
            self._weights.export(folder, export_dtype(self._config.model))
        except OSError as e:
            raise RunDirectoryError(f"cannot write the weights {folder}: {e.strerror or e}") from e

    def checkpoint(self, run_dir: Path, back_to: int | None = None) -> Path:
        """Save everything needed to go on exactly as if nothing had happened; returns the checkpoint's folder.

        The checkpoints of later steps than `back_to` remain, and the newest before them.
        """
        self._refuse_torn()
        return checkpoint.write(run_dir, self.step_number, self._config.train.keep_checkpoints, self._save, back_to)

    def count_as(self, step: int, version: int, lr_scale: float) -> None:
        """Go on as from this step and version, with scaled learning rates: what a fall-back comes to."""
        self._refuse_torn()
        self.step_number, self.version = step, version
        self._scale_lr(lr_scale)

    def _scale_lr(self, scale: float) -> None:
        self._lr_scale = scale
        self._policy_update.scale_lr(scale)
        if self._value_update is not None:
            self._value_update.scale_lr(scale)

    def restore(self, path: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            RunError: it is damaged or not one of this run's; the learner then works again only after another restore.
        """
        self._torn = True
        try:
            state = msgspec.json.decode((path / "state.json").read_bytes(), type=_State)
            self._weights.load(path / "policy")
            saved = torch.load(path / "optimizers.pt", map_location=self._device, weights_only=True)
            self._policy_update.load_state_dict(saved["policy"])
            if self._value_update is not None:
                load_tensors(self._value_update.critic.tensors(), path / "critic.safetensors")
                self._value_update.load_state_dict(saved["critic"])
            if self._outcomes is not None:
                self._outcomes.load_state_dict(saved["outcomes"])
            _set_random(saved["random"], self._device)
        except Exception as e:  # a damaged file can make safetensors, pickle and torch raise nearly anything
            raise RunError(
                f"{path} is damaged, or no checkpoint of this run: {type(e).__name__}: {e}. Remove it to go on from "
                "the one before"
            ) from e
        self.step_number, self.version = state.step, state.version
        self._scale_lr(state.lr_scale)
        self._torn = False

    def _save(self, folder: Path) -> None:
        self._weights.save(folder / "policy")
        optimizers: dict[str, Any] = {"policy": self._policy_update.state_dict(), "random": _random(self._device)}
        if self._value_update is not None:
            save_tensors(self._value_update.critic.tensors(), folder / "critic.safetensors")
            optimizers["critic"] = self._value_update.state_dict()
        if self._outcomes is not None:
            optimizers["outcomes"] = self._outcomes.state_dict()
        try:
            with (folder / "optimizers.pt").open("wb") as file:
                torch.save(optimizers, file)
        except RuntimeError as e:  # torch then finds its position unexpected, which says nothing of a full disk
            if isinstance(e.__context__, OSError):
                raise e.__context__ from e
            raise
        state = _State(self.step_number, self.version, self._lr_scale)
        (folder / "state.json").write_bytes(msgspec.json.encode(state))

    def _learn(self, batch: Sequence[Packed], rollouts: Sequence[Rollout], metrics: dict[str, float]) -> bool:
        """Returns whether the policy was updated."""
        advantage = self._algorithm.advantage
        if self._outcomes is not None:
            advantages = self._outcomes([p.batch for p in batch], rollouts)
        else:
            assert isinstance(advantage, GaeConfig)
            assert self._value_update is not None
            critic, alone = self._value_update.config, not self._value_update.warm_up.over
            with self._timed("critic"):
                values = self._value_update.update(batch, advantage, self.version, metrics)
            if alone:
                return False
            with self._timed("advantages"), torch.no_grad():
                if critic.advantages == "after_update":
                    values = self._value_update.values(batch)
                advantages = [gae_advantages(advantage, p.batch, *v) for p, v in zip(batch, values, strict=True)]
        everything = torch.cat(advantages)
        metrics["advantage_mean"] = float(everything.mean())
        metrics["advantage_std"] = float(everything.std(correction=0))
        if isinstance(advantage, GaeConfig | RunningMeanConfig) and advantage.normalize:
            advantages = normalized(advantages)
        with self._timed("policy"):
            return self._policy_update.update(batch, advantages, self.version, metrics)

    def _out_of_memory(self, error: torch.OutOfMemoryError) -> str:
        learner, engine = self._config.learner, self._config.engine
        ways = [f"lower learner.micro_batch_tokens ({learner.micro_batch_tokens})"]
        if not learner.gradient_checkpointing:
            ways.append("set learner.gradient_checkpointing to true")
        if engine.type == "vllm" and shares_card(self._config) and not engine.sleep_while_learning:
            ways.append(f"lower engine.vllm.gpu_memory ({engine.vllm.gpu_memory:g}), the engine's share of that GPU")
        return (
            f"step {self.step_number + 1} does not fit into the memory of {self._device}: {', or '.join(ways)}, then "
            f"--resume. ({str(error).strip().partition(chr(10))[0]:.300})"
        )

    def _refuse_torn(self) -> None:
        if self._torn:
            raise RunError("the learner failed in the middle of a step: restore a checkpoint first")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds[phase] = time.perf_counter() - begin


def _random(device: torch.device) -> dict[str, Tensor]:
    """The random state of this process. Nothing draws from Python's or NumPy's."""
    own = {"cpu": torch.get_rng_state()}
    return own | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else own


def _set_random(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def make_deterministic(config: Config) -> None:
    """Set this process up so that the same steps give the same weights. For the whole process: call it once, first."""
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(derive_seed(config.train.seed, "learner"))
    # Where a GPU has no deterministic kernel, a warning is better than no training.
    device = torch.device(learner_device(config))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Kernels of others ask for the current one.
    torch.use_deterministic_algorithms(config.learner.deterministic, warn_only=device.type != "cpu")
    # Fresh memory is not read before it is written, so filling it beforehand only takes time: 5% of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
