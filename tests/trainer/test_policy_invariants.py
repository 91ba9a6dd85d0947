"""What holds of every objective with every correction, on a real tiny model: neither the cut nor the order of a batch
matters, and no gradient comes from observations."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from moonmill.algorithm_config import (
    GroupZscoreConfig,
    KlConfig,
)
from moonmill.trainer.algorithms.combinations import ResolvedAlgorithm
from moonmill.trainer.attention import PACKED
from moonmill.trainer.models import Packed
from moonmill.trainer.packing import pack
from moonmill.types import Observation
from tests.trainer.conftest import VOCAB, MakeConfig, sampled
from tests.trainer.test_learner import difference
from tests.trainer.test_objectives import NORMALIZATIONS, PAIRS, of_each_pair
from tests.trainer.updates import ADVANTAGES, CPU, STILL, VERSION, Updates, stale


@of_each_pair
def test_how_a_batch_is_cut_and_ordered_changes_nothing(
    objective, correction, make_config: MakeConfig, model_path: Path
):
    rollouts = stale(sampled(model_path, 3))
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    for kind in NORMALIZATIONS:
        algorithm = ResolvedAlgorithm(
            GroupZscoreConfig(),
            objective,
            correction=correction,
            normalization=kind,
            normalization_constant=20,
            kl=KlConfig(0.1),
            entropy_coef=0.05,
        )
        updates = Updates(algorithm, make_config(learner=STILL))
        whole = updates(rollouts, ADVANTAGES)
        metrics = updates.metrics
        assert max(float(g.abs().max()) for g in whole.values()) > 0.01
        other = updates([rollouts[i] for i in order], [ADVANTAGES[i] for i in order], budget=60)
        assert difference(other, whole) < 1e-5
        for name in ("policy_loss", "masked_share", "ess", "kl", "kl_reference", "entropy", "grad_norm"):
            assert updates.metrics[name] == pytest.approx(metrics[name], abs=1e-5, rel=1e-5)


@of_each_pair
def test_no_gradient_reaches_the_logits_of_an_observation(
    objective, correction, make_config: MakeConfig, model_path: Path
):
    """What predicts an observation's token is the last hidden state before it: its gradient is exactly 0."""
    rollouts = stale(sampled(model_path, 3))
    algorithm = ResolvedAlgorithm(
        GroupZscoreConfig(), objective, correction=correction, kl=KlConfig(0.1), entropy_coef=0.05
    )
    updates = Updates(algorithm, make_config(learner=STILL))
    seen: list[Tensor] = []

    def keep(module, inputs, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: seen.append(gradient[0].clone()))

    updates.policy.model.norm.register_forward_hook(keep)
    updates(rollouts, ADVANTAGES)
    [gradient] = seen
    [batch] = pack(rollouts, 10_000)
    counts = torch.zeros(len(batch.tokens), dtype=torch.bool)
    counts[batch.before] = True
    assert gradient[~counts].abs().max() == 0
    assert (gradient[counts].abs().amax(-1) > 0).float().mean() > 0.3


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_stands_in_an_observation_behind_the_last_action_does_not_matter(
    data: st.DataObject, make_config: MakeConfig, model_path: Path
):
    """Not its tokens, as labels or as input, and not their positions: the gradients are the same to the last bit."""
    objective, correction = data.draw(st.sampled_from(PAIRS))
    length = data.draw(st.integers(1, 5))
    one, other = (tuple(data.draw(st.lists(st.integers(1, VOCAB - 1), min_size=length, max_size=length))) for _ in "ab")
    shift = data.draw(st.integers(0, 40))
    rollouts = stale(sampled(model_path, 3, 4))

    def gradients(tokens: tuple[int, ...], moved: int) -> dict[str, Tensor]:
        algorithm = ResolvedAlgorithm(GroupZscoreConfig(), objective, correction=correction, kl=KlConfig(0.1))
        updates = Updates(algorithm, make_config(learner=STILL))
        batches = []
        for micro in pack(
            [msgspec.structs.replace(r, segments=(*r.segments, Observation(tokens))) for r in rollouts], 10_000
        ):
            positions = micro.positions.clone()
            for end in micro.cu_seqlens[1:].tolist():
                positions[end - length : end] += moved
            batches.append(Packed(replace(micro, positions=positions), PACKED, CPU))
        given = [torch.linspace(-1, 1, len(p.batch.actions)) for p in batches]
        updates.update.update(batches, given, VERSION, {})
        return updates.gradients

    assert difference(gradients(one, 0), gradients(other, shift)) == 0
