"""Text that comes token by token."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from moonmill.agents.engine.text import Detokenizer, Text


@pytest.fixture(scope="module")
def text() -> Text:
    """A byte-level tokenizer without merges: a character outside of ASCII takes several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Text(tokenizer)


def test_pieces_join_to_the_text(text: Text) -> None:
    ids = text.encode("naïve λ — 月")
    detokenizer = Detokenizer(text)
    pieces = [detokenizer.push([token], last=i == len(ids) - 1)[0] for i, token in enumerate(ids)]
    assert "".join(pieces) == "naïve λ — 月"


def test_an_unfinished_character_is_held_back(text: Text) -> None:
    first, *rest = text.encode("月")
    detokenizer = Detokenizer(text)
    assert detokenizer.push([first]) == ("", 1)
    assert detokenizer.push(rest) == ("月", 2)


def test_an_unfinished_character_is_told_at_the_end(text: Text) -> None:
    first, *_ = text.encode("月")
    assert Detokenizer(text).push([first], last=True) == ("\N{REPLACEMENT CHARACTER}", 1)


def test_text_ends_before_a_stop_string_and_tokens_with_it(text: Text) -> None:
    detokenizer = Detokenizer(text, ["\n\n"])
    assert detokenizer.push(text.encode("one\n")) == ("one", 4)
    assert detokenizer.push(text.encode("\ntwo")) == ("", 1)
    assert detokenizer.stopped == "\n\n"


def test_what_looks_like_the_beginning_of_a_stop_string_is_told_when_it_is_not(text: Text) -> None:
    detokenizer = Detokenizer(text, ["###"])
    told = [detokenizer.push(text.encode(part))[0] for part in ("a##", "b#")]
    told.append(detokenizer.push(text.encode("c"), last=True)[0])
    assert "".join(told) == "a##b#c"
    assert detokenizer.stopped is None


def test_the_first_of_several_stop_strings_counts(text: Text) -> None:
    detokenizer = Detokenizer(text, ["later", "now"])
    assert detokenizer.push(text.encode("right now or later"))[0] == "right "
    assert detokenizer.stopped == "now"


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert Detokenizer(None).push([1, 2, 3]) == ("", 3)
