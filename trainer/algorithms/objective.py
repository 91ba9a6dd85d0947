"""What every objective gives."""

from typing import NamedTuple

from torch import Tensor


class TokenLoss(NamedTuple):
    """Losses of action tokens, both `[tokens]`. The learner adds them up and divides by the batch's token count."""

    loss: Tensor
    masked: Tensor
    """True where the objective left the token out, so that it has no gradient."""
