"""The chat formats of model families, without their models: a tokenizer of single bytes with each family's tags.

GPT-OSS is the exception. Its package, openai-harmony, brings token ids of its own and checks its vocabulary's checksum,
so its tokenizer is the real one, from the copy of that vocabulary in the package quicktok-v1.
"""

import base64
import os
import struct
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from moonmill.agents.rendering import TurnRenderer, load_renderer

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As SmolLM2's: it knows neither tools nor calls, and lets any role pass."""
CHATML_WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As those of models of the Hermes kind."""
CHATML_THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
"""As those of models that always think: the prompt opens the thought."""
STRICT = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""As Gemma's and Mistral's older ones: no system message, no tools, strictly in turns."""
_CHATML_TAGS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_QWEN3 = (
    *_CHATML_TAGS,
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
_GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>"),
)
_GEMMA4 = (
    *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>", '<|"|>'),
    *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|image>", "<|image|>", "<image|>"),
)
_DEEPSEEK = tuple(
    f"<｜{name}｜>"
    for name in (
        *("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant"),
        *("tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end", "tool▁sep"),
        *("tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end"),
    )
)
_DEEPSEEK_V4 = (
    *_DEEPSEEK[:4],
    *("<think>", "</think>", "<｜latest_reminder｜>", "｜DSML｜"),
    *(f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url", "extracted_url")),
)
_HARMONY = (
    *("<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>"),
    *("<|constrain|>", "<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"),
    *("<|reserved_200009|>", "<|reserved_200010|>", "<|reserved_200011|>", "<|call|>"),
)


@dataclass(frozen=True)
class Family:
    """How one family's models write conversations."""

    models: str
    """Whose format it is, for the page about formats."""
    renderer: str
    tags: tuple[str, ...]
    eos: str
    tool_format: str = ""
    template: str | None = None


FAMILIES = {
    "qwen3": Family("Qwen3", "qwen3", _QWEN3, "<|im_end|>"),
    "qwen3.5": Family(
        "Qwen3.5",
        "qwen3.5",
        (*_QWEN3, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        "<|im_end|>",
    ),
    "llama-3": Family("Llama 3.2", "llama-3", _LLAMA3, "<|eot_id|>"),
    "gemma4": Family("Gemma 4", "gemma4", _GEMMA4, "<turn|>"),
    "gpt-oss": Family("GPT-OSS", "gpt-oss", _HARMONY, "<|return|>"),
    "glm-4.5": Family("GLM-4.5", "glm-4.5", _GLM, "<|endoftext|>"),
    "glm-5": Family("GLM-5", "glm-5", _GLM, "<|endoftext|>"),
    "glm-5.1": Family("GLM-5.1", "glm-5.1", _GLM, "<|endoftext|>"),
    "glm-5.3": Family("GLM-5.3", "glm-5.3", _GLM, "<|endoftext|>"),
    "deepseek-v3": Family("DeepSeek-V3", "deepseek-v3", _DEEPSEEK, _DEEPSEEK[1]),
    "deepseek-r1": Family("DeepSeek-R1", "deepseek-r1", _DEEPSEEK, _DEEPSEEK[1]),
    "deepseek-v4": Family("DeepSeek-V4", "deepseek-v4", _DEEPSEEK_V4, _DEEPSEEK[1]),
    "chatml": Family("ChatML without tools, such as SmolLM2", "default", _CHATML_TAGS, "<|im_end|>", "hermes", CHATML),
    "chatml-tools": Family("ChatML with tools", "default", _QWEN3, "<|im_end|>", "hermes", CHATML_WITH_TOOLS),
    "chatml-qwen3": Family("ChatML with tools", "default", _QWEN3, "<|im_end|>", "qwen3", CHATML_WITH_TOOLS),
    "chatml-thinking": Family(
        "ChatML that opens a thought", "default", _QWEN3, "<|im_end|>", "hermes", CHATML_THINKING
    ),
    "strict": Family("templates without system messages", "default", _CHATML_TAGS, "<|im_end|>", "hermes", STRICT),
}


def save_tokenizer(family: Family, folder: Path) -> Path:
    """A model folder with the family's tokenizer, and nothing else."""
    tokenizer = _harmony(folder) if family.renderer == "gpt-oss" else _bytes()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, extra_special_tokens=list(family.tags), eos_token=family.eos
    )
    fast.chat_template = family.template
    fast.save_pretrained(folder)
    return folder


def load_family(name: str, folder: Path) -> TurnRenderer:
    """The renderer of a family, with a tokenizer saved in `folder`."""
    family = FAMILIES[name]
    return load_renderer(save_tokenizer(family, folder), family.renderer, family.tool_format)


def _bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _harmony(folder: Path) -> Tokenizer:
    """The vocabulary of o200k_harmony, with the few merges that the renderer's own words take: all take a minute.

    openai-harmony is told where its vocabulary is.
    """
    file = folder / "o200k_base.tiktoken"
    file.write_bytes(_o200k())
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, _o200k().splitlines())}
    names = bytes_to_unicode()
    vocab = {"".join(names[byte] for byte in token): rank for token, rank in ranks.items()}
    merges = {}
    for word in ("assistant", "analysis"):
        pieces = [*word]
        while len(pieces) > 1:
            pairs = [(vocab.get(a + b, len(vocab)), i) for i, (a, b) in enumerate(pairwise(pieces))]
            rank, i = min(pairs)
            merges[rank] = (pieces[i], pieces[i + 1])
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    tokenizer = Tokenizer(models.BPE(vocab, [merges[rank] for rank in sorted(merges)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@cache
def _o200k() -> bytes:
    """`o200k_base.tiktoken`, from quicktok's file: the number of entries, then length, bytes and rank of each."""
    spec = find_spec("quicktok")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).with_name("data").joinpath("o200k.vocab").read_bytes()
    [count], at, lines = struct.unpack_from("<I", data), 4, []
    for _ in range(count):
        [length] = struct.unpack_from("<H", data, at)
        token, [rank] = data[at + 2 : at + 2 + length], struct.unpack_from("<I", data, at + 2 + length)
        lines.append((rank, base64.b64encode(token)))
        at += 6 + length
    return b"".join(b"%b %d\n" % (token, rank) for rank, token in sorted(lines))
