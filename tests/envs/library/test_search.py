"""The search environment: a made-up world or files of the user's own, found by words and read."""

import json
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from moonmill.envs.library.search import corpus
from moonmill.envs.library.search.corpus import (
    Document,
    Index,
    normalized,
    read_documents,
    read_questions,
    shared_index,
)
from moonmill.envs.library.search.env import PAGE, Search
from moonmill.envs.library.search.expert import demonstrate
from moonmill.envs.library.search.world import RELATIONS, ask, make_world
from moonmill.envs.library.splits import split_of
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.types import Message, Status, StopReason, Task
from tests.envs.library.playing import experience, play, play_at_once, saying, tasks, told
from tests.envs.parts import call

ID = "search-v0"
MOONS = [
    {"id": "io", "text": "Io is a moon of Jupiter, found by Galileo.", "title": "Io"},
    {"id": "titan", "text": "Titan is a moon of Saturn. " + "It has lakes. " * 1000 + "Huygens found it."},
]
ASKED = [
    {"question": "Who found Io?", "answers": ["Galileo", "Galileo Galilei"], "split": "train", "level": "easy"},
    {"question": "Who found Titan?", "answers": ["Huygens"], "split": "eval", "id": "titan-1", "source": "an atlas"},
]


def write(path: Path, *records: Any) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {"corpus": write(tmp_path / "c.jsonl", *MOONS), "questions": write(tmp_path / "q.jsonl", *ASKED)}


# The made-up world


def test_a_world_is_made_of_its_seed_and_split_and_shares_no_name_with_the_other_split() -> None:
    worlds = {(seed, split): make_world(seed, split, 60) for seed in (0, 1) for split in ("train", "eval")}
    make_world.cache_clear()
    assert make_world(0, "train", 60) == worlds[0, "train"] != worlds[1, "train"]
    for (_, split), world in worlds.items():
        assert len(world.documents) == len(world.entities) == 60
        assert {split_of(name.split()[-1]) for name in world.entities} == {split}


def test_each_fact_is_told_in_one_document_and_half_of_them_not_in_the_subjects_own() -> None:
    world = make_world(0, "train", 200)
    here = Counter[bool]()
    for relation in RELATIONS:
        for (subject, name), led_to in world.facts.items():
            if name == relation.name:
                sentences = [s.format(s=subject, o=led_to) for s in (relation.told, relation.told_there) if s]
                [place] = [d.id for d in world.documents for s in sentences if s in d.text]
                here[place == subject] += 1
    assert 0.25 < here[False] / here.total() < 0.5


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_a_question_takes_as_many_facts_as_its_level_and_its_answer_is_what_they_lead_to(hops: int) -> None:
    world, rng = make_world(0, "train", 60), Random(0)
    for _ in range(50):
        asked = ask(rng, world, hops)
        *names, subject = (
            asked.text.removeprefix("What is the ").removesuffix("?").replace(" of the ", " of ").split(" of ")
        )
        assert len(names) == hops
        for name in reversed(names):
            subject = world.facts[subject, name]
        assert subject == asked.answer
        assert asked.answer not in asked.text


def test_the_same_seed_makes_the_same_tasks_and_no_task_is_in_both_splits() -> None:
    assert tasks(ID, "train", 50) == tasks(ID, "train", 50) != tasks(ID, "train", 50, seed=1)
    train, held_out = ({t.prompt for s in range(3) for t in tasks(ID, split, 300, s)} for split in ("train", "eval"))
    assert not train & held_out
    assert {t.level for t in tasks(ID, "eval", 50, levels=[2, 4])} == {"2", "4"}


