"""What the tests have called in workers."""

import os
import time
from typing import Any


def echo(*values: Any) -> list[Any]:
    return list(values)


def pid() -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hang(note: str | None = None) -> int:
    """In C, where no signal handler and no other thread of the process gets a turn."""
    if note is not None:
        with open(note, "w") as file:
            file.write(str(os.getpid()))
    return len(str(pow(7, 10**9)))


def crash(status: int) -> None:
    os._exit(status)


def take_memory() -> int:
    return len(bytearray(16 << 30))


def fail(text: str) -> None:
    raise KeyError(text)


def no_data() -> object:
    return object()


def variable(name: str) -> str | None:
    print("to nobody")
    return os.environ.get(name)
