"""`search-v0`: answer a question from documents that have to be searched.

The documents are a made-up world's, where an answer takes one to four facts, each from another document; or a corpus
and questions of the user's own, from files of JSON lines.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from moonmill.envs import MultiTurnEnv, metric, reward, tool
from moonmill.envs.library.search.corpus import (
    Document,
    Index,
    key_of,
    normalized,
    read_documents,
    read_questions,
    require_ranking,
    shared_index,
)
from moonmill.envs.library.search.world import LARGEST, MAX_HOPS, SMALLEST, ask, make_world
from moonmill.envs.library.splits import Split, check_split, checked_levels, split_of
from moonmill.envs.tools import ToolArgumentsError
from moonmill.errors import ConfigError
from moonmill.types import Rollout, Status, StopReason, Task

EXCERPT = 80
"""Characters of a document that a search shows."""
PAGE = 8_000
"""Characters of a document that are read at once."""

_Most = Annotated[int, Meta(ge=1, le=20)]
_Page = Annotated[int, Meta(ge=1)]


class Search(MultiTurnEnv):
    """Answer a question from documents that have to be searched.

    Args:
        corpus: a file with documents, one JSON object a line; None makes a world up.
        questions: a file with questions about them, likewise.
        levels: of questions about a made-up world, the numbers of facts that an answer takes, from 1 to 4; each is as
            likely as the others. All of them unless given.
        documents: how many a made-up world has, from 40 to 20,000; 200 unless given.
        world: which of the made-up worlds.
    """

    max_turns = 24
    max_seconds = 600.0
    reward_bounds = (0.0, 1.0)
    system_prompt = (
        "Find the answer to the question in a collection of documents: `search` finds them by words, `read` shows one. "
        "It may take several documents, one after another. Answer with the name or number alone, in no sentence."
    )

    def __init__(
        self,
        corpus: str | None = None,
        questions: str | None = None,
        levels: Sequence[int] | None = None,
        documents: int | None = None,
        world: int = 0,
    ) -> None:
        require_ranking()
        if (corpus is None) != (questions is None):
            raise ConfigError(
                f"search-v0: corpus is {corpus!r} and questions is {questions!r}, but they go together: give both, or "
                "neither for a made-up world"
            )
        if corpus is not None and not (levels is None and documents is None):
            raise ConfigError("search-v0: levels and documents are for a made-up world: leave them out with a corpus")
        self.levels = checked_levels("search-v0", (1, 2, 3, 4) if levels is None else levels, MAX_HOPS)
        self.size = 200 if documents is None else documents
        if self.size not in range(SMALLEST, LARGEST + 1):
            raise ConfigError(f"search-v0: documents is {documents!r}, but should be from {SMALLEST} to {LARGEST:,}")
        self.corpus = corpus
        self.corpus_key = key_of(corpus) if corpus is not None else None
        self.questions = questions
        self.world = world
        self.calls: Counter[str] = Counter()

    def tasks(self, split: str) -> Iterator[Task]:
        check_split("search-v0", split)
        self._index(split)  # What is wrong with a corpus is told before anything is played.
        rng = self.task_rng(split)
        if self.questions is not None:
            mine = [q for q in read_questions(self.questions) if (q.split or split_of(q.question)) == split]
            rng.shuffle(mine)
            for question in mine:
                yield Task(question.question, [*question.answers], id=question.id, split=split, level=question.level)
            return
        world = make_world(self.world, _known(split), self.size)
        while True:
            hops = rng.choice(self.levels)
            asked = ask(rng, world, hops)
            yield Task(asked.text, [asked.answer], split=split, level=str(hops))

    @tool
    def search(self, query: str, k: _Most = 5) -> str:
        """Find the documents that fit some words best. Shows how each begins.

        Args:
            query: words to look for, such as names
            k: how many documents to show at most
        """
        self.calls["search"] += 1
        found = self._index(self.task.split).search(query, k)
        return "\n".join(map(_as_found, found)) or "no document has any of these words"

    @tool
    def read(self, document: str, page: _Page = 1) -> str:
        """Read a document.

        Args:
            document: its id, which stands in brackets in front of what a search has found
            page: which part of a long one
        """
        self.calls["read"] += 1
        found = self._index(self.task.split).documents.get(document)
        if found is None:
            raise ToolArgumentsError(f"error: there is no document {document!r:.200}: a search shows ids in brackets")
        pages = -(-len(found.text) // PAGE)
        if page > pages:
            raise ToolArgumentsError(f"error: page is {page}, but the document has {pages}")
        text = found.text[(page - 1) * PAGE : page * PAGE]
        return text if pages == 1 else f"{text}\n[page {page} of {pages}]"

    @reward
    def correct(self, rollout: Rollout) -> float:
        return float(normalized(_answer(rollout)) in map(normalized, self.task.answer))

    @metric
    def f1(self, rollout: Rollout) -> float:
        return max(_f1(_answer(rollout), answer) for answer in self.task.answer)

    @metric
    def searches(self, rollout: Rollout) -> float:
        return float(self.calls["search"])

    @metric
    def reads(self, rollout: Rollout) -> float:
        return float(self.calls["read"])

    def _index(self, split: str) -> Index:
        if self.corpus is not None:
            return shared_index(self.corpus_key, partial(read_documents, self.corpus))
        world = partial(make_world, self.world, _known(split), self.size)
        return shared_index((self.world, _known(split), self.size), lambda: world().documents)


def _known(split: str) -> Split:
    """A task that was made by hand may have no split: it is about the world that is trained on."""
    return "eval" if split == "eval" else "train"


def _as_found(document: Document) -> str:
    beginning = " ".join(document.text[:EXCERPT].split())
    title = f"{document.title}: " if document.title else ""
    return f"[{document.id}] {title}{beginning}{'…' if len(document.text) > EXCERPT else ''}"


def _answer(rollout: Rollout) -> str:
    """What was answered; nothing where the episode was cut."""
    answered = rollout.status is Status.FINISHED and rollout.stop_reason is StopReason.ANSWERED
    return rollout.final_text() if answered else ""


def _f1(answer: str, wanted: str) -> float:
    """The harmonic mean of precision and recall over words, as SQuAD has it."""
    given, right = normalized(answer).split(), normalized(wanted).split()
    common = (Counter(given) & Counter(right)).total()
    return 2 * common / (len(given) + len(right)) if common else 0.0
