"""Files that jobs are about: made up, and as they are to be in the end."""

from random import Random

from msgspec import Struct
from msgspec.structs import replace

PLAIN_MODE = 0o644
ANSWER = "out"
"""What the names of files end in that a job has the model write. No other job is about them."""
KEYS = ("port", "host", "user", "depth", "speed", "color")
COLUMNS = ("name", "city", "team")
WORDS = (
    *(
        "amber",
        "bridge",
        "cedar",
        "copper",
        "desert",
        "ember",
        "falcon",
        "garden",
        "harbor",
        "island",
        "jacket",
        "lamp",
    ),
    *("lamps", "lantern", "marble", "moon", "moonlit", "needle", "orchard", "pepper", "quartz", "river", "riverbed"),
    *("saddle", "sand", "sandal", "tunnel", "velvet", "willow", "winter"),
)
"""Some are the beginning of others."""
_NAMES = ("ada", "ben", "cleo", "dina", "egon", "fay", "gus", "hana", "ivo", "jana", "kit", "lea", "milo", "nora")
_MIX = ("txt", "txt", "log", "log", "md", "conf", "conf", "csv", "sh")
_MORE = 5


class Entry(Struct, frozen=True):
    """A file as it is to be."""

    content: str | None
    """None for a program of the model's own, which is tried out instead."""
    mode: int | None = None
    """None is of no account."""
    is_answer: bool = False
    """The model writes it: white space at the ends of its lines is of no account."""
    any_order: bool = False
    """Nor is the order of its lines."""


State = dict[str, Entry]
"""All files, by path."""


def make_files(rng: Random, nested: bool) -> State:
    """Files of several kinds: side by side, or in folders that stand in one another, some with a space in their names.

    No two files have the same name, wherever they are.
    """
    kinds = [*_MIX, *(rng.choices(_MIX, k=_MORE) if nested else [])]
    stems = rng.sample(WORDS, len(kinds))
    folders = ["", *_folders(rng)] if nested else [""]
    found: State = {}
    for kind, stem in zip(kinds, stems, strict=True):
        name = f"old {stem}" if nested and rng.random() < 0.2 else stem
        found[f"{rng.choice(folders)}{name}.{kind}"] = Entry(_content(rng, kind))
    if nested:  # It only looks like one of its kind.
        found[f"{rng.choice(folders)}notes.{rng.choice(_MIX)}.bak"] = Entry(_content(rng, "txt"))
    return found


def keep_modes(state: State) -> State:
    """The same, and from now on modes count."""
    plain = {path: replace(e, mode=PLAIN_MODE) for path, e in state.items() if e.mode is None and not e.is_answer}
    return {**state, **plain}


def table_of(content: str) -> list[dict[str, str]]:
    """The rows of a table, by column."""
    head, *rows = (line.split(",") for line in content.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def _folders(rng: Random) -> list[str]:
    one, two, three = rng.sample(("data", "docs", "lib", "new", "site", "work"), 3)
    return [f"{one}/", f"{one}/{two}/", f"{one}/{two}/my {three}/", f"{three}/"]


def _content(rng: Random, kind: str) -> str:
    if kind == "conf":
        lines = [f"{key}={rng.choice(WORDS)}" for key in rng.sample(KEYS, 4)]
    elif kind == "csv":
        cities, teams = rng.sample(WORDS, 3), rng.sample(WORDS, 3)
        names = rng.sample(_NAMES, rng.randint(6, 9))
        columns = rng.sample(COLUMNS, len(COLUMNS))
        rows = [{"name": name, "city": rng.choice(cities), "team": rng.choice(teams)} for name in names]
        lines = [",".join(columns), *(",".join(row[column] for column in columns) for row in rows)]
    else:
        begin = "echo " if kind == "sh" else ""
        lines = [begin + " ".join(rng.sample(WORDS, rng.randint(2, 4))) for _ in range(rng.randint(3, 8))]
    return "\n".join(lines) + "\n"
