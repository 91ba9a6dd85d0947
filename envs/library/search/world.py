"""A made-up world: people, companies, cities and provinces, what holds of them, and documents that tell it.

What always holds:

- A world depends on nothing but its seed, split and size.
- No name is in worlds of both splits, whatever their seeds, so nothing that is learned of one world answers a question
  about one that is held out.
- Each fact is told in one document: that of its subject, or that of what it leads to, which must then be searched for.
"""

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Literal

from msgspec import Struct

from moonmill.envs.library.search.corpus import Document
from moonmill.envs.library.splits import Split, split_of
from moonmill.seeding import derive_seed

MAX_HOPS = 4
SMALLEST, LARGEST = 40, 20_000
"""Documents of a world."""

Kind = Literal["person", "company", "city", "province"]


class Relation(Struct, frozen=True):
    """What leads from a subject to exactly one other thing."""

    name: str
    """In questions: the NAME of SUBJECT."""
    of: Kind
    to: Kind | tuple[int, int]
    """What it leads to; a pair is a number between the two."""
    told: str
    """In the document of the subject `s`."""
    told_there: str = ""
    """In the document of what it leads to, `o`."""


RELATIONS = (
    Relation("birthplace", "person", "city", "{s} was born in {o}.", "{s} was born here, in {o}."),
    Relation("employer", "person", "company", "{s} works for {o}.", "{o} employs {s}."),
    Relation("mentor", "person", "person", "{s} studied under {o}.", "{o} was the mentor of {s}."),
    Relation("birth year", "person", (1880, 1999), "{s} came into the world in {o}."),
    Relation("founder", "company", "person", "{s} was founded by {o}.", "{o} founded {s}."),
    Relation("seat", "company", "city", "{s} has its seat in {o}.", "{o} is the seat of {s}."),
    Relation("founding year", "company", (1850, 2020), "{s} was set up in {o}."),
    Relation("mayor", "city", "person", "{s} is governed by its mayor {o}.", "{o} is the mayor of {s}."),
    Relation("province", "city", "province", "{s} lies in the province {o}.", "{o} has a city called {s}."),
    Relation("population", "city", (1_000, 900_000), "{s} has a population of {o}."),
    Relation("partner city", "province", "city", "{s} has the partner city {o}.", "{o} is the partner city of {s}."),
    Relation("area", "province", (500, 90_000), "{s} has an area of {o} square kilometres."),
)
_SHARES: dict[Kind, float] = {"company": 0.25, "city": 0.2, "province": 0.05}
"""Of the documents. The rest are people."""
_INTRODUCED: dict[Kind, str] = {
    "person": "{s} is a person of note.",
    "company": "{s} is a company.",
    "city": "{s} is a city.",
    "province": "{s} is a province.",
}
_BEGINNINGS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea"]
_ENDINGS = ["l", "n", "r", "s", "x", "ld", "nd", "rk", "st", "th"]
_FIRST_NAMES = [
    "Ada",
    "Ben",
    "Cleo",
    "Dina",
    "Egon",
    "Fay",
    "Gus",
    "Hana",
    "Ivo",
    "Jana",
    "Kit",
    "Lea",
    "Milo",
    "Nora",
    "Otto",
    "Pia",
    "Rolf",
    "Sana",
    "Tove",
    "Uma",
]


class World(Struct, frozen=True):
    """Everything there is."""

    entities: dict[str, Kind]
    facts: dict[tuple[str, str], str]
    """What the relation of a subject leads to, by both names."""
    documents: tuple[Document, ...]


class Asked(Struct, frozen=True):
    """A question, and what it comes to."""

    text: str
    answer: str


@lru_cache(maxsize=8)
def make_world(seed: int, split: Split, size: int) -> World:
    """The world of a seed and split that has `size` documents."""
    rng = Random(derive_seed(seed, "world", split, size))
    entities = dict(_entities(rng, split, size))
    facts: dict[tuple[str, str], str] = {}
    told: dict[str, list[str]] = {name: [] for name in entities}
    for relation in RELATIONS:
        subjects = [name for name, kind in entities.items() if kind == relation.of]
        for subject, led_to in zip(subjects, _led_to(rng, relation, subjects, entities), strict=True):
            facts[subject, relation.name] = led_to
            here = not relation.told_there or rng.random() < 0.5
            sentence = relation.told if here else relation.told_there
            told[subject if here else led_to].append(sentence.format(s=subject, o=led_to))
    documents = []
    for name, sentences in told.items():
        rng.shuffle(sentences)
        documents.append(Document(name, " ".join((_INTRODUCED[entities[name]].format(s=name), *sentences))))
    rng.shuffle(documents)
    return World(entities, facts, tuple(documents))


def ask(rng: Random, world: World, hops: int) -> Asked:
    """A question that takes `hops` facts, each about what the one before leads to."""
    names = [*world.entities]
    while True:
        passed = [rng.choice(names)]
        text = passed[0]
        for hop in range(hops):
            kind = world.entities[passed[-1]]
            is_last = hop == hops - 1
            ways = [r for r in RELATIONS if r.of == kind and (is_last or isinstance(r.to, str))]
            relation = rng.choice(ways)
            text = f"the {relation.name} of {text}"
            passed.append(world.facts[passed[-1], relation.name])
        if len(set(passed)) == len(passed):  # In a circle, an answer would stand in the question.
            return Asked(f"What is {text}?", passed[-1])


def _entities(rng: Random, split: Split, size: int) -> Iterator[tuple[str, Kind]]:
    counts = {kind: int(share * size) for kind, share in _SHARES.items()}
    counts["person"] = size - sum(counts.values())
    taken = {*_FIRST_NAMES}
    for kind, count in counts.items():
        while count:
            word = _word(rng)
            name = f"{rng.choice(_FIRST_NAMES)} {word}" if kind == "person" else word
            if word not in taken and split_of(word) == split:
                taken.add(word)
                yield name, kind
                count -= 1


def _led_to(rng: Random, relation: Relation, subjects: list[str], entities: dict[str, Kind]) -> list[str]:
    """What the relation leads to from each of the subjects. Nobody is mayor of two cities."""
    if not isinstance(relation.to, str):
        return [str(rng.randint(*relation.to)) for _ in subjects]
    there = [name for name, kind in entities.items() if kind == relation.to]
    if relation.name == "mayor":
        return rng.sample(there, len(subjects))
    return [_other_than(rng, subject, there) for subject in subjects]


def _other_than(rng: Random, subject: str, there: list[str]) -> str:
    while (found := rng.choice(there)) == subject:
        pass
    return found


def _word(rng: Random) -> str:
    """A name that no language has."""
    middle = "".join(rng.choice(_BEGINNINGS) + rng.choice(_VOWELS) for _ in range(2))
    return (middle + rng.choice(_ENDINGS)).capitalize()
