"""Packed attention computes what each rollout alone would give."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from moonmill.errors import ConfigError
from moonmill.trainer.attention import PackedPlan, packed_attention

LENGTHS = (1, 2, 3, 5, 5, 20)


def packed(window: int | None = None, heads: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    total = sum(LENGTHS)
    q, k, v = torch.randn(1, heads, total, 8), torch.randn(1, 2, total, 8), torch.randn(1, 2, total, 8)
    plan = PackedPlan(torch.tensor([0, *LENGTHS]).cumsum(0))
    out, _ = packed_attention(nn.Identity(), q, k, v, None, plan=plan, scaling=0.3, sliding_window=window)
    return q, k, v, out


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("heads", [2, 4])
def test_a_token_sees_its_own_rollout_up_to_itself(window: int | None, heads: int):
    q, k, v, out = packed(window, heads)
    at = 0
    for length in LENGTHS:
        own = slice(at, at + length)
        distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
        seen = (distance >= 0) & (distance < (window or length))
        expected = scaled_dot_product_attention(
            q[:, :, own], k[:, :, own], v[:, :, own], attn_mask=seen, scale=0.3, enable_gqa=True
        )
        assert torch.allclose(out[:, own], expected.transpose(1, 2), atol=1e-6)
        at += length


def test_little_is_padded():
    plan = PackedPlan(torch.tensor([0, *LENGTHS]).cumsum(0))
    assert sum(len(g.tokens) for g in plan.groups) <= 1.5 * sum(LENGTHS)
    assert len(plan.groups) < len(LENGTHS)


def test_a_model_that_needs_more_is_refused():
    x, plan = torch.zeros(1, 1, 1, 4), PackedPlan(torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match="its Identity needs 'softcap', which Moonmill's attention cannot do"):
        packed_attention(nn.Identity(), x, x, x, None, plan=plan, softcap=30.0)
