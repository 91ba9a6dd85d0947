"""What is run in a grading sandbox, by its own python3; nothing but the standard library of Python 3.8 is needed.

One of three programs, named on the command line. Each takes a JSON request on stdin, and first of all says what answers
it can see, and waits until that has been read: a submission could take it back from the pipe.

- `outputs` calls a submission and says what came out. It shares its process with the submission, which may do to it
  whatever it likes: all it can gain is to say what it says anyway. It knows no answers.
- `calls` runs the checks of a problem on the reference solution and says with what they call it.
- `verdict` runs the same checks on what a submission has put out. Of the submission it sees plain data alone.

Values travel as `encode` writes them: plain data of Python, types included. On our side nothing is ever decoded.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # The typing module is not imported: it would take longer than all of the rest.
    import ast
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]
    Say = Callable[[str], None]

LARGEST_JSON_INT = 2**53
LONGEST_ITERATOR = 100_000
LONGEST_ERROR = 300
READ_SECONDS = 20.0
"""A supervisor reads at once; on a busy host it may take its time."""


class NotPlainError(Exception):
    """A value that is no plain data."""


def encode(value: object, as_equal: bool = False) -> str:
    """`value` as a line of JSON that `decode` reads.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, of each other; an
            instance of a subclass is taken for one of the class. An iterator is used up.
        as_equal: write values that are equal, as `==` says, in the same way: `True`, `1` and `1.0`; two dicts.

    Raises:
        NotPlainError: it is something else.
        RecursionError: it contains itself, or is nested too deeply.
    """
    return json.dumps(_plain(value, as_equal), separators=(",", ":"))


def decode(text: str) -> Any:
    """The value that `encode` has written; ValueError, TypeError, KeyError or RecursionError if it has not."""
    return _value(json.loads(text))


def _plain(value: Any, as_equal: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bool, int, float)):
        return _number(value, as_equal)
    if isinstance(value, list):
        return [_plain(item, as_equal) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item, as_equal) for item in value]}
    if isinstance(value, dict):
        pairs = [[_plain(key, as_equal), _plain(item, as_equal)] for key, item in value.items()]
        return {"dict": sorted(pairs, key=json.dumps) if as_equal else pairs}
    if isinstance(value, (set, frozenset)):
        kind = "frozenset" if isinstance(value, frozenset) and not as_equal else "set"
        return {kind: sorted((_plain(item, as_equal) for item in value), key=json.dumps)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if hasattr(type(value), "__next__"):
        return {"iterator": [_plain(item, as_equal) for item in itertools.islice(value, LONGEST_ITERATOR)]}
    raise NotPlainError(f"a value of the type {type(value).__name__} is no plain data")


def _number(value: Any, as_equal: bool) -> Any:
    if as_equal and (isinstance(value, bool) or (isinstance(value, float) and value.is_integer())):
        value = int(value)
    if isinstance(value, (bool, float)):
        return value  # JSON, as Python writes it, knows infinities and NaN.
    value = int.__int__(value)
    return value if -LARGEST_JSON_INT < value < LARGEST_JSON_INT else {"int": hex(value)}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    return _KINDS[kind](content)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda content: tuple(map(_value, content)),
    "set": lambda content: set(map(_value, content)),
    "frozenset": lambda content: frozenset(map(_value, content)),
    "dict": lambda content: {_value(key): _value(item) for key, item in content},
    "int": lambda content: int(content, 16),
    "bytes": bytes.fromhex,
    "complex": lambda content: complex(*content),
    "range": lambda content: range(*content),
    "iterator": lambda content: iter([_value(item) for item in content]),
}


def outputs(request: Request, say: Say) -> None:
    """Call a submission with each of `calls`: a line for each that begins with `=`, or with `!` where it raised."""
    try:
        function = vars(_module("submission", request["preamble"], request["code"]))[request["entry_point"]]
    except BaseException as e:
        say("!" + _text_of(e))
        return
    for call in request["calls"]:
        args, kwargs = decode(call)
        try:
            _limit_call(request["call_seconds"])
            line = "=" + encode(function(*args, **kwargs), request["as_equal"])
            _limit_call(0)
        except BaseException as e:
            _limit_call(0)
            line = "!" + _text_of(e)
        say(line)


def calls(request: Request, say: Say) -> None:
    """What the checks call the reference solution with, each once, and how many of them there are."""
    reference = vars(_module("reference", request["preamble"], request["solution"]))[request["entry_point"]]
    seen: dict[str, None] = {}

    def recorder(*args: Any, **kwargs: Any) -> Any:
        seen[encode([args, kwargs])] = None
        return reference(*args, **kwargs)

    passed, failed, error = _checked(request, recorder)
    say(json.dumps({"calls": list(seen), "passed": passed, "failed": failed, "error": error}))


def verdict(request: Request, say: Say) -> None:
    """How many checks hold of what a submission has put out."""
    answers = request["answers"]

    def replayer(*args: Any, **kwargs: Any) -> Any:
        line = answers.get(encode([args, kwargs]), "!not called")
        if line[:1] != "=":
            raise RuntimeError(line[1:])
        return decode(line[1:])

    passed, failed, error = _checked(request, replayer)
    say(json.dumps({"passed": passed, "failed": failed, "error": error}))


def _checked(request: Request, candidate: Callable[..., Any]) -> tuple[int, int, str | None]:
    """Run `check(candidate)`: how many of its assertions hold and how many do not, and what ended it early."""
    import ast
    import random

    class Counting(ast.NodeTransformer):
        """Count each assertion, and go on after one that fails."""

        def visit_Assert(self, node: ast.Assert) -> ast.AST:  # the name is ast's
            if isinstance(node.test, ast.Constant):
                return node
            [counted] = ast.parse("try:\n    _passed()\nexcept BaseException as e:\n    _failed(e)").body
            assert isinstance(counted, ast.Try)
            counted.body.insert(0, node)
            return counted

    passed, failed = [], []
    random.seed(0)  # The checks draw from it: what they call is the same each time.
    scope = vars(_module("checks", request["preamble"]))
    scope.update(_passed=lambda: passed.append(1), _failed=lambda error: failed.append(_text_of(error)))
    tree = ast.fix_missing_locations(Counting().visit(ast.parse(request["checks"])))
    exec(compile(tree, "checks.py", "exec", dont_inherit=True), scope)
    scope[request["entry_point"]] = candidate
    try:
        scope["check"](candidate)
    except BaseException as e:
        return len(passed), len(failed), _text_of(e)
    return len(passed), len(failed), failed[0] if failed else None


def _module(name: str, *codes: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module  # Where dataclasses and others look for it.
    for code in codes:
        exec(compile(code, name + ".py", "exec", dont_inherit=True), vars(module))
    return module


def _exposed(hidden: dict[str, list[str]]) -> list[str]:
    """What of the answers can be seen from in here: files, and modules that can be imported."""
    found = [path for path in hidden["paths"] if os.path.exists(path)]
    # As `importlib.util.find_spec` does; importing that would take longer.
    return found + [name for name in hidden["modules"] if any(f.find_spec(name, None) for f in sys.meta_path)]


def _wait_until_read(pipe: int) -> None:
    import fcntl
    import termios
    import time

    give_up = time.monotonic() + READ_SECONDS
    while int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
        if time.monotonic() > give_up:
            raise TimeoutError("nobody reads what this says")
        time.sleep(0.0005)


def _limit_computing(seconds: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _limit_call(seconds: float) -> None:
    """Processor time, not the clock's: how busy the host is must not decide."""
    import signal

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s of processor time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _text_of(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return ascii(text)[1:-1][:LONGEST_ERROR]


def main() -> None:
    """Run the program that the command line names."""
    request = json.load(sys.stdin)
    reply = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # What a submission prints is nobody's concern.

    def say(line: str) -> None:
        reply.write(line.encode("ascii") + b"\n")
        reply.flush()

    _limit_computing(request["seconds"])
    say(json.dumps(_exposed(request.pop("hidden"))))
    _wait_until_read(reply.fileno())
    {"outputs": outputs, "calls": calls, "verdict": verdict}[sys.argv[1]](request, say)
    os._exit(0)  # Whatever a submission has left behind, threads and exit handlers, ends here.


if __name__ == "__main__":
    main()
