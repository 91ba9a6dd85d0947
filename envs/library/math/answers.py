r"""What a text gives as its answer, and whether two answers are the same plain number.

The answer is what stands in the last `\boxed{…}`, else in the last `<answer>…</answer>`, else after the last `####`;
without any of these it is the last line.
"""

import re
from fractions import Fraction

LONGEST = 1000
"""Characters: what is longer is no answer, and nothing to keep a scorer busy with."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_PLAIN = re.compile(r"\\?\$?\s*([-+]?)\s*\\?\$?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)\s*\.?\s*\$?", re.ASCII)
"""`72`, `-1,000.50`, `$18`, `$18$`, `18.`: what means one number and nothing else."""
_LONGEST_PLAIN = 100


def final_answer(text: str) -> tuple[str, bool]:
    """The answer of a text, empty where it has none, and whether it stands in its place: else it is the last line."""
    boxed = last_boxed(text)
    if boxed is not None:
        return _bounded(boxed), True
    in_tags = tagged(text)
    if in_tags is not None:
        return _bounded(in_tags), True
    _, mark, after = text.rpartition("####")
    lines = [line for line in (after if mark else text).splitlines() if line.strip()]
    if not lines:
        return "", bool(mark)
    return _bounded(lines[0] if mark else lines[-1]), bool(mark)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}`, or after a `\boxed` without braces; None where there is none that ends."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    inside = text[boxes[-1].end() :]
    if not inside.startswith("{"):
        return re.split(r"[$\s]", inside, maxsplit=1)[0] or None
    depth = 0
    for end, sign in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return inside[1:end].strip()
    return None


def tagged(text: str) -> str | None:
    """What stands in the last `<answer>…</answer>`; None where there is none."""
    found: list[str] = _TAGGED.findall(text)
    return found[-1] if found else None


def plain_number(text: str) -> Fraction | None:
    """The number that a text is, exactly; None where it is anything else, be it a number with a unit."""
    found = _PLAIN.fullmatch(text.strip()) if len(text) <= _LONGEST_PLAIN else None
    if found is None:
        return None
    sign, digits = found.groups()
    return Fraction(sign + digits.replace(",", "").rstrip("."))


def _bounded(answer: str) -> str:
    answer = answer.strip()
    return answer if len(answer) <= LONGEST else ""
