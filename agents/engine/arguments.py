"""The command-line arguments that engines of every type take."""

import argparse
import math
import re

DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")
"""What a model can be on, and the number of the GPU."""


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments they have in common; an engine adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(
        "--model", required=True, help="a folder with a transformers model or a PEFT adapter, or a hub id"
    )
    parser.add_argument("--served-name", help="the name requests use for it; default: as --model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one; the ready line tells which")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads a forward uses")
    parser.add_argument("--max-batch", type=positive, default=64, help="requests decoded at once; others wait")
    parser.add_argument("--max-length", type=positive, help="longest context in tokens; default: the model's")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", type=_device, default="cpu", help="cpu, cuda, cuda:0")
    parser.add_argument("--can-sleep", action="store_true", help="give memory free at POST /sleep, until POST /wake_up")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin closes")
    return parser


def amount(text: str) -> float:
    """A finite number above 0, for argparse."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def _device(text: str) -> str:
    if not DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r:.60} is none: give cpu, cuda, or cuda:1 for the second GPU")
    return text


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