# Episodes


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_expert_answers_every_question_also_when_episodes_are_interleaved(split: str) -> None:
    played = tasks(ID, split, 40)
    rollouts = play_at_once(ID, played, demonstrate)
    assert {(r.status, r.stop_reason, r.reward) for r in rollouts} == {(Status.FINISHED, StopReason.ANSWERED, 1.0)}
    assert all(r.metrics["f1"] == 1.0 and r.metrics["searches"] <= int(r.task.level) for r in rollouts)
    alone = [play(ID, task, demonstrate, seed) for seed, task in enumerate(played[:5])]
    assert [*map(experience, alone)] == [*map(experience, rollouts[:5])]


@pytest.mark.parametrize(
    ("answer", "reward", "f1"),
    [
        ("Mount Doom", 1.0, 1.0),
        (" the mount doom. ", 1.0, 1.0),
        ("Mount", 0.0, 2 / 3),
        ("It is Mount Doom", 0.0, 2 / 3),
        ("Orodruin", 1.0, 1.0),
        ("", 0.0, 0.0),
        ("the", 0.0, 0.0),
    ],
)
def test_an_answer_is_compared_without_case_punctuation_and_articles(answer: str, reward: float, f1: float) -> None:
    rollout = play(ID, Task("?", ["Mount Doom", "Orodruin"]), lambda messages: answer)
    assert (rollout.reward, rollout.metrics["f1"]) == (reward, pytest.approx(f1))


def test_an_episode_that_was_cut_is_worth_nothing() -> None:
    rollout = play(ID, Task("?", ["x"]), lambda messages: Message("assistant", "x", (call("search", query="x"),)))
    assert (rollout.status, rollout.reward) == (Status.TRUNCATED, 0.0)


def test_what_is_found_is_shown_with_its_id_and_read_by_pages(files: dict[str, str]) -> None:
    turns = (
        call("search", query="moon of Jupiter"),
        call("search", query="moon", k=1),
        call("search", query="!"),
        call("search", query="zebra"),
        call("read", document="io"),
        call("read", document="titan", page=2),
        call("read", document="titan", page=3),
        call("read", document="pan"),
        call("search", query="moon", k=0),
    )
    rollout = play(ID, Task("?", ["x"]), saying(*turns), **files)
    found, best, mark, zebra, io, titan, beyond, pan, none = told(rollout)
    assert found.splitlines() == [
        "[io] Io: Io is a moon of Jupiter, found by Galileo.",
        "[titan] Titan is a moon of Saturn. It has lakes. It has lakes. It has lakes. It has lake…",
    ]
    assert best == found.splitlines()[0]
    assert mark == zebra == "no document has any of these words"
    assert io == MOONS[0]["text"]
    assert titan == f"{MOONS[1]['text'][PAGE:]}\n[page 2 of 2]"
    assert beyond == "error: page is 3, but the document has 2"
    assert pan.startswith("error: there is no document 'pan'")
    assert "k" in none
    assert rollout.metrics == {"f1": 0.0, "searches": 4.0, "reads": 4.0}


# Files of the user's own


def test_questions_of_ones_own_are_asked_in_their_split(files: dict[str, str]) -> None:
    [task, again] = tasks(ID, "train", 2, **files)
    assert (task.prompt, task.answer, task.level, task.id) == (
        ASKED[0]["question"],
        ASKED[0]["answers"],
        "easy",
        "line-1",
    )
    assert again.id == task.id
    [held_out] = tasks(ID, "eval", 1, **files)
    assert held_out.id == "titan-1"
    assert play(ID, task, saying(call("search", query="Io"), "Galileo Galilei"), **files).reward == 1.0


