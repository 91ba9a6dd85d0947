"""`python -m moonmill.agents.engine.vllm`: serve one model with vLLM, from vLLM's own environment, until told to stop.

It keeps to the convention of `moonmill.agents.serving` on vLLM's behalf. Until it serves, stdout has lines
`{"progress": "…"}`. What always holds: it is ready when a request was answered, since some models fail only then; when
any part of vLLM dies, all of it is ended; when this process is killed, so is vLLM.

Exit codes: 0 stopped, 1 vLLM died, 2 bad arguments, a port that is taken, or what cannot work however often it is
tried.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moonmill.agents.engine.arguments import amount, parser_of, positive
from moonmill.agents.engine.folder import parts_of, problem_of
from moonmill.agents.engine.vllm_command import VllmOptions, check_args, rank_for
from moonmill.agents.engine.vllm_environment import interpreter_problem
from moonmill.agents.engine.vllm_log import why_it_ended
from moonmill.agents.engine.vllm_requests import BadAnswerError, answer_one, healthy
from moonmill.agents.engine.vllm_server import VllmServer
from moonmill.agents.open_files import allow_many_files
from moonmill.agents.serving import USAGE_EXIT_CODE, announce_ready, bind, die_with_stdin, refuse
from moonmill.errors import ConfigError

_WAIT_SECONDS = 0.1
_SAY_SECONDS = 10.0
"""Between two lines of progress in which nothing but the time is new."""
_HEALTH_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> None:
    """Run vLLM with command-line arguments."""
    args = _parser().parse_args(argv)
    if args.exit_with_stdin:
        die_with_stdin()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    allow_many_files()
    log = _open(args.log) if args.log else sys.stderr.buffer
    reserved = bind(args.host, args.port, listening=False)  # vLLM takes it much later
    options = _options(args, reserved.getsockname()[1])
    with reserved, VllmServer(options, log) as server:
        facts = None
        try:
            facts = _wait_ready(server)
            if facts is not None:
                announce_ready(facts)
                _attend(server)
        except BadAnswerError as e:
            server.lines.append(f"BadAnswerError: {e}")  # after what vLLM itself said of it
        server.kill()
        end = why_it_ended(server.story, server.returncode, options, served=facts is not None)
    where = f" (its log: {args.log})" if args.log else ""
    print(f"error: {end.text}{where}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(USAGE_EXIT_CODE if end.final else 1)


def _wait_ready(server: VllmServer) -> dict[str, Any] | None:
    """Wait until a request is answered, and say how far it is. None where vLLM ended before."""
    options, said, at = server.options, "", 0.0
    while server.running:
        serving = healthy(options.host, options.port)
        phase = "answering a first request" if serving else server.phase
        if phase != said or server.seconds - at >= _SAY_SECONDS:
            said, at = phase, server.seconds
            print(json.dumps({"progress": f"vLLM: {phase} ({at:.0f} s)"}), flush=True)  # noqa: T201
        if serving:
            length = answer_one(options.host, options.port, options.served_name)
            facts = {"host": options.host, "port": options.port, "pid": os.getpid()}
            return facts | {"model": options.served_name, "max_length": length}
        time.sleep(_WAIT_SECONDS)
    return None


def _attend(server: VllmServer) -> None:
    """Wait until it ends, or its engine process does, which its HTTP server notices first."""
    while server.running and healthy(server.options.host, server.options.port) is not False:
        time.sleep(_HEALTH_SECONDS)


def _options(args: argparse.Namespace, port: int) -> VllmOptions:
    """What to serve, as far as it can be checked before vLLM is started."""
    if problem := interpreter_problem(args.python):
        refuse(f"{problem}: install vLLM with `moonmill engine install`, or name its interpreter in engine.vllm.python")
    if problem := problem_of(args.model):
        refuse(problem)
    try:
        model, adapter = parts_of(args.model)
        further = dict(_pair(text) for text in args.arg)
        check_args(further)
        rank_for(args.max_lora_rank)
    except ConfigError as e:
        refuse(str(e))
    return VllmOptions(
        python=args.python,
        model=model,
        served_name=args.served_name or args.model,
        host=args.host,
        port=port,
        max_length=args.max_length,
        dtype=args.dtype,
        device=args.device,
        threads=args.threads,
        max_batch=args.max_batch,
        max_loras=args.max_loras,
        max_lora_rank=args.max_lora_rank,
        adapter=str(adapter) if adapter else None,
        kv_cache_gib=args.kv_cache_gib,
        gpu_memory=args.gpu_memory,
        can_sleep=args.can_sleep,
        args=further,
    )


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name:
        raise ConfigError(f"--arg {text}: expected key=value, such as max_num_batched_tokens=4096")
    if not equals:
        return name, True
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _open(path: Path) -> Any:
    try:
        return path.open("ab")
    except OSError as e:
        refuse(f"cannot write {path}: {e.strerror}")


def _stop(signum: int, frame: object) -> None:
    raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("moonmill.agents.engine.vllm", __doc__)
    parser.add_argument("--python", required=True, help="the interpreter of the environment vLLM is installed in")
    parser.add_argument("--max-loras", type=_count, default=0, help="adapters loaded later, at once; 0: none can be")
    parser.add_argument("--max-lora-rank", type=positive, default=16, help="their largest rank")
    parser.add_argument("--kv-cache-gib", type=amount, default=2.0, help="memory for keys and values, on a CPU")
    parser.add_argument("--gpu-memory", type=amount, default=0.9, help="share of the GPU's memory, on a GPU")
    parser.add_argument("--arg", action="append", default=[], metavar="KEY=VALUE", help="an option of vLLM's server")
    parser.add_argument("--log", type=Path, help="where vLLM's output goes; default: stderr")
    return parser


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


if __name__ == "__main__":
    main()
