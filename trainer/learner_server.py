"""The learner as a process of its own.

    python -m moonmill.trainer.learner_server --config FILE --run-dir DIR --port 0 [--exit-with-stdin]

Steps run one at a time on one worker thread, so `/health` answers meanwhile. A version's weights are on disk before the
answer that names them. A step that is not the next one is refused: the same rollouts are never trained on twice.
"""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moonmill.agents.serving import refuse, serve
from moonmill.config import Config
from moonmill.errors import MoonmillError, RunDirectoryError
from moonmill.trainer import checkpoint, messages
from moonmill.trainer.learner import Learner
from moonmill.trainer.models import save_weights



class LearnerApp:
    """The HTTP side of a learner.

    Args:
        learner: does the work.
        run: the run directory: weights and checkpoints go there.
    """

    def __init__(self, learner: Learner, run: Path) -> None:
        self._learner = learner
        self._run = run
        self._busy = anyio.Lock()
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/state", self._guarded(self._state)),
                Route("/step", self._guarded(self._step), methods=["POST"]),
                Route("/checkpoint", self._guarded(self._checkpoint), methods=["POST"]),
                Route("/restore", self._guarded(self._restore), methods=["POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _state(self, body: bytes) -> messages.State:
        return messages.State(self._learner.step_count, self._learner.version)

    async def _step(self, body: bytes) -> messages.StepAnswer:
        request = msgspec.msgpack.decode(body, type=messages.StepRequest)
        if request.step != self._learner.step_count + 1:
            raise RunDirectoryError(f"the learner has done {self._learner.step_count} steps; it cannot do {request.step}")
        return await anyio.to_thread.run_sync(self._train, request)

    async def _checkpoint(self, body: bytes) -> messages.Path:
        keep = self._learner.config.train.keep_checkpoints
        path = await anyio.to_thread.run_sync(checkpoint.save, self._learner, self._run, keep)
        return messages.Path(str(path))

    async def _restore(self, body: bytes) -> messages.State:
        path = Path(msgspec.msgpack.decode(body, type=messages.Path).path)
        return await anyio.to_thread.run_sync(checkpoint.restore, self._learner, path)

    def _train(self, request: messages.StepRequest) -> messages.StepAnswer:
        result = self._learner.step(request.rollouts)
        weights = None
        if result.made_version:
            weights = self._run / "weights" / f"v{result.version:06d}"
            save_weights(self._learner.policy, weights)
        return messages.StepAnswer(result.step, result.version, str(weights) if weights else None, result.metrics)

    def _guarded(self, handle: Callable[[bytes], Awaitable[Struct]]) -> Callable[[Request], Awaitable[Response]]:
        """One request at a time; an error becomes an answer."""

        async def endpoint(request: Request) -> Response:
            body = await request.body()
            try:
                # A step that has begun is not cut short by a client that goes away: half a step would be lost work.
                with anyio.CancelScope(shield=True):
                    async with self._busy:
                        answer = await handle(body)
            except msgspec.MsgspecError as e:
                return _failure(400, e)
            except MoonmillError as e:
                return _failure(409, e)
            except (RuntimeError, ValueError, OSError) as e:
                return _failure(500, e)
            return Response(msgspec.msgpack.encode(answer), media_type="application/msgpack")

        return endpoint


def _failure(status: int, error: Exception) -> Response:
    body = msgspec.msgpack.encode(messages.Failure(str(error), type(error).__name__))
    return Response(body, status_code=status, media_type="application/msgpack")


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description="A learner process of a training run.")
    parser.add_argument("--config", type=Path, required=True, help="the run's config, as JSON")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--exit-with-stdin", action="store_true")
    args = parser.parse_args()
    try:
        learner = Learner(msgspec.json.decode(args.config.read_bytes(), type=Config))
    except (OSError, msgspec.MsgspecError, MoonmillError) as e:
        refuse(f"the learner cannot start: {e}")
    serve(LearnerApp(learner, args.run_dir).app, args.host, args.port, args.exit_with_stdin)


if __name__ == "__main__":
    main()
