"""The learner: owns policy, critic and their optimizers; turns a batch of rollouts into one policy update.

A step is K value updates, then advantages, then one policy update. The same state and the same rollouts always give the
same weights, bit for bit: there is no randomness in a step, and threads are fixed.
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
from msgspec import Struct
from torch import Tensor, nn

from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.config import Config, DisConfig, GaeConfig
from moonmill.errors import RunError
from moonmill.trainer.algorithms.dis import dis
from moonmill.trainer.algorithms.gae import adaptive_lambda, gae
from moonmill.trainer.algorithms.group_zscore import group_zscore
from moonmill.trainer.algorithms.objective import TokenLoss
from moonmill.trainer.algorithms.ppo_clip import ppo_clip
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.algorithms.ragged import per_token
from moonmill.trainer.critic import Critic, explained_variance, moments, value_loss
from moonmill.trainer.models import load_policy
from moonmill.trainer.packing import Batch, MicroBatch, pack
from moonmill.types import Rollout

_NAN_STEPS = 3
"""So many steps in a row without a finite gradient end the run."""
_NORM_EPSILON = 1e-8


class StepResult(Struct, frozen=True):
    """What a step did."""

    step: int
    version: int
    made_version: bool
    metrics: dict[str, float]


class Learner:
    """Trains on batches of rollouts.

    Args:
        config: model, sampling, algorithm and learner.
    """

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(config.learner.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(config.train.seed)
        self.config = config
        self.algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
        self.policy = load_policy(config.model)
        self.policy_optimizer = self._optimizer(list(self.policy.parameters()), config.learner.lr)
        self.critic: Critic | None = None
        self.critic_optimizer: torch.optim.AdamW | None = None
        if critic := self.algorithm.critic:
            self.critic = Critic(self.policy, freeze_attention=critic.freeze_attention)
            self.critic_optimizer = self._optimizer(self.critic.trained(), critic.lr)
        self.step_count = 0
        """Steps done, those that train the critic alone among them."""
        self.version = 0
        """Policy updates done."""
        self.nan_steps = 0

    def step(self, rollouts: Sequence[Rollout]) -> StepResult:
        """Learn from one batch.

        Raises:
            RunError: gradients have not been finite for several steps in a row.
        """
        start = time.perf_counter()
        batch = pack(rollouts, self.config.learner.micro_batch_tokens, self.policy.device)
        metrics: dict[str, float] = {"seconds_pack": time.perf_counter() - start}
        advantages = self._advantages(batch, metrics)
        self.step_count += 1
        critic = self.algorithm.critic
        warming_up = critic is not None and self.step_count <= critic.warmup_steps
        if not warming_up:
            mark = time.perf_counter()
            self._update_policy(batch, advantages, metrics)
            self.version += 1
            metrics["seconds_policy"] = time.perf_counter() - mark
        metrics["seconds"] = time.perf_counter() - start
        return StepResult(self.step_count, self.version, not warming_up, _finite(metrics))

    def logprobs(self, micro_batch: MicroBatch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of `targets` `[actions]` as the engine would report them, and the entropies there."""
        sampling = self.config.sampling
        logits = self.policy(
            input_ids=micro_batch.ids,
            position_ids=micro_batch.positions,
            use_cache=False,
            plan=micro_batch.plan,
            logits_to_keep=micro_batch.before,
        ).logits[0]
        logprobs = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, keep=targets)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs.clamp(min=-1e9)).sum(-1)
        return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy

    def _optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.AdamW:
        learner = self.config.learner
        return torch.optim.AdamW(parameters, lr=lr, betas=learner.betas, weight_decay=learner.weight_decay)

    def _advantages(self, batch: Batch, metrics: dict[str, float]) -> Tensor:
        """Advantages `[actions]`, after the critic has learned from the batch."""
        choice = self.algorithm.advantage
        start = time.perf_counter()
        if isinstance(choice, GaeConfig):
            advantages = self._critic_advantages(batch, choice, metrics)
        else:
            grouped = group_zscore(batch.totals, batch.groups, epsilon=choice.epsilon)
            advantages = per_token(grouped, batch.lengths)
        mean, std = moments(advantages)
        metrics.update(advantage_mean=mean, advantage_std=std, seconds_advantages=time.perf_counter() - start)
        if isinstance(choice, GaeConfig) and choice.normalize:
            advantages = (advantages - mean) / (std + _NORM_EPSILON)
        return advantages

    def _critic_advantages(self, batch: Batch, choice: GaeConfig, metrics: dict[str, float]) -> Tensor:
        critic = self.algorithm.critic
        assert critic is not None
        values, bootstrap = self._values(batch, choice)
        targets = values + gae(
            batch.rewards, values, batch.lengths, gamma=choice.gamma, lam=choice.critic_lam, bootstrap=bootstrap
        )
        metrics["explained_variance"] = explained_variance(values, targets)
        metrics["value_mean"], metrics["value_target_mean"] = float(values.mean()), float(targets.mean())
        metrics["value_bias"] = metrics["value_mean"] - metrics["value_target_mean"]
        for update in range(critic.updates):
            loss, norm = self._update_critic(batch, targets)
            if update == 0:
                metrics["value_loss"] = loss
            metrics["critic_grad_norm"] = norm
        if critic.advantages == "after_update":
            values, bootstrap = self._values(batch, choice)
        lam = adaptive_lambda(batch.lengths, choice.alpha) if choice.lam == "adaptive" else float(choice.lam)
        return gae(batch.rewards, values, batch.lengths, gamma=choice.gamma, lam=lam, bootstrap=bootstrap)

    @torch.no_grad()
    def _values(self, batch: Batch, choice: GaeConfig) -> tuple[Tensor, Tensor | None]:
        """Values in front of each action token, and behind the last one of each truncated rollout if wanted."""
        assert self.critic is not None
        values, ends = [], []
        for micro_batch in batch.micro_batches:
            everywhere = self.critic(micro_batch)
            values.append(everywhere[micro_batch.before])
            ends.append(everywhere[micro_batch.last])
        bootstrap = torch.cat(ends) * batch.truncated if choice.bootstrap_truncated else None
        return torch.cat(values), bootstrap

    def _update_critic(self, batch: Batch, targets: Tensor) -> tuple[float, float]:
        assert self.critic is not None
        assert self.critic_optimizer is not None
        total = 0.0
        for micro_batch in batch.micro_batches:
            values = self.critic(micro_batch)[micro_batch.before]
            loss = value_loss(values, targets[micro_batch.actions]).sum() / len(targets)
            loss.backward()
            total += float(loss.detach())
        return total, self._apply(self.critic_optimizer, self.critic.trained())

    def _update_policy(self, batch: Batch, advantages: Tensor, metrics: dict[str, float]) -> None:
        loss_sum = 0.0
        new, entropies, masked = [], [], []
        for micro_batch in batch.micro_batches:
            at = micro_batch.actions
            logprobs, entropy = self.logprobs(micro_batch, batch.targets[at])
            token_loss = self._objective(logprobs, batch.behaviour[at], advantages[at])
            # Every action token of the batch counts, also those the objective masks.
            loss = token_loss.loss.sum() / len(batch.targets)
            loss.backward()
            loss_sum += float(loss.detach())
            new.append(logprobs.detach())
            entropies.append(entropy)
            masked.append(token_loss.masked)
        warmup = self.config.learner.warmup_steps
        lr = self.config.learner.lr * min(1.0, (self.version + 1) / warmup if warmup else 1.0)
        for group in self.policy_optimizer.param_groups:
            group["lr"] = lr
        metrics.update(policy_loss=loss_sum, lr=lr, grad_norm=self._apply(self.policy_optimizer, self.policy.parameters()))
        metrics["entropy"] = float(torch.cat(entropies).mean())
        metrics["masked_share"] = float(torch.cat(masked).float().mean())
        metrics.update(_ratio_metrics(torch.cat(new), batch.behaviour))

    def _objective(self, logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> TokenLoss:
        choice = self.algorithm.objective
        objective: Callable[..., TokenLoss] = dis if isinstance(choice, DisConfig) else ppo_clip
        return objective(logprobs, behaviour, advantages, low=choice.low, high=choice.high)

    def _apply(self, optimizer: torch.optim.Optimizer, parameters: object) -> float:
        """Clip, take the optimizer's step, clear; returns the norm before clipping. Skipped where it is not finite."""
        trained = [p for p in parameters if p.requires_grad]  # type: ignore[attr-defined]
        norm = float(nn.utils.clip_grad_norm_(trained, self.config.learner.max_grad_norm))
        if math.isfinite(norm):
            optimizer.step()
            self.nan_steps = 0
        else:
            self.nan_steps += 1
        optimizer.zero_grad(set_to_none=True)
        if self.nan_steps >= _NAN_STEPS:
            raise RunError(
                f"the gradient was not finite for {_NAN_STEPS} updates in a row: lower learner.lr or "
                "algorithm.critic.lr, or go back to an earlier checkpoint"
            )
        return norm


@torch.no_grad()
def _ratio_metrics(logprobs: Tensor, behaviour: Tensor) -> dict[str, float]:
    """How far the policy being trained is from the one that sampled."""
    difference = logprobs - behaviour
    ratio = difference.exp()
    mean, std = moments(ratio)
    return {
        "ratio_mean": mean,
        "ratio_std": std,
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "logprob_diff_mean": float(difference.abs().mean()),
        "logprob_diff_max": float(difference.abs().max()),
        # Schulman's k3 estimate of KL(rollout policy ‖ current policy): never negative, low variance.
        "kl": float((ratio - 1 - difference).mean()),
    }


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """JSON knows no nan: a value that could not be computed is left out."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
