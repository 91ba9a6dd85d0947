"""The command line, `moonmill`.

Importing it, and asking for `--help`, brings in neither torch nor the environments: a command's own imports happen when
it runs. Progress goes to stderr, results to stdout. It ends with 0 when done, 1 when something failed or was stopped, 2
when the usage or a config was wrong.
"""

from moonmill.cli.app import cli
from moonmill.cli.results import own_stdout


def main() -> None:
    """Entry point of the `moonmill` script."""
    with own_stdout():
        cli.main(prog_name="moonmill")


__all__ = ["cli", "main"]
