"""What loads the learner's model, and makes it fast: transformers and PEFT alone, or Unsloth.

What always holds, whichever it is: policy and critic are two adapters on one base, switched by PEFT; what is computed
is what transformers computes, within rounding; the base is frozen, and no bit of it changes.
"""

import os
from typing import TYPE_CHECKING, Protocol

from moonmill.config import Config
from moonmill.installing import cache_folder

if TYPE_CHECKING:
    import peft
    import torch
    from transformers import PreTrainedModel


class Backend(Protocol):
    """One way to hold a model."""

    def load(self, config: Config, device: "torch.device", attention: str) -> "PreTrainedModel":
        """The model of a run, in eval mode; its weights train unless they are quantized.

        Args:
            config: the run's; it passes `moonmill.trainer.learner_check`.
            device: where it is to compute.
            attention: transformers' name of the attention that it is to have, where the backend has none of its own.
        """
        ...

    def adapt(self, model: "peft.PeftModel") -> None:
        """Have a model that this backend has loaded compute with the adapter that PEFT has just put into it."""
        ...


def backend_of(config: Config) -> Backend:
    """The backend that a config names."""
    if config.learner.backend == "unsloth":
        from moonmill.trainer.backends.unsloth_backend import UnslothBackend

        return UnslothBackend()
    from moonmill.trainer.backends.torch_backend import TorchBackend

    return TorchBackend()


def import_first(config: Config) -> None:
    """Import what has to be there before transformers is: Unsloth changes that as it is imported."""
    if config.learner.backend == "unsloth":
        # Else it tells the hub of each load, and leaves what it compiles in the working directory.
        os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
        os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_folder("unsloth")))
        import unsloth  # type: ignore[import-not-found]  # noqa: F401
