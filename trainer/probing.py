"""The learner's answer to the probe: what tells after each hand-over whether an engine has the learner's weights."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from moonmill.config import ModelConfig
from moonmill.trainer.attention import PackedPlan, implementation_of
from moonmill.trainer.models import precision


def likeliest_logprob(model: PreTrainedModel, tokens: Sequence[int], config: ModelConfig) -> float:
    """The log-probability of the likeliest token after `tokens`, at temperature 1, computed as learner steps are.

    It is what an engine reports of its first token at temperature 0. Nothing of the model changes.
    """
    device = model.device
    plan = PackedPlan(torch.tensor([0, len(tokens)], dtype=torch.int32, device=device))
    with torch.no_grad(), precision(config, device):
        logits = model(
            input_ids=torch.tensor([[*tokens]], device=device),
            position_ids=torch.arange(len(tokens), device=device).unsqueeze(0),
            use_cache=False,
            # No number: with one, Gemma 4 computes no more tokens than that in its last layers, and our attention wants
            # the whole row.
            logits_to_keep=torch.tensor([len(tokens) - 1], device=device),
            **plan.kwargs(implementation_of(model)),
        ).logits[0, -1]
    return float(logits.float().log_softmax(-1).max())
