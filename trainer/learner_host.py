"""The learner of a run: started, brought to where the run stands, and kept alive.

The learner is deterministic, so a checkpoint and the steps committed since then are as good as the newest weights:
after a crash the missing steps are done again, with the same rollouts in the same order, and give the same versions.
"""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from moonmill.agents.processes import ServerProcess
from moonmill.config import Config
from moonmill.errors import RunError, WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer.checkpoint import forget, forget_after, forget_damaged, latest
from moonmill.trainer.learner_client import LearnerClient
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.messages import StepAnswer
from moonmill.types import Rollout

_REPRODUCED = ("policy_loss", "grad_norm", "value_loss", "critic_grad_norm")
"""Metrics that any difference in weights or rollouts would change."""


def differing(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """Which of a step's numbers are not what they were, in words; empty where all are."""
    changed = [name for name in _REPRODUCED if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)} then, {now.get(name)} now" for name in changed)


class LearnerHost:
    """One supervised learner process.

    Args:
        config: the run's.
        run: its directory.
        ledger: its logs, for the steps to do again.
        note: told of restarts and of steps done again.
        probe: tokens of a prompt; each new version comes with the learner's answer to it.
        alone: within it the engines leave the learner their card, where the run wants that.
    """

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        ledger: Ledger,
        note: Callable[..., None],
        probe: Sequence[int],
        alone: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._config = config
        self._probe = tuple(probe)
        self._run = run
        self._ledger = ledger
        self._note = note
        self._alone = alone
        self._restarts = 0
        self._told = False
        file = run.path / "learner.json"
        file.write_bytes(msgspec.json.encode(config))
        argv = [sys.executable, "-P", "-m", "moonmill.trainer.learner_server", "--config", str(file)]
        argv += ["--run-dir", str(run.path), "--port", "0", "--exit-with-stdin"]
        timeout = config.learner.start_timeout
        self.server = ServerProcess("learner", argv, log_path=run.logs / "learner.log", start_timeout=timeout)
        self._client: LearnerClient

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LearnerHost"]:
        """Start the learner and bring it to the last committed step; it is stopped at the end."""
        async with AsyncExitStack() as stack:
            async with self._alone():
                while not self.server.alive:
                    try:
                        await stack.enter_async_context(self.server)
                    except WorkerDiedError as e:
                        self._allow_restart(e)
                stack.push_async_callback(lambda: self._client.aclose())
                try:
                    await self._connect()
                except WorkerDiedError as e:
                    await self._revive(e)
            self._note("learner_started", pid=self.server.pid)
            yield self

    async def step(self, step: int, rollouts: tuple[Rollout, ...]) -> StepAnswer:
        """Do learner step number `step`. A learner that dies over it is restarted and tries again.

        Raises:
            WorkerDiedError: it died more than `engine.max_restarts` times in this run.
        """
        async with self._alone():
            while True:
                try:
                    return await self._client.step(step, rollouts, self._probe)
                except WorkerDiedError as e:
                    await self._revive(e)

    async def probe(self) -> float:
        """What the newest version answers to the probe."""
        while True:
            try:
                return await self._client.probe(self._probe)
            except WorkerDiedError as e:
                await self._revive(e)

    async def checkpoint(self, back_to: int | None = None) -> Path:
        """Save everything the learner knows; checkpoints after `back_to` remain, and the newest before them."""
        while True:
            try:
                return await self._client.checkpoint(back_to)
            except WorkerDiedError as e:
                await self._revive(e)

    async def fall_back(self, checkpoint: Path, step: int, version: int, lr_scale: float) -> StepAnswer:
        """Go back to a checkpoint, and count that as this step and version, with scaled learning rates."""
        async with self._alone():
            while True:
                try:
                    await self._client.restore(checkpoint)
                    return await self._client.fall_back(step, version, lr_scale, self._probe)
                except WorkerDiedError as e:
                    await self._revive(e)

    async def _revive(self, error: WorkerDiedError) -> None:
        """Restart the learner as often as it takes, within the run's bound."""
        async with self._alone():  # the steps that it does again need as much room
            while True:
                self._allow_restart(error)
                await self._client.aclose()
                try:
                    await self.server.restart()
                    await self._connect()
                except WorkerDiedError as e:
                    error = e
                    continue
                self._note("learner_restarted", pid=self.server.pid)
                return

    def _allow_restart(self, error: WorkerDiedError) -> None:
        """Note a death, and raise where it was one too many."""
        self._note("learner_died", restarts=self._restarts, error=str(error))
        if self._restarts >= self._config.engine.max_restarts:
            raise WorkerDiedError(
                f"the learner died {self._restarts + 1} times (engine.max_restarts): {error}. Its last words are in "
                f"{self.server.log_path}"
            ) from error
        self._restarts += 1
        self._run.require_held()

    async def _connect(self) -> None:
        """Talk to a fresh process and bring it to the last committed step."""
        self._client = LearnerClient(self.server.base_url, timeout=self._config.learner.step_timeout)
        at = 0
        self._run.require_held()  # And so the process just started watches the same folder.
        for wrong in await anyio.to_thread.run_sync(self._forget_checkpoints):
            self._note("warning", text=f"{wrong}. It is removed, and its steps are done again")
        if found := latest(self._run.path):
            at = (await self._client.restore(found)).step
        for record, rollouts in self._ledger.steps_after(at):
            assert record.step is not None
            if record.rolled_back_to is not None:
                answer = await self._client.fall_back(record.step, record.version, record.lr_scale)
            else:
                answer = await self._client.step(record.step, tuple(rollouts))
            if answer.version != record.version:
                raise RunError(
                    f"step {record.step} gave version {record.version} before the crash and {answer.version} after it: "
                    "the logs and the checkpoint are not of one run"
                )
            self._note("step_repeated", step=record.step)
            if not self._told and (other := differing(record.metrics, answer.metrics)):
                self._told = True
                self._note(
                    "warning",
                    text=f"step {record.step}, done again, gave other numbers than before ({other}), so the weights "
                    "are not to the bit what they were: the same steps give the same weights only on the same kind "
                    "of machine, and on a GPU only with deterministic kernels",
                )

    def _forget_checkpoints(self) -> list[str]:
        """Remove checkpoints that cannot be gone on from; says of each what is wrong with it."""
        forget(self._run.path, self._ledger.given_up())
        # What the logs do not know did not happen: its rollouts may yet be consumed by another step.
        return forget_after(self._run.path, self._ledger.last_step()) + forget_damaged(self._run.path)
