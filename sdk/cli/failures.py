"""From an exception to the words and the exit code it ends with."""

import tempfile
import traceback
from collections.abc import Iterator

from moonmill.blame import text_of
from moonmill.errors import MoonmillError

_TRAIN_EXTRA = frozenset({"peft", "renderers", "safetensors", "starlette", "torch", "transformers", "uvicorn"})


def explain(error: BaseException) -> tuple[str, int]:
    """What to print for `error`, and the exit code. A group of errors is explained by what it holds."""
    leaves = list(_leaves(error))
    ours = [e for e in leaves if isinstance(e, MoonmillError)]
    if ours and len(ours) == len(leaves):
        return "\n".join(dict.fromkeys(f"error: {text_of(e)}" for e in ours)), max(e.exit_code for e in ours)
    if any(isinstance(e, KeyboardInterrupt | EOFError) for e in leaves):
        return "stopped", 1
    for leaf in leaves:
        if isinstance(leaf, ModuleNotFoundError) and (leaf.name or "").split(".")[0] in _TRAIN_EXTRA:
            return f"error: this needs {leaf.name}, which is not installed: pip install 'moonmill[train]'", 1
    return _internal(error, leaves[0]), 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _internal(error: BaseException, leaf: BaseException) -> str:
    said = " ".join(text_of(leaf).split())
    what = f"internal error: {type(leaf).__name__}{f': {said}' if said else ''} (this is a bug in moonmill; "
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="moonmill-error-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        return f"{what}its traceback follows)\n{text}"
    return f"{what}traceback in {file.name})"