def test_a_question_without_a_split_belongs_to_one_by_its_text(tmp_path: Path) -> None:
    asked = [{"question": f"What is {n}?", "answers": ["x"]} for n in range(80)]
    files = {"corpus": write(tmp_path / "c", *MOONS), "questions": write(tmp_path / "q", *asked)}
    train, held_out = ({t.prompt for t in tasks(ID, split, 80, **files)} for split in ("train", "eval"))
    assert not train & held_out
    assert len(train | held_out) == 80
    assert len(held_out) < len(train)


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((MOONS[0], "{"), "c.jsonl:2: "),
        ((MOONS[0], "", '{"id": "x"}'), "c.jsonl:3: Object missing required field `text`"),
        ((MOONS[0], {"id": "x", "text": 1}), r"c.jsonl:2: Expected `str`, got `int` - at `\$.text`"),
        ((MOONS[0], {"id": "", "text": "x"}), r"c.jsonl:2: Expected `str` of length >= 1 - at `\$.id`"),
        ((*MOONS, MOONS[0]), "c.jsonl:3: the id 'io' is that of line 1 too"),
        (({"id": "x", "text": "!?"},), "c.jsonl:1: text is '!\\?', which has no word to be found by"),
        ((), "corpus .*c.jsonl has no lines"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_with_the_line(tmp_path: Path, records: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_documents(write(tmp_path / "c.jsonl", *records))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ((ASKED[0], {"question": "?", "answers": []}), r"q.jsonl:2: Expected `array` of length >= 1 - at `\$.answers`"),
        (({**ASKED[0], "split": "test"},), r"q.jsonl:1: Invalid enum value 'test' - at `\$.split`"),
        (({"question": "?", "answers": ["x", "The!"]},), "q.jsonl:1: the answer 'The!' has no word"),
        (
            (*ASKED, {**ASKED[0], "split": "eval"}),
            "q.jsonl:3: the question 'Who found Io\\?' stands further up already",
        ),
        (('"\\ud800"',), "q.jsonl:1: "),
    ],
)
def test_questions_that_cannot_be_used_are_refused_with_the_line(tmp_path: Path, records: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_questions(write(tmp_path / "q.jsonl", *records))


def test_files_may_begin_with_a_byte_order_mark(files: dict[str, str]) -> None:
    for file in map(Path, files.values()):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    assert read_documents(files["corpus"])
    assert read_questions(files["questions"])


def test_files_and_arguments_that_do_not_fit_are_refused(files: dict[str, str], tmp_path: Path) -> None:
    for arguments, says in (
        ({"corpus": files["corpus"]}, "they go together"),
        ({**files, "levels": [1]}, "are for a made-up world"),
        ({"levels": [5]}, "whole numbers from 1 to 4"),
        ({"documents": 10}, "documents is 10, but should be from 40 to 20,000"),
    ):
        with pytest.raises(ConfigError, match=says):
            Search(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"corpus .*none cannot be read: No such file"):
        Search(**{**files, "corpus": str(tmp_path / "none")})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"questions .* cannot be read: Is a directory"):
        tasks(ID, "train", 1, **{**files, "questions": str(tmp_path)})
    with pytest.raises(ConfigError, match="it has train and eval"):
        tasks(ID, "test", 1)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'moonmill\[search\]'"):
        Search()


# The index


def test_an_index_is_built_once_however_many_threads_ask_for_it() -> None:
    made: list[int] = []

    def documents() -> list[Document]:
        made.append(1)
        return [Document("a", "one word")]

    found: list[Index] = []
    threads = [threading.Thread(target=lambda: found.append(shared_index("test", documents))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({*map(id, found)}) == 1


def test_rare_words_count_for_more_and_of_equals_the_first_comes_first() -> None:
    texts = ("the moon", "the moon Io", "the sun", "the sun", "Straße")
    index = Index([Document(str(i), text) for i, text in enumerate(texts)])
    assert [d.id for d in index.search("io moon", 5)] == ["1", "0"]
    assert [d.id for d in index.search("SUN", 5)] == ["2", "3"]
    assert [d.id for d in index.search("STRASSE", 5)] == ["4"]
    assert len(index.search("the", 2)) == 2


def test_answers_are_normalized_as_in_squad() -> None:
    assert normalized("The  Quick, brown-fox an A.") == "quick brownfox"
    assert normalized("ﬁne") == "fine"
