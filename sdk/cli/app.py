"""The root command, and what becomes of every error that a command lets through."""

from importlib import import_module
from typing import Any

import click

from moonmill import __version__
from moonmill.cli.failures import explain
from moonmill.signals import ignore, interruptible


class LazyGroup(click.Group):
    """A group whose commands stand in modules that are imported when the command is wanted.

    Args:
        commands_in: the import path, `module:attribute`, of each command by name, in the order of the help text.
    """

    def __init__(self, *args: Any, commands_in: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_in:
            return None
        module, attribute = self._commands_in[cmd_name].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


class RootGroup(LazyGroup):
    """Ends with the exit code an error stands for, and prints no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        with interruptible():
            try:
                return super().invoke(ctx)
            except (click.exceptions.Exit, click.ClickException, click.Abort):
                raise
            except BaseException as e:
                if isinstance(e, SystemExit | GeneratorExit):
                    raise
                ignore()
                text, code = explain(e)
                click.echo(text, err=True)
                ctx.exit(code)


@click.group(
    cls=RootGroup,
    commands_in={
        "train": "moonmill.cli.train:train",
        "eval": "moonmill.cli.evaluate:evaluate",
        "validate": "moonmill.cli.validate:validate",
        "inspect": "moonmill.cli.inspect_run:inspect_run",
        "plot": "moonmill.cli.plot:plot",
        "envs": "moonmill.cli.envs:envs",
        "serve": "moonmill.cli.serve:serve",
        "export": "moonmill.cli.export:export",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="moonmill", message="%(prog)s %(version)s")
def cli() -> None:
    """Multi-turn environments with tools for language-model agents, and a fully asynchronous trainer."""
