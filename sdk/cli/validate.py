"""`moonmill validate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moonmill.config import Config
    from moonmill.trainer.checks import Check

_WORDS = {True: "ok", False: "wrong", None: ""}
_STYLES = {"wrong": "red", "warning": "yellow"}


@click.command(cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@json_option
def validate(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a config without training.

    Looks at the environment, its sandbox, the algorithm (and shows what its preset stands for), the device, the run
    directory, the model, and whether prompts fit. Exits with 2 where something is wrong; what has a warning can be
    trained all the same.
    """
    from moonmill.cli.output import print_json
    from moonmill.config_io import load_config
    from moonmill.errors import ConfigError
    from moonmill.trainer.validate import validate as check_all

    settings = load_config(config, overrides)
    checks = check_all(settings)
    wrong = [check.name for check in checks if check.ok is False]
    algorithm = None if "algorithm" in wrong else _algorithm(settings)
    if as_json:
        print_json({"ok": not wrong, "checks": checks, "algorithm": algorithm})
    else:
        _print(checks, algorithm)
    if wrong:
        raise ConfigError(f"{config} cannot be trained, because of: {', '.join(wrong)}")
    if not as_json:
        _say_ok(checks)


def _algorithm(settings: "Config") -> dict[str, Any]:
    """The preset with what it stands for, overrides in place."""
    from moonmill.config_io import plain
    from moonmill.trainer.algorithms.presets import resolve

    resolved = resolve(settings.algorithm, settings.learner.batch_rollouts)
    return {"preset": settings.algorithm.preset, **plain(resolved)}


def _print(checks: "Sequence[Check]", algorithm: dict[str, Any] | None) -> None:
    from moonmill.cli.output import console, table

    out = console()
    grid = table(out, "", "check", "")
    for check in checks:
        word = "warning" if check.warning else _WORDS[check.ok]
        detail = "; ".join(filter(None, (check.detail, check.warning)))
        grid.add_row(word, check.name, detail, style=_STYLES.get(word))
        if check.name == "algorithm" and algorithm:
            for part, choice in algorithm.items():
                if part != "preset":
                    grid.add_row("", f"  {part}", _settings(choice))
    out.print(grid)


def _settings(part: dict[str, Any] | str | float | None) -> str:
    if not isinstance(part, dict):
        return "none" if part is None else str(part)
    values = ", ".join(_setting(key, value) for key, value in part.items() if key != "type" and value not in (None, ""))
    return ": ".join(text for text in (part.get("type"), values) if text)


def _setting(key: str, value: Any) -> str:
    return f"{key} ({_settings(value)})" if isinstance(value, dict) else f"{key} {value}"


def _say_ok(checks: "Sequence[Check]") -> None:
    from moonmill.cli.output import console

    *names, last = (check.name for check in checks)
    warned = ", ".join(check.name for check in checks if check.warning)
    console().print(
        f"ok{f', with warnings ({warned})' * bool(warned)}: {', '.join(names)} and {last} were looked at; engine and "
        "learner were not started"
    )
