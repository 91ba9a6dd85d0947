"""Whether two answers say the same in mathematics, by `math-verify`. For a worker: some inputs never come back.

Its own time limits are off: they need signals, and do not stop everything. The worker is killed instead.
"""

import logging
import re

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # It warns of what is said above.

_IN_WORDS = re.compile(r"[^\\$]*\s[A-Za-z]{2,}[^\\$]*")
"""`72 apples`: read as LaTeX it would be a product."""


def agree(wanted: str, given: str, is_expression: bool) -> bool:
    """Whether `given` is worth as much as `wanted`.

    Args:
        wanted: an expression, in LaTeX or plain.
        given: an expression as well, or a line of text that ends in one.
        is_expression: which of the two it is. What cannot be read as one is compared as a text.
    """
    is_line = not is_expression or "$" in given or _IN_WORDS.fullmatch(given)
    read = parse(given, parsing_timeout=None) if is_line else _read(given)
    return bool(verify(_read(wanted), read, timeout_seconds=None))


def _read(expression: str) -> list[object]:
    found: list[object] = parse(rf"\boxed{{{expression}}}", parsing_timeout=None)
    return found
