"""Tokens to text and back, for the parts of the protocol that speak text.

Training does not need them: a model folder without a tokenizer serves token ids.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for a character of which bytes are still missing."""


class Text:
    """A model's tokenizer, as far as completions need it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        # Unlike `encode`, this lets other threads run meanwhile.
        ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token(self, token_id: int) -> str:
        """A token as its own text."""
        return self.decode((token_id,), skip_special=False)


class Detokenizer:
    """The text of a growing list of tokens, given out as it becomes certain, up to a stop string.

    Args:
        text: the tokenizer; None: there is no text.
        stops: strings that end the text; none of them is given out.
        skip_special: leave special tokens out of the text.
    """

    def __init__(self, text: Text | None, stops: Sequence[str] = (), skip_special: bool = True) -> None:
        self._text = text
        self._stops = stops
        self._skip = skip_special
        self._held_back = max((len(stop) for stop in stops), default=1) - 1
        self._ids: list[int] = []
        self._anchor = 0
        """Tokens before it are decoded for good; some before the news are decoded again, since decoders join tokens."""
        self._read = 0
        self._pending = ""
        self.stopped: str | None = None
        """The stop string that was met."""

    def push(self, ids: Sequence[int], last: bool = False) -> tuple[str, int]:
        """Take tokens; returns the text that is certain by now, and how many of the tokens belong to it.

        The second is less than given only where a stop string was met: it was complete with that token.
        """
        if self._text is None:
            return "", len(ids)
        if not self._stops:
            return self._decode(ids, last), len(ids)
        out = ""
        for i, token in enumerate(ids):
            self._pending += self._decode((token,), last and i == len(ids) - 1)
            found = min(((self._pending.find(s), s) for s in self._stops if s in self._pending), default=None)
            if found is not None:
                self.stopped = found[1]
                return out + self._pending[: found[0]], i + 1
            certain = len(self._pending) - self._held_back
            if certain > 0:
                out, self._pending = out + self._pending[:certain], self._pending[certain:]
        if last:
            out, self._pending = out + self._pending, ""
        return out, len(ids)

    def _decode(self, ids: Sequence[int], last: bool) -> str:
        assert self._text is not None
        self._ids += ids
        before = self._text.decode(self._ids[self._anchor : self._read], self._skip)
        after = self._text.decode(self._ids[self._anchor :], self._skip)
        if len(after) <= len(before) or (after.endswith(_UNFINISHED) and not last):
            return ""
        self._anchor, self._read = self._read, len(self._ids)
        return after[len(before) :]


def load_text(model_dir: str) -> Text | None:
    """The tokenizer of a model folder, None where it has none."""
    file = Path(model_dir) / "tokenizer.json"
    if file.is_file():
        return Text(Tokenizer.from_file(str(file)))
    from transformers import AutoTokenizer

    try:
        return Text(AutoTokenizer.from_pretrained(model_dir).backend_tokenizer)
    except Exception:  # there is none, or none that can be made fast: then this engine serves token ids only
        return None
