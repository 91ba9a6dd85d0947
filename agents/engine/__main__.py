"""`python -m moonmill.agents.engine`: serve one model until told to stop.

Exit codes: 0 stopped, 2 bad arguments, a port that is taken or a model that cannot be served.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from moonmill.agents.engine.arguments import parser_of, positive
from moonmill.agents.engine.folder import problem_of
from moonmill.agents.serving import die_with_stdin, listen, refuse, serve, starting
from moonmill.errors import EngineError

_SWITCH_SECONDS = 0.0001
"""How long Python lets one thread go on when another wants to. The decoding thread gives way at every operation, so
with the usual 5 ms every HTTP request would stall it for that long."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the engine with command-line arguments."""
    args = _parser().parse_args(argv)
    if args.exit_with_stdin:
        die_with_stdin()
    # Read when torch is imported: threads of a pool that is never used would only wait for work.
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if problem := problem_of(args.model):
        refuse(problem)
    listener = listen(args.host, args.port)
    with starting():
        # Imported now, not above: bad arguments and a taken port are told without waiting seconds for torch.
        from transformers.utils import logging

        from moonmill.agents.engine.app import make_app
        from moonmill.agents.engine.service import Options, Service

        logging.disable_progress_bar()
        options = Options(
            model=args.model,
            served_name=args.served_name or args.model,
            max_batch=args.max_batch,
            max_length=args.max_length,
            threads=args.threads,
            dtype=args.dtype,
            device=args.device,
            renderer=args.renderer,
            tool_format=args.tool_format,
            batch_invariant=args.batch_invariant,
            stream_interval=args.stream_interval,
            can_sleep=args.can_sleep,
        )
        try:
            service = Service(options)
        except EngineError as e:
            refuse(str(e))
    sys.setswitchinterval(_SWITCH_SECONDS)
    facts = {"model": options.served_name, "max_length": service.max_length}
    serve(make_app(service), args.host, args.port, ready=facts, listener=listener)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("moonmill.agents.engine", __doc__)
    parser.add_argument("--renderer", default="auto", help="how chats become tokens; default: as the model folder says")
    parser.add_argument("--tool-format", default="", help="how calls are written with --renderer default: hermes, …")
    parser.add_argument("--batch-invariant", action="store_true", help="compute each request by itself")
    parser.add_argument("--stream-interval", type=positive, default=16, help="tokens in a chunk of a stream")
    return parser


if __name__ == "__main__":
    main()
