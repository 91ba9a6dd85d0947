"""What a batch's loss is divided by: the weight of each token in it.

With N action tokens in R rollouts, l_i of them in rollout i, and a constant C:

- `token`: 1/N, each token the same (DAPO, `arXiv 2503.14476 <https://arxiv.org/abs/2503.14476>`_; SAO)
- `sequence`: 1/(R·l_i), each rollout the same (GRPO, `arXiv 2402.03300 <https://arxiv.org/abs/2402.03300>`_)
- `constant`: 1/(R·C), each token the same in batches of any lengths (Dr. GRPO,
  `arXiv 2503.20783 <https://arxiv.org/abs/2503.20783>`_)

A rollout with branches is several sequences, and still one rollout here: l_i counts the tokens of all of them.

What always holds: N, R and l_i count all tokens, masked or not, of the whole batch that an update is made of, so that
neither masks nor micro-batches change what the others weigh; with `token` and `sequence` the weights sum to 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from moonmill.algorithm_config import Normalization


def token_weights(
    lengths: Sequence[int],
    rollout_lengths: Sequence[int],
    kind: Normalization,
    *,
    tokens: int,
    rollouts: int,
    constant: int,
) -> Tensor:
    """Weights `[action tokens]` of some sequences of a batch.

    Args:
        lengths: action tokens of each of them.
        rollout_lengths: action tokens of the whole rollout that each is of, l_i.
        kind: as above.
        tokens: action tokens of the whole batch.
        rollouts: rollouts of the whole batch.
        constant: C.
    """
    each = {
        "token": torch.full((len(lengths),), 1 / tokens, dtype=torch.float64),
        "sequence": 1 / (rollouts * torch.tensor(rollout_lengths).double()),
        "constant": torch.full((len(lengths),), 1 / (rollouts * constant), dtype=torch.float64),
    }[kind]
    return each.repeat_interleave(torch.tensor(lengths))
