"""Groups of commands that are imported when they are wanted."""

from importlib import import_module
from typing import Any

import click


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
