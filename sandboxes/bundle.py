"""The supervisor as one program that can be taken anywhere."""

import functools
import re
import subprocess
from importlib.resources import files

from moonmill.sandboxes.errors import SandboxUnavailableError

_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_COMPILE_SECONDS = 30.0
_FUTURE = "from __future__ import annotations\n"
_COMPILE = (  # What the first line does, without the module that it would import at each start.
    "import __future__,marshal,sys,importlib.util as u;"
    "c=compile(sys.stdin.read(),'supervisor','exec',__future__.annotations.compiler_flag,optimize=1);"
    "sys.stdout.buffer.write(u.MAGIC_NUMBER+bytes(12)+marshal.dumps(c))"
)
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


def compiled() -> tuple[str, bytes]:
    """A Python of this machine that can be seen in a local sandbox, and the supervisor compiled for it.

    Raises:
        SandboxUnavailableError: there is none.
    """
    tried = []
    for python in _PYTHONS:
        try:
            done = subprocess.run(
                [python, "-I", "-S", "-c", _COMPILE],
                input=source().removeprefix(_FUTURE).encode(),
                capture_output=True,
                timeout=_COMPILE_SECONDS,
                env={"LANG": "C.UTF-8"},
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            tried.append(f"{python}: {e}")
            continue
        if done.returncode == 0:
            return python, done.stdout
        tried.append(f"{python}: {done.stderr.decode(errors='replace').strip().rpartition(chr(10))[2]}")
    raise SandboxUnavailableError(
        f"the local provider needs a Python of the system's, 3.9 or newer, under /usr ({'; '.join(tried)}): "
        "apt-get install python3"
    )
