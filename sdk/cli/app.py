"""The root command, and what becomes of every error that a command lets through."""

import logging
from typing import Any

import click

from moonmill import __version__
from moonmill.cli.failures import explain
from moonmill.cli.lazy import LazyGroup
from moonmill.signals import ignore, interruptible

# PEFT imports bitsandbytes where it is installed, which then tells of CPU kernels that the hub alone has.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


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
        "pretrain-critic": "moonmill.cli.pretrain_critic:pretrain_critic",
        "eval": "moonmill.cli.evaluate:evaluate",
        "compare": "moonmill.cli.compare:compare",
        "validate": "moonmill.cli.validate:validate",
        "plan": "moonmill.cli.plan:plan",
        "inspect": "moonmill.cli.inspect_run:inspect_run",
        "plot": "moonmill.cli.plot:plot",
        "envs": "moonmill.cli.envs:envs",
        "serve": "moonmill.cli.serve:serve",
        "export": "moonmill.cli.export:export",
        "engine": "moonmill.cli.engine:engine",
        "sandbox": "moonmill.cli.sandbox:sandbox",
        "doctor": "moonmill.cli.doctor:doctor",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="moonmill", message="%(prog)s %(version)s")
def cli() -> None:
    """Multi-turn environments with tools for language-model agents, and a fully asynchronous trainer."""
