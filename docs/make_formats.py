"""Write the table of docs/formats.md by trying every family's format.

    python docs/make_formats.py

A test sees that the page is up to date.
"""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from moonmill.agents.capabilities import Capabilities

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("formats.md")
_TABLE = re.compile(r"(<!-- families -->\n).*?(<!-- end -->)", re.DOTALL)
_TITLES = (
    *(
        "models",
        "`model.renderer`",
        "`model.tool_format`",
        "system message",
        "tools told by",
        "several calls in a turn",
    ),
    *("thoughts apart", "same when rendered at once"),
)


def page(capabilities: Mapping[str, Capabilities]) -> str:
    """The page's text, its table made anew from what each family's format can do."""
    sys.path.insert(0, str(ROOT))
    from tests.agents.formats import FAMILIES

    rows = [_TITLES, ("---",) * len(_TITLES)]
    for name, family in FAMILIES.items():
        can = capabilities[name]
        answers = (can.parallel_calls, can.reasoning, can.stable)
        rows.append(
            (
                family.models,
                f"`{family.renderer}`",
                f"`{family.tool_format}`" if family.tool_format else "",
                _word(can.system),
                "its format" if can.tells_tools else "Moonmill",
                *map(_word, answers),
            )
        )
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return _TABLE.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text())


def _word(has: bool) -> str:
    return "yes" if has else "no"


def main() -> None:
    """Load every family and write the page."""
    sys.path.insert(0, str(ROOT))
    from tests.agents.formats import FAMILIES, load_family

    found = {}
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = load_family(name, Path(folder)).capabilities
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
