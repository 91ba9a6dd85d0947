"""Make a tiny model of the same architecture as a large one, with random weights, so that the examples run on a CPU.

    python examples/rtx5090-math/tiny_model.py gemma4 tiny/gemma4
    python examples/rtx5090-math/tiny_model.py qwen3 tiny/qwen3

It has few layers, but every kind of part that the large one has. Of Gemma 4 E2B: attention in a window and over
everything, heads of two widths, layers that take their keys and values from earlier ones, embeddings for each layer,
MLPs of two widths, a soft cap, a tied head, and the towers for pictures and sound. Its tokenizer has single bytes and
the family's tags. What it writes is noise: it shows that the way through engine, learner and adapters is open.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32}
_SHAPE = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 8192}
_TOWER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
# google/gemma-4-E2B-it is 1536 wide; of its 35 layers every fifth attends to everything, and the last 20 share.
_GEMMA4 = {
    **_SHAPE,
    **_HEADS,
    "global_head_dim": 64,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "final_logit_softcapping": 30.0,
}
# Qwen/Qwen3-1.7B is 2048 wide and has 28 layers.
_QWEN3 = {**_SHAPE, **_HEADS, "num_hidden_layers": 3, "tie_word_embeddings": True}
_TAGS = {
    "gemma4": (
        *(
            "<pad>",
            "<eos>",
            "<bos>",
            "<|turn>",
            "<turn|>",
            "<|channel>",
            "<channel|>",
            "<|think|>",
            "<|tool>",
            "<tool|>",
        ),
        *('<|"|>', "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
        *("<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>"),
    ),
    "qwen3": (
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
}
_ENDS = {"gemma4": "<turn|>", "qwen3": "<|im_end|>"}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("family", choices=[*_TAGS])
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0, help="decides the weights")
    args = parser.parse_args()
    make_tiny(args.family, args.out, args.seed)
    print(f"{args.out} is ready: --set model.path={args.out} --set model.renderer={args.family}")


def make_tiny(family: str, folder: Path, seed: int = 0) -> None:
    """Write model and tokenizer of a family to `folder`."""
    tokenizer = make_tokenizer(family)
    tokenizer.save_pretrained(folder)
    make_model(family, tokenizer, seed).save_pretrained(folder)


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Single bytes and the family's tags, which come first, as its own do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*_TAGS[family], *alphabet]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        extra_special_tokens=list(_TAGS[family]),
        eos_token=_ENDS[family],
        pad_token=_TAGS[family][0],
    )


def make_model(family: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A model for the tokenizer, with random weights."""
    tokens = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **(_gemma4(tokenizer, tokens) if family == "gemma4" else _QWEN3 | tokens))
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    if family == "gemma4":
        _read_placeholders_alike(model)
    return model


def _read_placeholders_alike(model: PreTrainedModel) -> None:
    """Give the places of pictures and sound in a text the embeddings of padding.

    Noise writes them, where a trained model does not. transformers then reads padding, and vLLM the token itself.
    """
    config, text = model.config, model.get_decoder()
    places = [config.image_token_id, config.audio_token_id, config.video_token_id]
    for embeddings in (text.embed_tokens, text.embed_tokens_per_layer):
        embeddings.weight.data[places] = embeddings.weight.data[config.text_config.pad_token_id].clone()


def _gemma4(tokenizer: PreTrainedTokenizerFast, tokens: dict[str, int]) -> dict[str, Any]:
    """The parts of a model that also sees and hears."""
    ids = {"boi": "<|image>", "image": "<|image|>", "eoi": "<image|>", "boa": "<|audio>", "audio": "<|audio|>"}
    return {
        "text_config": _GEMMA4 | tokens | {"vocab_size_per_layer_input": tokens["vocab_size"]},
        "vision_config": _TOWER | {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16},
        "audio_config": _TOWER | {"subsampling_conv_channels": [8, 4], "output_proj_dims": 32},
        "eoa_token_index": tokenizer.convert_tokens_to_ids("<audio|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video|>"),
        **{f"{name}_token_id": tokenizer.convert_tokens_to_ids(tag) for name, tag in ids.items()},
    }


if __name__ == "__main__":
    main()
