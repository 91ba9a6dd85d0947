"""Notices when an engine samples from other weights than the learner trains.

A state machine without I/O. After a hand-over one number is compared; here all tokens are that the newest version has
sampled, version 0 among them, which nobody hands over.
"""

from collections.abc import Mapping

from moonmill.config import Config

_WORST = {"float32": 0.1, "bfloat16": 2.5}
"""How far log-probabilities may be apart, by `model.dtype`: ten times what is allowed after a hand-over, which is of a
likely token; rare ones differ more."""
_WORST_QUANTIZED = {"8bit": 10.0, "4bit": 20.0}
"""The same where the learner's base is quantized, and the engine's is not."""


class MismatchWatch:
    """Looks at `mismatch_max` of each step."""

    def __init__(self, config: Config) -> None:
        quantization = config.learner.quantization
        self._worst = _WORST_QUANTIZED[quantization] if quantization else _WORST[config.model.dtype]
        self._told = False

    def see(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """What to warn of, once."""
        found = metrics.get("mismatch_max", 0.0)
        if self._told or found <= self._worst:
            return None
        self._told = True
        return (
            f"step {step}: engine and learner are {found:.3g} apart in the log-probability of a token that the newest "
            f"version has sampled, and more than {self._worst:g} is no rounding: see that the engine serves the run's "
            "model, and that nothing else loads weights into it"
        )
