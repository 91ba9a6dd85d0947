"""What a layer keeps of a sequence between two tokens: keys and values, a window of them, or a state."""

from typing import Any

from msgspec import Struct

from moonmill.errors import ConfigError

_KINDS = {"full_attention", "attention", "sliding_attention", "linear_attention"}
_FLOAT32 = 4


class Cached(Struct, frozen=True):
    """A layer's attention, whatever its kind. Widths are numbers a token."""

    keys: int
    """Keys and values it caches of its own: 0 where it reads an earlier layer's, or has none."""
    window: int | None
    """Tokens it looks back; None is all of them."""
    state: int
    """Bytes that a sequence takes in it however long it is: the state of linear attention."""
    queries: int
    """Width of all query heads together."""
    heads: int


def cached_by(text: Any, index: int) -> Cached:
    """What a layer keeps of a sequence, by the configuration of the text part.

    Raises:
        ConfigError: it is of a kind that is not known here.
    """
    kinds = getattr(text, "layer_types", None)
    kind = kinds[index] if kinds else "sliding_attention" if _slides(text) else "full_attention"
    if kind not in _KINDS:
        raise ConfigError(
            f"model.path: what layers of the kind {kind} cache is not known here; known are full_attention, "
            "sliding_attention and linear_attention"
        )
    own = text.per_layer_config[index]
    heads = own.num_attention_heads
    width = getattr(own, "head_dim", None) or own.hidden_size // heads
    if kind == "linear_attention":
        return Cached(0, None, _state(text), _linear_width(text), text.linear_num_value_heads)
    sharing = getattr(text, "kv_sharing_modes", None)
    keys = 2 * (getattr(own, "num_key_value_heads", None) or heads) * width
    if latent := getattr(text, "kv_lora_rank", None):  # multi-head latent attention keeps one compressed vector
        keys = latent + text.qk_rope_head_dim
    return Cached(
        keys=0 if sharing and sharing[index] == "reuse" else keys,
        window=text.sliding_window if kind == "sliding_attention" else None,
        state=0,
        queries=heads * width,
        heads=heads,
    )


def _slides(text: Any) -> bool:
    return getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)


def _linear_width(text: Any) -> int:
    width: int = text.linear_num_value_heads * text.linear_value_head_dim
    return width


def _state(text: Any) -> int:
    """Bytes of a gated delta net's state, kept in float32, with the last tokens of its convolution."""
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    convolved = (2 * keys + _linear_width(text)) * (text.linear_conv_kernel_dim - 1)
    size: int = _FLOAT32 * (_linear_width(text) * text.linear_key_head_dim + convolved)
    return size
