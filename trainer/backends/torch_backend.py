"""transformers and PEFT, as they are. A frozen base may be kept in 4 or 8 bits, by bitsandbytes.

In 4 bits (NF4, QLoRA, arXiv 2305.14314) the matrices of the layers are stored in blocks of 64 numbers, their scales
quantized once more, and are made 16 or 32 bits wide again for each product. In 8 bits (LLM.int8, arXiv 2208.07339) the
products themselves are of whole numbers, but for columns of outliers; these are looked for in a whole micro-batch, so
that a token's numbers depend a little on what it stands with. Embeddings, norms, the output head and whatever
is no linear layer, such as experts in one parameter, stay in `model.dtype`.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from moonmill.config import Config

if TYPE_CHECKING:
    import peft


class TorchBackend:
    """See `moonmill.trainer.backends.Backend`."""

    def load(self, config: Config, device: torch.device, attention: str) -> PreTrainedModel:
        wanted, quantization = config.model, config.learner.quantization
        dtype = getattr(torch, wanted.dtype)
        how: dict[str, Any] = {"config": AutoConfig.from_pretrained(wanted.path), "attn_implementation": attention}
        if quantization is None:
            how["dtype"] = dtype if wanted.lora else torch.float32
            whole: PreTrainedModel = AutoModelForCausalLM.from_pretrained(wanted.path, **how)
            return whole.to(device).eval().requires_grad_(True)
        # It tells of every product in 8 bits that it rounds what goes in.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        how |= {"dtype": dtype, "device_map": {"": device}, "quantization_config": bits_and_bytes(quantization, dtype)}
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(wanted.path, **how)
        for module in model.modules():
            # On some CPUs, passes without a gradient would pack its weights for inference, and round their scales.
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        return model.eval().requires_grad_(False)

    def adapt(self, model: "peft.PeftModel") -> None:
        """Nothing is to be done."""


def bits_and_bytes(quantization: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """How a base is quantized: `4bit` or `8bit`, for products in `dtype`."""
    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
