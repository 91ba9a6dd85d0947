"""Options that several commands share, and types of their values."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class NonNegative(click.FloatRange):
    """A finite number of at least 0: click's own ranges let NaN and infinity through."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def set_option(function: F) -> F:
    """`--set KEY=VALUE`, any number of times, as the argument `overrides`."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one value of the config, such as learner.lr=1e-4. The value is YAML. May be repeated.",
    )(function)


def args_option(function: F) -> F:
    """`--set env.args.NAME=VALUE`, any number of times, as the argument `overrides`."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="env.args.NAME=VALUE",
        help="An argument of the environment, such as env.args.levels=[1,2]. The value is YAML. May be repeated.",
    )(function)


def sandbox_option(function: F) -> F:
    """`--sandbox PROVIDER` as the argument `provider`."""
    return click.option(
        "--sandbox",
        "provider",
        default="local",
        show_default=True,
        metavar="PROVIDER",
        help="What gives the episode's sandbox: local, docker, unsafe-subprocess, or module:factory.",
    )(function)


def json_option(function: F) -> F:
    """`--json` as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout, for programs.")(function)
