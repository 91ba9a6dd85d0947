"""The heart of a run: episodes are admitted, batches are taken, versions are published, all at once.

Always: a rollout is in the ledger before it is in the buffer; a step is in the ledger before its weights are published;
nothing waits for a particular episode. The parts do not know the controller; it knows them.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from moonmill.agents.runner import EpisodeRunner
from moonmill.config import Config
from moonmill.envs import TaskFeed
from moonmill.envs.sandbox_host import SandboxFigures
from moonmill.errors import RunDirectoryError, RunError
from moonmill.reporting import Reporter
from moonmill.seeding import derive_seed
from moonmill.trainer import watch
from moonmill.trainer.admission import capacity
from moonmill.trainer.buffer import Batch, Buffer
from moonmill.trainer.ledger import Ledger, Recovery
from moonmill.trainer.lines import Length, step_line, step_record
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.meter import Cause, Meter, Waits
from moonmill.trainer.publisher import Publisher, Target
from moonmill.trainer.records import StepRecord
from moonmill.trainer.useless import refuse_useless
from moonmill.types import Rollout


class Learner(watch.Learner, Protocol):
    """What the controller needs of the learner."""

    async def step(self, step: int, rollouts: tuple[Rollout, ...]) -> StepAnswer:
        """Train on a batch."""
        ...


class Controller:
    """One run of the training loop.

    Args:
        config: the run's.
        ledger: its logs.
        learner: trains.
        engine: takes new versions.
        runner: plays episodes.
        tasks: the training tasks.
        sandboxes: how the episodes' sandboxes stand, each time what has come since the last.
        buffer: the buffer, as the logs say it was left.
        reporter: told of every step.
        evaluate: evaluates the version in use; called in the background.
        recovery: where the run stands.
        length: when it is done.
    """

    def __init__(
        self,
        config: Config,
        *,
        ledger: Ledger,
        learner: Learner,
        engine: Target,
        runner: EpisodeRunner,
        tasks: TaskFeed,
        sandboxes: Callable[[], SandboxFigures],
        buffer: Buffer,
        reporter: Reporter,
        evaluate: Callable[[], Coroutine[Any, Any, None]],
        recovery: Recovery,
        length: Length,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._learner = learner
        self._engine = engine
        self._publisher = Publisher(engine, recovery.step, self._notify)
        self._runner = runner
        self._tasks = tasks
        self._sandboxes = sandboxes
        self._buffer = buffer
        self._reporter = reporter
        self._evaluate = evaluate
        self._meter = Meter(config.async_.max_concurrent)
        self._spans, self._waits = self._meter.spans(), Waits()
        self._changed = anyio.Event()
        self._stop_asked = anyio.Event()
        self._watch = watch.Watch(config, ledger, learner, buffer, reporter.warn, recovery, reporter.phase)
        self._last_error: str | None = None
        self._learning = False
        self._length = length
        self._critic_ready = recovery.critic_ready
        self.is_saved = False
        """The last checkpoint of this run has been written."""
        self.step = recovery.step
        self.version = recovery.version
        self._again = list(recovery.holes)
        self._next_index = recovery.next_index
        self._complete_groups()

    def stop(self) -> None:
        """End the run after the learner's current step, with a checkpoint."""
        self._stop_asked.set()
        self._notify()

    @property
    def stop_asked(self) -> bool:
        """`stop` was called."""
        return self._stop_asked.is_set()

    @property
    def stopped(self) -> bool:
        """`stop` was called before all steps were done."""
        return self.stop_asked and not self._done

    @property
    def _done(self) -> bool:
        return self._length.is_done(self.version, critic_ready=self._critic_ready)

    async def train(self) -> None:
        """Train until the configured number of policy updates is done, or `stop` is called.

        Raises:
            RunError: the run cannot go on.
        """
        try:
            async with anyio.create_task_group() as evaluations:
                await self._run(evaluations)
                await self._save()
                # Evaluations may take long. All is saved by now, so that a signal ends them at once.
                if self.stop_asked:
                    evaluations.cancel_scope.cancel()
        except Exception:
            with suppress(RunDirectoryError):  # Where that cannot be logged either, the first error is the one to tell.
                self._log_drops()
            raise

    async def _run(self, evaluations: TaskGroup) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._publisher.run)
            group.start_soon(self._admit, group)
            await self._learn(evaluations)
            while self._publisher.step < self.step:
                await self._changed.wait()
            # What still runs now belongs to no step.
            group.cancel_scope.cancel()

    async def _save(self) -> None:
        if not self.stop_asked and not self._done:
            # Author's code can cancel the task it runs in, and a task group then ends as if it were done.
            raise RunError(
                f"training was cancelled from within after {self.version} of {self._config.train.steps} policy "
                "updates: code of the environment has cancelled a task that is not its own; --resume continues"
            )
        await self._watch.checkpoint(self.step)
        if not self.stopped:
            self._buffer.drain("run_ended")
            self._log_drops()
        self.is_saved = True

    def _log_drops(self) -> None:
        """Log what was dropped since the last step: there is no next one."""
        self._ledger.step(StepRecord(None, self.version, dropped=self._buffer.take_drops()))

    def _complete_groups(self) -> None:
        """A group that was begun is completed, also where none of its later members was ever started."""
        while self._next_index % self._buffer.group_size:
            self._again.append(self._next_index)
            self._next_index += 1

    async def _admit(self, group: TaskGroup) -> None:
        slots = self._config.async_.max_concurrent
        while True:
            room = capacity(
                max_concurrent=slots,
                max_staleness=self._config.async_.staleness_bound,
                batch=self._config.learner.batch_rollouts,
                published=self._publisher.step - self._watch.fall_backs,  # Those have consumed no batch.
                accepted=self._buffer.accepted,
                running=self._buffer.running,
            )
            # Those had a place before the run was resumed, perhaps with a larger staleness bound: what came after them
            # may be of no use without them.
            again = min(len(self._again), slots - self._buffer.running)
            for _ in range(max(room, again)):
                index = self._next()
                self._buffer.admit(index)
                group.start_soon(self._episode, index)
            self._meter.leave_free(max(0, slots - self._buffer.running), self._cause())
            await self._changed.wait()

    def _cause(self) -> Cause:
        """What would have to happen for more episodes to start, where there are slots for them."""
        if self._publisher.step < self.step:
            return "handover"
        return "learner" if self._learning else "stragglers"

    def _next(self) -> int:
        if self._again:
            return self._again.pop(0)
        self._next_index += 1
        return self._next_index - 1

    async def _episode(self, index: int) -> None:
        """Play the episode with this admission number and keep what comes of it."""
        size = self._buffer.group_size
        with self._meter.generating():
            task = await self._tasks.task(index // size)
            rollout = await self._runner.run(
                task,
                id=f"{index:08d}",
                index=index,
                seed=derive_seed(self._config.train.seed, "rollout", index),
                group=f"{index // size:08d}" if size > 1 else None,
            )
        self._ledger.rollout(rollout)
        self._buffer.add(rollout)
        self._meter.played(rollout.timings)
        self._last_error = rollout.error or self._last_error
        refuse_useless(self._buffer, self._config, self._last_error)
        self._notify()

    async def _learn(self, evaluations: TaskGroup) -> None:
        train = self._config.train
        while not self._done and not self._stop_asked.is_set():
            if fallen_back := await self._watch.act(self.step, self.version):
                self._take(fallen_back, changed=True)
                continue
            with self._meter.waiting_for_rollouts():
                batch = await self._next_batch()
            if batch is None:
                return
            answer = await self._step(batch)
            made_version = answer.version > self.version
            self._critic_ready = self._critic_ready or answer.metrics.get("critic_ready") == 1
            await self._commit(batch, answer)
            self._take(answer, changed=answer.metrics.get("grad_norm") != 0.0)
            if self.step % train.checkpoint_every == 0:
                await self._watch.checkpoint(self.step)
            if made_version and train.eval_every and self.version % train.eval_every == 0:
                evaluations.start_soon(self._evaluate_from, self.step)

    async def _next_batch(self) -> Batch | None:
        """None where the run is asked to stop before there is one."""
        while (batch := self._buffer.take(self.version)) is None:
            self._notify()  # Stale rollouts that were dropped have freed their places.
            await self._changed.wait()
            if self._stop_asked.is_set():
                return None
        return batch

    async def _step(self, batch: Batch) -> StepAnswer:
        self._learning = True
        self._notify()
        try:
            with self._meter.learning():
                return await self._learner.step(self.step + 1, batch.rollouts)
        finally:
            self._learning = False

    def _take(self, answer: StepAnswer, *, changed: bool) -> None:
        """Go on from a committed step; its weights are published if it made any."""
        self.step, self.version = answer.step, answer.version
        weights = Path(answer.weights) if answer.weights else None
        self._publisher.offer(answer.step, answer.version, weights, changed=changed, probe=answer.probe)
        self._notify()

    async def _evaluate_from(self, step: int) -> None:
        """Evaluate once the weights of `step` are in use."""
        while self._publisher.step < step:
            await self._changed.wait()
        await self._evaluate()

    async def _commit(self, batch: Batch, answer: StepAnswer) -> None:
        spans, waits = self._meter.spans(), self._meter.waits(self._engine.queued())
        earlier, self._spans, self._waits = (self._spans, self._waits), spans, waits
        record = replace(
            step_record(batch, answer),
            dropped=self._buffer.take_drops(),
            spans=spans.since(earlier[0]),
            waits=waits.since(earlier[1]),
            in_flight=self._engine.in_flight(),
            sandboxes=self._sandboxes(),
        )
        await anyio.to_thread.run_sync(self._ledger.step, record)  # It waits for the disk.
        self._reporter.step(step_line(record, batch, self._length, self._config.eval.success))
        self._watch.see(record, batch.rollouts, answer.notice)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
