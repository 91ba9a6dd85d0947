"""`moonmill plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from moonmill.trainer.planning.parts import Part
    from moonmill.trainer.planning.plan import Plan


@click.command(cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="NAME", help="The card to plan for, such as rtx5090. Default: the one that is here.")
@set_option
@json_option
def plan(config: Path, gpu: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what a run takes of its GPUs, and whether it fits.

    Works from the model's config.json alone, or from its name where the catalogue has it; nothing is loaded. A config
    for the CPU is planned for this machine's memory and by its speed, which is measured for a moment, unless a card is
    named. Exits with 1 where the run does not fit.
    """
    from moonmill.cli.output import console, print_json
    from moonmill.config_io import load_config
    from moonmill.trainer.planning.advice import advice, notes
    from moonmill.trainer.planning.plan import planner

    maker = planner(load_config(config, overrides), gpu)
    made, noted = maker.plan(), notes(maker)
    advised = advice(maker, made)
    if as_json:
        print_json({**_plain(made), "advice": advised, "notes": noted})
    else:
        out = console()
        _print(out, made)
        for line in (*noted, *advised):
            out.print(f"- {line}")
    if not made.fits:
        click.get_current_context().exit(1)


def _plain(made: "Plan") -> dict[str, Any]:
    """The plan without the layers of the model, one by one."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(made)
    plain["shape"]["layers"] = len(made.shape.layers)
    return plain


def _print(out: "Console", made: "Plan") -> None:
    from moonmill.cli.figures import seconds
    from moonmill.cli.output import table
    from moonmill.trainer.planning.parts import count, gib
    from moonmill.trainer.planning.plan import RESERVE

    shape = made.shape
    facts = [f"{count(shape.parameters)} parameters", f"{count(shape.active + shape.head)} used for a token"]
    facts += [f"{count(shape.lookups)} per-layer embeddings"] * (shape.lookups > 0)
    facts += [f"{count(shape.towers)} in parts that read no text"] * (shape.towers > 0)
    out.print(f"{made.model} ({made.source}): {shape.architecture}, {', '.join(facts)}")
    out.print()
    grid = table(out, "on", "part", "GiB", "")
    if made.engine:
        _rows(grid, "engine", made.engine.parts)
    _rows(grid, "learner", made.learner)
    out.print(grid)
    out.print()
    for card in made.cards:
        kind = f"{made.gpu} {card.device}" if card.device != "cpu" else made.gpu
        verdict = f"TOO MUCH by {gib(card.missing)}, with {RESERVE:.0%} left free" if card.missing else "fits"
        out.print(f"{kind}: {gib(card.used)} of {gib(card.memory)} ({' and '.join(card.holds)}): {verdict}")
    if made.engine:
        engine = made.engine
        room = f"{engine.episodes:,} episodes of full length, {engine.wanted:,} wanted"
        verdict = f": TOO LITTLE by {gib(engine.lacking)} for one" if engine.lacking else ""
        out.print(f"keys and values of an engine: {engine.tokens:,} tokens: {room}{verdict}")
    for key, value in made.largest.items():
        why = "" if key == "learner.micro_batch_tokens" else " with room for all episodes at full length"
        out.print(f"largest {key}{why}: {'none' if value is None else f'{value:,}'}")
    if made.speed:
        speed = made.speed
        out.print(f"expected: {speed.decoded:,.0f} tokens/s sampled, {speed.trained:,.0f} tokens/s trained")
        parts = f"generation {seconds(speed.generation_seconds)}, learning {seconds(speed.learning_seconds)}"
        out.print(f"a step: {parts}, each with all of it for itself: the bottleneck is {speed.bottleneck}")
        for rates in dict.fromkeys((speed.decoding, speed.training)):
            reached = f"{rates.bandwidth / 1e9:,.0f} GB/s, {rates.flops / 1e12:,.4g} TFLOP/s"
            out.print(f"by a roofline of {reached} ({rates.source})")
    out.print()


def _rows(grid: Any, on: str, parts: "Iterable[Part]") -> None:
    from moonmill.trainer.planning.parts import GIB

    for part in parts:
        grid.add_row(on, part.name, f"{part.bytes / GIB:6.2f}", part.detail)
