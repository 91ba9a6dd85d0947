"""Jobs to do in a shell, each in words, as what becomes of the files, and as the command that an expert runs.

A job of a family differs from the others by its fields; in its words they stand in backticks.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from moonmill.envs.library.terminal.files import ANSWER, COLUMNS, KEYS, WORDS, Entry, State, keep_modes, table_of

Fields = Mapping[str, str]
_KINDS = ("txt", "log", "md", "conf", "sh")
_NEW_KINDS = ("data", "text", "old", "page", "copy", "draft", "final", "raw")
_NEW_FOLDERS = ("kept", "store", "archive", "box", "attic", "shelf", "drawer", "all")
_MODES = ("600", "640", "660", "664", "700", "750", "755", "775")
_TARGETS = tuple(f"{name}.{ANSWER}" for name in ("answer", "found", "result", "list", "report"))
_FIELD = re.compile(r"\{(\w+)\}")


class Family(Struct, frozen=True):
    """Jobs of one kind."""

    words: str
    command: str
    draw: Callable[[Random, State], dict[str, str]]
    """Fields for a job that has something to do with these files."""
    done: Callable[[State, Fields], State]
    """What the files are afterwards."""
    output: Callable[[State, Fields], str] | None = None
    """What the program prints for a folder, where the job is to write one."""


def fill(template: str, fields: Fields) -> str:
    """Words or a command of a family, with the fields of a job."""
    return _FIELD.sub(lambda found: fields.get(found[1], found[0]), template)


def _with(state: State, word: str) -> list[str]:
    """The files that contain a word."""
    return [path for path, entry in state.items() if re.search(rf"\b{word}\b", entry.content or "")]


def _of_kind(state: State, kind: str) -> list[str]:
    return [path for path in state if path.endswith(f".{kind}")]


def _count(state: State, fields: Fields) -> str:
    lines = [line for p in _of_kind(state, fields["kind"]) for line in (state[p].content or "").splitlines()]
    return str(sum(re.search(rf"\b{fields['word']}\b", line) is not None for line in lines))


def _kind(rng: Random, state: State) -> str:
    return rng.choice([kind for kind in _KINDS if _of_kind(state, kind)])


def _word(rng: Random, state: State) -> str:
    there = {word for entry in state.values() for word in re.findall(r"\w+", entry.content or "")}
    return rng.choice([word for word in WORDS if word in there])


def _key(rng: Random, state: State) -> str:
    there = {line.partition("=")[0] for path in _of_kind(state, "conf") for line in (state[path].content or "").split()}
    return rng.choice([key for key in KEYS if key in there])


def _target(rng: Random, state: State) -> str:
    return rng.choice([target for target in _TARGETS if target not in state])


def _draw_extract(rng: Random, state: State) -> dict[str, str]:
    table = rng.choice(_of_kind(state, "csv"))
    column, by = rng.sample(COLUMNS, 2)
    value = rng.choice(table_of(state[table].content or ""))[by]
    return {"table": table, "column": column, "by": by, "value": value, "target": _target(rng, state)}


def _done_extract(state: State, f: Fields) -> State:
    rows = [row[f["column"]] for row in table_of(state[f["table"]].content or "") if row[f["by"]] == f["value"]]
    return {**state, f["target"]: Entry("\n".join(rows), is_answer=True)}


def _done_edit(state: State, f: Fields) -> State:
    changed = {}
    for path in _of_kind(state, "conf"):
        content = re.sub(rf"^{f['key']}=.*", f"{f['key']}={f['value']}", state[path].content or "", flags=re.MULTILINE)
        changed[path] = replace(state[path], content=content)
    return {**state, **changed}


def _done_permissions(state: State, f: Fields) -> State:
    state = keep_modes(state)
    return {**state, **{path: replace(state[path], mode=int(f["mode"], 8)) for path in _of_kind(state, f["kind"])}}


def _moved(state: State, paths: list[str], to: Callable[[str], str]) -> State:
    return {to(path) if path in paths else path: entry for path, entry in state.items()}


FAMILIES = {
    "find": Family(
        "Write the paths of all files that contain the word `{word}` into `{target}`, one on a line, in any order, and "
        "each as it is seen from here, such as `a/b.txt`.",
        "found=$(grep -rlw '{word}' . | cut -c3-); printf '%s\\n' \"$found\" > '{target}'",
        lambda rng, state: {"word": _word(rng, state), "target": _target(rng, state)},
        lambda state, f: {
            **state,
            f["target"]: Entry("\n".join(_with(state, f["word"])), is_answer=True, any_order=True),
        },
    ),
    "count": Family(
        "Count the lines with the word `{word}` in all files that end in `.{kind}`. Write the number into `{target}`.",
        "find . -type f -name '*.{kind}' -exec cat {} + | grep -w '{word}' | wc -l > '{target}'",
        lambda rng, state: {"word": _word(rng, state), "kind": _kind(rng, state), "target": _target(rng, state)},
        lambda state, f: {**state, f["target"]: Entry(_count(state, f), is_answer=True)},
    ),
    "rename": Family(
        "Rename all files that end in `.{kind}`, so that they end in `.{new}` instead.",
        "find . -type f -name '*.{kind}' -exec bash -c 'mv -- \"$1\" \"${1%.{kind}}.{new}\"' _ {} ';'",
        lambda rng, state: {"kind": _kind(rng, state), "new": rng.choice(_NEW_KINDS)},
        lambda state, f: _moved(state, _of_kind(state, f["kind"]), lambda p: p.removesuffix(f["kind"]) + f["new"]),
    ),
    "edit": Family(
        "In all files that end in `.conf`, give the key `{key}` the value `{value}`, where it is set.",
        "find . -type f -name '*.conf' -exec sed -i 's/^{key}=.*/{key}={value}/' {} +",
        lambda rng, state: {"key": _key(rng, state), "value": str(rng.randint(10, 999))},
        _done_edit,
    ),
    "extract": Family(
        "`{table}` is a table. Write the column `{column}` of the rows whose `{by}` is `{value}` into `{target}`, one "
        "value on a line, in their order.",
        "awk -F, -v c='{column}' -v b='{by}' -v v='{value}' "
        "'NR==1{for(i=1;i<=NF;i++)n[$i]=i;next} $n[b]==v{print $n[c]}' '{table}' > '{target}'",
        _draw_extract,
        _done_extract,
    ),
    "permissions": Family(
        "Give all files that end in `.{kind}` the mode `{mode}`. All other files keep theirs.",
        "find . -type f -name '*.{kind}' -exec chmod {mode} {} +",
        lambda rng, state: {"kind": _kind(rng, state), "mode": rng.choice(_MODES)},
        _done_permissions,
    ),
    "gather": Family(
        "Move all files that end in `.{kind}`, wherever they are, into the folder `{folder}`.",
        "mkdir -p '{folder}'; find . -type f -name '*.{kind}' -exec mv -t '{folder}' -- {} +",
        lambda rng, state: {"kind": _kind(rng, state), "folder": rng.choice(_NEW_FOLDERS)},
        lambda state, f: _moved(
            state, _of_kind(state, f["kind"]), lambda p: posixpath.join(f["folder"], posixpath.basename(p))
        ),
    ),
    "script": Family(
        "Write a script `{script}`. Run as `bash {script} FOLDER`, it prints how many lines with the word `{word}` the "
        "files below the folder have that end in `.{kind}`.",
        'echo \'find "$1" -type f -name "*.{kind}" -exec cat {} + | grep -w "{word}" | wc -l\' > \'{script}\'',
        lambda rng, state: {
            "script": rng.choice(("count", "lines", "tally")) + f".{ANSWER}",
            "word": rng.choice(WORDS),
            "kind": rng.choice(_KINDS),
        },
        lambda state, f: {**state, f["script"]: Entry(None, is_answer=True)},
        output=_count,
    ),
}
