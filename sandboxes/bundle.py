"""The supervisor as one program that can be taken anywhere."""

import functools
import re
from importlib.resources import files

_MODULES = ("frames", "processes", "pipes", "files", "child", "supervisor")
_OURS = re.compile(r"^from (__future__|moonmill\.[\w.]+) import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)
_DOCSTRING = re.compile(r'\A""".*?"""\n', re.DOTALL)


@functools.cache
def source() -> str:
    """Its source, for `python3 -I -S -c SOURCE`: the modules of `moonmill.sandboxes.inside` one after the other."""
    folder = files("moonmill.sandboxes.inside")
    parts = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES]
    bodies = [_OURS.sub("", _DOCSTRING.sub("", part)).strip("\n") for part in parts]
    return "\n\n".join(["from __future__ import annotations", *bodies, "main()", ""])
