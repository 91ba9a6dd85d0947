"""The supervisor as one program that can be taken anywhere."""

import functools
import re
from importlib.resources import files

_MODULES = ("frames", "processes", "pipes", "files", "child", "supervisor", "main")
_TAKEN_OUT = re.compile(
    r"^from (__future__|moonmill\.[\w.]+|typing|collections\.abc) import (\([^)]*\)|[^\n]*)\n", re.MULTILINE
)
"""What stands in the same program, and what is named in annotations alone, which nobody looks at."""
_DOCSTRING = re.compile(r'\A""".*?"""\n', re.DOTALL)


@functools.cache
def source() -> str:
    """Its source, for `python3 -I -S -c SOURCE`: the modules of `moonmill.sandboxes.inside` one after the other."""
    folder = files("moonmill.sandboxes.inside")
    parts = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES]
    bodies = [_TAKEN_OUT.sub("", _DOCSTRING.sub("", part)).strip("\n") for part in parts]
    # The same module without its enums, which take a quarter of the whole start.
    bodies = [body.replace("import signal\n", "import _signal as signal\n") for body in bodies]
    return "\n\n".join(["from __future__ import annotations", *bodies, "main()", ""])
