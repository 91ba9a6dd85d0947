"""The policy's part of a learner step: the updates that a batch and its advantages are worth.

What always holds: an update's loss is the same sum over its tokens however they are cut into micro-batches; all updates
of a batch measure their tokens against the same policies, those from before the first of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moonmill.config import Config
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.algorithms.kl import kl_penalty
from moonmill.trainer.algorithms.normalization import token_weights
from moonmill.trainer.algorithms.objectives import ActionTokens, at_bound, needs_proximal, objective_loss
from moonmill.trainer.algorithms.staleness import staleness_weights
from moonmill.trainer.guard import not_finite
from moonmill.trainer.metrics import TokenStats, policy_metrics
from moonmill.trainer.models import Packed, action_logprobs
from moonmill.trainer.optimizing import Course, Optimizer
from moonmill.trainer.reference import Reference


class PolicyUpdate:
    """A policy with its algorithm and optimizer.

    Args:
        policy: the model, not trained yet; where it has an adapter, that is in place.
        parameters: those of it that are trained.
        algorithm: the run's.
        config: the run's.
    """

    def __init__(
        self, policy: PreTrainedModel, parameters: Sequence[nn.Parameter], algorithm: ResolvedAlgorithm, config: Config
    ) -> None:
        self.suspects: list[int] = []
        """Places in the last batch, once each, of rollouts that have log-probabilities, ours or as sampled, that are
        not finite; only looked for where an update was left out."""
        self._policy = policy
        self._sampling = config.sampling
        self._algorithm = algorithm
        self._constant = algorithm.normalization_constant or config.model.max_length
        penalised = algorithm.kl is not None and algorithm.kl.coef > 0
        self._reference = Reference(policy, adapter=config.model.lora is not None) if penalised else None
        learner = config.learner
        rises_to = learner.warmup_steps // algorithm.updates
        course = Course(learner.schedule, learner.warmup_steps, rises_to, config.train.steps)
        self._optimizer = Optimizer(parameters, learner.lr, learner, course)

    def update(
        self, batch: Sequence[Packed], advantages: Sequence[Tensor], version: int, metrics: dict[str, float]
    ) -> bool:
        """Update as often as the algorithm says; returns whether any was: not where loss or gradient was not finite.

        Args:
            batch: the micro-batches.
            advantages: `[action tokens]` of each.
            version: the policy's, before the updates.
            metrics: what is measured is added.
        """
        algorithm = self._algorithm
        if algorithm.staleness_scaling:
            scales = [self._scales(packed, version) for packed in batch]
            advantages = [a * s.to(a) for a, s in zip(advantages, scales, strict=True)]
            metrics["staleness_scale"] = float(torch.cat(scales).mean())
        before: list[Tensor | None] = [None] * len(batch)
        if algorithm.updates > 1 and needs_proximal(algorithm.objective, algorithm.correction):
            before = [self._logprobs(packed) for packed in batch]
        reference: list[Tensor | None] = [None] * len(batch)
        if self._reference is not None:
            reference = [self._reference.logprobs(packed, self._sampling) for packed in batch]
        self.suspects = []
        stats: list[TokenStats] = []
        norms: list[float] = []
        skipped = 0
        for number in range(algorithm.updates):
            places = [i for i, p in enumerate(batch) if p.batch.part == number % algorithm.minibatches]
            if not places:  # A batch of fewer rollouts than parts.
                continue
            tokens = sum(len(batch[i].batch.actions) for i in places)
            rollouts = len({rollout for i in places for rollout in batch[i].batch.rollouts})
            part: list[TokenStats] = []
            for i in places:
                weights = token_weights(
                    batch[i].batch.action_lengths,
                    batch[i].batch.rollout_lengths,
                    algorithm.normalization,
                    tokens=tokens,
                    rollouts=rollouts,
                    constant=self._constant,
                )
                part.append(
                    self._accumulate(batch[i], advantages[i], before[i], reference[i], weights, version, number)
                )
            metrics["lr"] = self._optimizer.lr(version)
            norm, done = self._optimizer.update((s.loss for s in part), version)
            if not done:
                found = not_finite([batch[i] for i in places], [s.logprobs + s.behaviour for s in part])
                self.suspects = sorted({*self.suspects, *found})
            stats += part
            norms.append(norm)
            skipped += not done
        metrics |= policy_metrics(stats)
        if algorithm.entropy_coef:
            metrics["entropy_bonus"] = algorithm.entropy_coef * metrics["entropy"]
        metrics["grad_norm"] = max(norms)
        metrics["skipped_updates"] = float(skipped)
        return skipped < len(norms)

    def scale_lr(self, scale: float) -> None:
        """Multiply the learning rate by this, from the next update on."""
        self._optimizer.scale = scale

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's; the policy's weights are kept apart."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state)

    def _accumulate(
        self,
        packed: Packed,
        advantages: Tensor,
        before: Tensor | None,
        reference: Tensor | None,
        weights: Tensor,
        version: int,
        number: int,
    ) -> TokenStats:
        """Add a micro-batch's gradient to that of the update."""
        algorithm, micro = self._algorithm, packed.batch
        logprobs, entropy = action_logprobs(
            self._policy, packed, self._sampling, entropy_grad=algorithm.entropy_coef > 0
        )
        tokens = ActionTokens(
            logprobs=logprobs,
            behaviour=micro.behaviour,
            # Where there is one update, the policy before it is the one that is being trained.
            proximal=logprobs.detach() if before is None else before,
            advantages=advantages,
            versions=micro.versions,
            version=version,
            lengths=micro.action_lengths,
        )
        loss, kept = objective_loss(algorithm.objective, algorithm.correction, tokens)
        total = loss
        if reference is not None and algorithm.kl is not None:
            total = total + algorithm.kl.coef * kl_penalty(logprobs, reference, algorithm.kl.estimator)
        if algorithm.entropy_coef > 0:
            total = total - algorithm.entropy_coef * entropy
        torch.autograd.backward((total * weights.to(total)).sum())
        return TokenStats(
            logprobs=logprobs.detach(),
            behaviour=micro.behaviour,
            kept=kept,
            entropy=entropy.detach(),
            loss=loss.detach(),
            # After the first update the weights are no version's.
            fresh=(micro.versions == version) & (number == 0),
            reference=reference,
            at_bound=at_bound(algorithm.objective, algorithm.correction, tokens),
        )

    def _scales(self, packed: Packed, version: int) -> Tensor:
        micro = packed.batch
        return staleness_weights(micro.oldest, micro.action_lengths, version, self._algorithm.staleness_scaling)

    @torch.no_grad()
    def _logprobs(self, packed: Packed) -> Tensor:
        return action_logprobs(self._policy, packed, self._sampling)[0]
