"""Documents that can be searched, and questions about them; made up, or from files of JSON lines.

An index is built once and shared by all episodes of the process: it is read and never changed.
"""

import os
import re
import threading
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from moonmill.envs.library.splits import Split
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.jsonl import read_lines

T = TypeVar("T")
_Text = Annotated[str, Meta(min_length=1)]
_WORD = re.compile(r"\w+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_WORD = re.compile(r"[^\w\s]")


class Document(Struct, frozen=True):
    """One document of a corpus: a line of its file."""

    id: _Text
    """What it is asked for by."""
    text: _Text
    title: str = ""


class Question(Struct, frozen=True):
    """One question: a line of its file."""

    question: _Text
    answers: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    """Any of them is right."""
    split: Split | None = None
    """Where it belongs; None leaves it to a hash of the question."""
    level: str = ""
    id: str = ""


class Index:
    """Documents, to be found by their words (BM25 as in Lucene) and to be had by their id.

    Args:
        documents: at least one; their ids differ, and each has a word.

    Raises:
        MissingExtraError: the package that ranks is not installed.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        require_ranking()
        import bm25s

        self.documents = {document.id: document for document in documents}
        self._ids = [*self.documents]
        self._ranking: Any = bm25s.BM25()
        words = [words_of(f"{document.title} {document.text}") for document in documents]
        self._ranking.index(words, create_empty_token=False, show_progress=False)

    def search(self, query: str, most: int) -> list[Document]:
        """The documents that fit best, the best first; of two that fit as well, the one that stands first."""
        known = [word for word in words_of(query) if word in self._ranking.vocab_dict]
        if not known:
            return []
        scores = self._ranking.get_scores(known)
        best = (-scores).argsort(kind="stable")[:most]
        return [self.documents[self._ids[place]] for place in best if scores[place] > 0]


def require_ranking() -> None:
    """Refuse to go on without the package that ranks documents.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("bm25s") is None:
        raise MissingExtraError("search-v0", "search")


_shared: dict[Hashable, Index] = {}
_building = threading.Lock()


def shared_index(key: Hashable, documents: Callable[[], Sequence[Document]]) -> Index:
    """The index of the process that `key` stands for. Whoever is first builds it; the others wait for that."""
    with _building:
        if key not in _shared:
            _shared[key] = Index(documents())
        return _shared[key]


def key_of(path: str) -> Hashable:
    """What an index of a file of documents is shared by: the file as it is now.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        now = os.stat(path)
    except OSError as e:
        raise ConfigError(f"search-v0: corpus {path} cannot be read: {e.strerror}") from e
    return os.path.abspath(path), now.st_mtime_ns, now.st_size


def read_documents(path: str) -> list[Document]:
    """The documents of a file.

    Raises:
        ConfigError: the file, or a line of it, cannot be used.
    """
    places: dict[str, int] = {}
    documents = []
    for number, document in _lines(path, "corpus", Document):
        if document.id in places:
            raise ConfigError(f"{path}:{number}: the id {document.id!r:.100} is that of line {places[document.id]} too")
        if not words_of(document.text):
            raise ConfigError(f"{path}:{number}: text is {document.text!r:.100}, which has no word to be found by")
        places[document.id] = number
        documents.append(document)
    return documents


def read_questions(path: str) -> list[Question]:
    """The questions of a file, each with an id.

    Raises:
        ConfigError: the file, or a line of it, cannot be used.
    """
    questions: dict[str, Question] = {}
    for number, question in _lines(path, "questions", Question):
        for answer in question.answers:
            if not normalized(answer):
                raise ConfigError(
                    f"{path}:{number}: the answer {answer!r:.100} has no word: nothing would be right too"
                )
        key = normalized(question.question)
        if key in questions:
            raise ConfigError(f"{path}:{number}: the question {question.question!r:.100} stands further up already")
        questions[key] = msgspec.structs.replace(question, id=question.id or f"line-{number}")
    return [*questions.values()]


def words_of(text: str) -> list[str]:
    """The words that a text is found by."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def normalized(answer: str) -> str:
    """An answer without case, punctuation, articles and superfluous white space, as SQuAD compares them (arXiv
    1606.05250)."""
    text = _NO_WORD.sub("", unicodedata.normalize("NFKC", answer).casefold())
    return " ".join(_ARTICLES.sub(" ", text).split())


def _lines(path: str, what: str, type: type[T]) -> list[tuple[int, T]]:
    """The records of a file with the numbers of their lines; empty lines are passed over."""
    decoder = msgspec.json.Decoder(type)
    records = []
    for number, line in read_lines(Path(path), f"search-v0: {what} {path}"):
        try:
            records.append((number, decoder.decode(line)))
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}:{number}: {e}") from None
    if not records:
        raise ConfigError(f"search-v0: {what} {path} has no lines")
    return records
