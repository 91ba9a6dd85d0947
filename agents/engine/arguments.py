"""The command-line arguments that engines of every type take."""

import argparse


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
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:0")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin closes")
    return parser


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
