"""`python -m moonmill.trainer.learner_server`: the learner as a process, behind a few HTTP requests.

    GET  /health      200 while the process serves, also in the middle of a step
    GET  /state       LearnerState
    POST /step        StepRequest -> StepAnswer; 409 where it is not the step after those done
    POST /probe       ProbeRequest -> ProbeAnswer
    POST /fall_back   FallBackRequest -> StepAnswer
    POST /checkpoint  CheckpointRequest -> CheckpointAnswer
    POST /restore     RestoreRequest -> LearnerState

Bodies are msgpack (`moonmill.trainer.messages`), errors JSON. What always holds: one request is worked on at a time, in
one worker thread, and to its end even if whoever asked is gone; a version's weights are on disk before the answer that
names them; no step is done twice.

Exit codes: 0 stopped, 2 bad arguments, config or model.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moonmill.agents.serving import die_with_stdin, listen, refuse, serve, starting
from moonmill.config import Config
from moonmill.errors import ConfigError, MoonmillError, RunDirectoryError, RunError
from moonmill.rundir import RunDirectory
from moonmill.trainer.backends import import_first
from moonmill.trainer.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ErrorAnswer,
    FallBackRequest,
    LearnerState,
    ProbeAnswer,
    ProbeRequest,
    RestoreRequest,
    StepAnswer,
    StepRequest,
)

if TYPE_CHECKING:
    from moonmill.trainer.learner import Learner

_Body = TypeVar("_Body", bound=Struct)
_BAD_REQUEST, _CONFLICT, _INTERNAL = 400, 409, 500


class _OutOfTurnError(RunError):
    """A step that is not the next one."""


def make_app(learner: "Learner", run: RunDirectory, config: Config) -> Starlette:
    """The ASGI application around a learner; weights and checkpoints go to `run`, as long as it is the same folder."""
    import torch

    from moonmill.trainer.probing import likeliest_logprob

    turn = anyio.Lock()

    def leaving_room(work: Callable[[], Struct]) -> Struct:
        try:
            return work()
        finally:
            if config.engine.sleep_while_learning:
                torch.cuda.empty_cache()  # else what was freed is kept here, and the engine has no room to wake up in

    def state() -> LearnerState:
        return LearnerState(learner.step_number, learner.version)

    def step(wanted: StepRequest) -> StepAnswer:
        if wanted.step != learner.step_number + 1:
            raise _OutOfTurnError(
                f"step {wanted.step} was asked for, but {learner.step_number} steps are done: only step "
                f"{learner.step_number + 1} can be next"
            )
        done = learner.step(wanted.rollouts)
        run.require_held()
        if not done.updated:
            return StepAnswer(done.step, done.version, None, done.metrics, notice=done.notice)
        return new_version(done.metrics, wanted.probe, done.notice)

    def new_version(metrics: dict[str, float], prompt: tuple[int, ...], notice: str = "") -> StepAnswer:
        weights = run.weights / f"v{learner.version:06d}"
        begin = time.perf_counter()
        learner.export(weights)
        metrics = {**metrics, "seconds_export": time.perf_counter() - begin}
        answer = likeliest_logprob(learner.policy, prompt, config.model) if prompt else None
        return StepAnswer(learner.step_number, learner.version, str(weights), metrics, answer, notice)

    def fall_back(wanted: FallBackRequest) -> StepAnswer:
        run.require_held()
        learner.count_as(wanted.step, wanted.version, wanted.lr_scale)
        return new_version({}, wanted.probe)

    def probe(wanted: ProbeRequest) -> ProbeAnswer:
        return ProbeAnswer(likeliest_logprob(learner.policy, wanted.tokens, config.model))

    def checkpoint(wanted: CheckpointRequest) -> CheckpointAnswer:
        run.require_held()
        return CheckpointAnswer(str(learner.checkpoint(run.path, wanted.back_to)))

    def restore(wanted: RestoreRequest) -> LearnerState:
        learner.restore(Path(wanted.path))
        if learner.version:  # What was exported before a power loss may never have come to the disk.
            run.require_held()
            learner.export(run.weights / f"v{learner.version:06d}")
        return state()

    async def in_turn(work: Callable[[], Struct]) -> Response:
        # Shielded: a thread cannot be stopped half-way, so nobody else may have the turn until it is done.
        with anyio.CancelScope(shield=True):
            async with turn:
                answer = await anyio.to_thread.run_sync(leaving_room, work)
        return Response(msgspec.msgpack.encode(answer), media_type="application/msgpack")

    async def get_health(request: Request) -> Response:
        return Response()

    async def get_state(request: Request) -> Response:
        return await in_turn(state)

    async def post_step(request: Request) -> Response:
        wanted = await _body(request, StepRequest)
        return await in_turn(lambda: step(wanted))

    async def post_probe(request: Request) -> Response:
        wanted = await _body(request, ProbeRequest)
        return await in_turn(lambda: probe(wanted))

    async def post_fall_back(request: Request) -> Response:
        wanted = await _body(request, FallBackRequest)
        return await in_turn(lambda: fall_back(wanted))

    async def post_checkpoint(request: Request) -> Response:
        wanted = await _body(request, CheckpointRequest)
        return await in_turn(lambda: checkpoint(wanted))

    async def post_restore(request: Request) -> Response:
        wanted = await _body(request, RestoreRequest)
        return await in_turn(lambda: restore(wanted))

    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "/health", get_health),
        ("GET", "/state", get_state),
        ("POST", "/step", post_step),
        ("POST", "/probe", post_probe),
        ("POST", "/fall_back", post_fall_back),
        ("POST", "/checkpoint", post_checkpoint),
        ("POST", "/restore", post_restore),
    ]
    return Starlette(
        routes=[Route(path, _told(endpoint), methods=[method]) for method, path, endpoint in routes],
    )


async def _body(request: Request, type: type[_Body]) -> _Body:
    return msgspec.msgpack.decode(await request.body(), type=type)


def _told(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint, with whatever it raises as an answer; what is a bug of ours is in the log with its traceback."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except msgspec.MsgspecError as e:
            return _error(_BAD_REQUEST, f"{request.url.path}: the body cannot be read: {e}", e)
        except _OutOfTurnError as e:
            return _error(_CONFLICT, str(e), e)
        except MoonmillError as e:
            return _error(_INTERNAL, str(e), e)
        except Exception as e:  # the client is to hear of any failure, and this process to go on answering
            with suppress(OSError):  # the disk may be full, and the log on it
                traceback.print_exc()
            return _error(_INTERNAL, f"{type(e).__name__}: {e}", e)

    return answer


def _error(status: int, message: str, error: Exception) -> Response:
    known = next((c.__name__ for c in type(error).__mro__ if c.__module__ == MoonmillError.__module__), "InternalError")
    body = msgspec.json.encode(ErrorAnswer(message, known))
    return Response(body, status_code=status, media_type="application/json")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the learner with command-line arguments."""
    args = _parser().parse_args(argv)
    if args.exit_with_stdin:
        die_with_stdin()
    config = _read_config(args.config)
    # Read when torch is imported: threads of a pool that is never used would only wait for work.
    os.environ.setdefault("OMP_NUM_THREADS", str(config.learner.threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the name it has had
        # Micro-batches differ in size. Else each new size may find no room between what is kept of the others.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    run = RunDirectory(args.run_dir)
    try:
        run.watch()
    except RunDirectoryError as e:
        refuse(f"--run-dir: {e}")
    listener = listen(args.host, args.port)
    with starting():
        # Imported now, not above: bad arguments and a taken port are told without waiting seconds for torch.
        import_first(config)
        from transformers.utils import logging

        from moonmill.trainer.learner import Learner, make_deterministic

        logging.disable_progress_bar()
        make_deterministic(config)
        try:
            learner = Learner(config)
        except ConfigError as e:
            refuse(str(e))
    serve(make_app(learner, run, config), args.host, args.port, listener=listener)


def _read_config(file: Path) -> Config:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Config)
    except OSError as e:
        refuse(f"--config: cannot read {file}: {e.strerror}")
    except msgspec.MsgspecError as e:
        refuse(f"--config: {file} is no config: {e}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moonmill.trainer.learner_server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", type=Path, required=True, help="the run's config as JSON")
    parser.add_argument("--run-dir", type=Path, required=True, help="weights and checkpoints go there")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one; the ready line tells which")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when stdin closes")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
