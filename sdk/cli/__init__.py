"""The command line, `moonmill`.

Importing it, and asking for `--help`, brings in neither torch nor the environments: a command's own imports happen when
it runs. Progress goes to stderr, results to stdout. It ends with 0 when done, 1 when something failed or was stopped, 2
when the usage or a config was wrong.
"""

from moonmill.signals import end_when_asked, ignore


def main() -> None:
    """Entry point of the `moonmill` script."""
    end_when_asked()
    from moonmill.cli.app import cli  # not before: a signal may come while it is imported
    from moonmill.cli.results import own_stdout

    with own_stdout():
        try:
            cli.main(prog_name="moonmill")
        finally:
            ignore()
