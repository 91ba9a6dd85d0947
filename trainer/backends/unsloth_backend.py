"""Unsloth (https://github.com/unslothai/unsloth): its loading, and its kernels for adapters on a frozen base.

Read in version 2026.10.9, and not run yet. In the families that it has rewritten (Llama, Mistral, Qwen 2 and 3, Gemma 1
and 2) attention is its own, and is told where rollouts begin by `packed_seq_lengths`; the others are transformers'
modules, compiled, with ours. What it makes of a model is tried as it is loaded, as for any backend: that rollouts in a
row do not see each other, that the head can be used by itself, that gradients are right, for policy and critic.

Modules are in eval mode here too, and layers are computed again as with `torch`: its own way of that wants training
mode.
"""

from typing import TYPE_CHECKING

import torch

from moonmill.config import Config

if TYPE_CHECKING:
    import peft
    from transformers import PreTrainedModel


class UnslothBackend:
    """See `moonmill.trainer.backends.Backend`."""

    def load(self, config: Config, device: torch.device, attention: str) -> "PreTrainedModel":
        from unsloth import FastLanguageModel  # type: ignore[import-not-found]

        quantization = config.learner.quantization
        model: PreTrainedModel
        model, _ = FastLanguageModel.from_pretrained(
            config.model.path,
            max_seq_length=config.model.max_length,
            dtype=getattr(torch, config.model.dtype),
            load_in_4bit=quantization == "4bit",
            load_in_8bit=quantization == "8bit",
            load_in_16bit=quantization is None,
            device_map={"": device},
            # The model that was named, rather than a copy of theirs that is quantized already.
            use_exact_model_name=True,
            # Without the towers for images and sound; and embeddings stay where the tokens are.
            text_only=True,
            offload_embedding=False,
            use_gradient_checkpointing=False,
            attn_implementation=attention,
        )
        return model.eval().requires_grad_(False)

    def adapt(self, model: "peft.PeftModel") -> None:
        from unsloth import FastLanguageModel

        FastLanguageModel.patch_peft_model(model, use_gradient_checkpointing=False)
        model.eval()
