"""A tiny policy's updates under an algorithm, and rollouts of older policies."""

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from moonmill.algorithm_config import (
    GroupZscoreConfig,
    ReinforceConfig,
)
from moonmill.config import Config, LearnerConfig
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.attention import PACKED
from moonmill.trainer.models import Packed, load_policy
from moonmill.trainer.packing import pack
from moonmill.trainer.policy_update import PolicyUpdate
from moonmill.types import Action, Rollout

CPU = torch.device("cpu")
VERSION = 5
STILL = LearnerConfig(batch_rollouts=8, lr=1e-12, max_grad_norm=1e9)
"""Steps too short for float32: what is measured is the gradient, and the policy stays what it is."""
REINFORCE = ResolvedAlgorithm(GroupZscoreConfig(), ReinforceConfig())


class Updates:
    """A tiny policy under an algorithm; what a batch's updates accumulate is kept."""

    def __init__(self, algorithm: ResolvedAlgorithm, config: Config) -> None:
        self.policy = load_policy(config)
        self.update = PolicyUpdate(self.policy, list(self.policy.parameters()), algorithm, config)
        self.metrics: dict[str, float] = {}
        self.gradients: dict[str, Tensor] = {}
        for name, parameter in self.policy.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._keep(name, p))

    def __call__(
        self, rollouts: Sequence[Rollout], advantages: Sequence[float], *, budget: int = 10_000, parts: int = 1
    ) -> dict[str, Tensor]:
        """The gradients of the last update; `advantages` are the rollouts', every other token has them halved."""
        batch = [Packed(m, PACKED, CPU) for m in pack(rollouts, budget, parts)]
        given = [
            torch.cat(
                [
                    advantages[r] * (1 - torch.arange(n) % 2 / 2)
                    for r, n in zip(b.rollouts, b.action_lengths, strict=True)
                ]
            )
            for b in (p.batch for p in batch)
        ]
        self.metrics = {}
        self.gradients = {}
        self.update.update(batch, given, VERSION, self.metrics)
        return self.gradients

    def _keep(self, name: str, parameter: torch.nn.Parameter) -> None:
        assert parameter.grad is not None
        self.gradients[name] = parameter.grad.clone()


def stale(rollouts: Sequence[Rollout], seed: int = 0) -> list[Rollout]:
    """The same rollouts as if older policies had sampled them, which found their tokens likelier or less likely."""
    draw = torch.Generator().manual_seed(seed)

    def aged(action: Action) -> Action:
        noise = 0.4 * torch.randn(len(action.tokens), generator=draw)
        versions = VERSION - torch.randint(4, (len(action.tokens),), generator=draw)
        logprobs = (torch.tensor(action.logprobs) + noise).clamp(max=-1e-3)
        return Action(action.tokens, tuple(logprobs.tolist()), tuple(versions.tolist()))

    return [
        msgspec.structs.replace(r, segments=tuple(aged(s) if isinstance(s, Action) else s for s in r.segments))
        for r in rollouts
    ]


ADVANTAGES = [1.0, -0.5, 2.0, -1.5, 0.3, -0.2, 0.7, -1.1]
