"""A whole training run: engine, learner and controller brought up, evaluated before and after, and taken down.

Whatever ends it, what is finished is in the run directory and no process of ours is left.
"""

import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from moonmill.agents.client import InferenceClient
from moonmill.agents.open_files import allow_many_files
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.rendering import TurnRenderer, load_renderer
from moonmill.agents.runner import EpisodeRunner
from moonmill.blame import own_error
from moonmill.config import Config
from moonmill.envs import SandboxService, TaskFeed
from moonmill.envs.wrappers import factory_of
from moonmill.errors import RunDirectoryError, RunError
from moonmill.jsonl import read_jsonl
from moonmill.reporting import Reporter, Summary
from moonmill.rundir import RunDirectory
from moonmill.sandboxes.providers import UNSAFE
from moonmill.signals import STOPPING, ignore, interruptible, raise_if_asked
from moonmill.trainer.algorithms.presets import ResolvedAlgorithm, resolve
from moonmill.trainer.buffer import Buffer
from moonmill.trainer.controller import Controller
from moonmill.trainer.devices import shares_card
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.evaluations import Evaluations
from moonmill.trainer.filters import Filters
from moonmill.trainer.learner_host import LearnerHost
from moonmill.trainer.ledger import Ledger, Recovery
from moonmill.trainer.lines import Length
from moonmill.trainer.summary import read_events, summarize
from moonmill.trainer.validate import require_valid
from moonmill.types import Rollout

_ROUTINE = frozenset({"engine_started", "learner_started", "version_published", "step_repeated", "engine_slept"})


def train(config: Config, *, resume: bool, reporter: Reporter, critic_only: bool = False) -> Summary:
    """Train as `config` says and return the run in figures.

    Ctrl-C ends the run after the learner's current step, with a checkpoint; a second one ends it at once. With
    `critic_only` it ends before the first policy update, once the critic's warm-up is over.

    Raises:
        ConfigError: the config cannot work. Nothing has been written.
        RunDirectoryError: the run directory cannot be used.
        RunError: the run could not go on. What is finished is kept; `resume` continues.
        KeyboardInterrupt: it was stopped before a checkpoint could be written; `resume` continues.
    """
    allow_many_files()
    folder = Path(config.run_dir).absolute()  # what is played may change the working directory
    with interruptible():
        try:
            reporter.phase("checking the config")
            for text in require_valid(config):
                reporter.warn(text)
            if config.sandbox.provider == UNSAFE:
                reporter.warn(f"sandbox.provider is {UNSAFE}: what a model writes runs on this machine, as you")
            raise_if_asked()
        except KeyboardInterrupt as e:
            raise RunError("stopped while checking the config: nothing was begun, so there is nothing to resume") from e
        run = (RunDirectory.resume if resume else RunDirectory.create)(folder, config)
        try:
            placed = msgspec.structs.replace(config, run_dir=str(folder))
            _carry_out(placed, run, reporter, Length.of(config, critic_only=critic_only))
            run.require_held()
        finally:
            run.unlock()
        return msgspec.structs.replace(summarize(run.path), run=config.run_dir)


def _carry_out(config: Config, run: RunDirectory, reporter: Reporter, length: Length) -> None:
    ledger = Ledger(run)
    job = _Run(config, run, ledger, reporter, length)
    try:
        with job.sandboxes:
            anyio.run(job.main)
        if job.stopped_at_once:
            ledger.event("stopped")
            raise KeyboardInterrupt
    except Exception as e:
        if job.started:
            with suppress(RunDirectoryError):  # The disk may be full. What ended the run is the error to tell.
                ledger.event("failed", error=str(e))
        run.require_held()  # Where it is not, that is what has ended the run, however it showed.
        raise
    finally:
        ledger.close()


class _Run:
    def __init__(self, config: Config, run: RunDirectory, ledger: Ledger, reporter: Reporter, length: Length) -> None:
        self.config = config
        self.length = length
        self.run = run
        self.ledger = ledger
        self.reporter = reporter
        self.sandboxes = SandboxService(config.sandbox)
        self.algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
        self.factory = factory_of(config.env)
        self.renderer: TurnRenderer
        self.buffer = make_buffer(config, self.algorithm)
        self.controller: Controller | None = None
        self.started = self.finished = self.stopped_at_once = False
        self.evaluations = Evaluations(config, ledger, self.factory, self._agent, reporter)

    async def main(self) -> None:
        try:
            with anyio.open_signal_receiver(*STOPPING) as signals:
                async with anyio.create_task_group() as group:
                    job = anyio.CancelScope()
                    group.start_soon(self._watch_signals, signals, job)
                    with job:
                        await self._train()
                    group.cancel_scope.cancel()
        except BaseExceptionGroup as e:
            raise _first_of_ours(e) from e
        finally:
            # All there was to stop has ended. Interrupted here, asyncio would leave its worker threads behind.
            ignore()

    async def _train(self) -> None:
        config, ledger = self.config, self.ledger
        recovery = await anyio.to_thread.run_sync(ledger.recover)
        status = read_events(self.run).status
        if status == "finished" and recovery.version >= config.train.steps:
            raise RunError(
                f"{self.run.path} has done its {recovery.version} policy updates: to go on, raise train.steps (--set "
                f"train.steps={recovery.version * 2})"
            )
        await anyio.to_thread.run_sync(self._restore, recovery)
        ledger.event("started", step=recovery.step, pending=len(recovery.pending))
        self.started = True
        model = config.model
        self.renderer = await anyio.to_thread.run_sync(load_renderer, model.path, model.renderer, model.tool_format)
        async with TaskFeed(self.factory, "train", config.train.seed) as tasks:
            await self._start(tasks, recovery)

    async def _start(self, tasks: TaskFeed, recovery: Recovery) -> None:
        config = self.config
        prompt = self.renderer.prompt((await tasks.task(0)).messages())
        # What follows half a prompt is uncertain, so that other weights answer it with another number.
        probe = prompt[: max(1, len(prompt) // 2)]
        self.reporter.phase(f"{_whence(recovery)}starting engine and learner")
        engine = EngineHost(config, self.run.logs, self._note, probe, self.run)
        learner = LearnerHost(config, self.run, self.ledger, self._note, probe, engine.asleep)
        learner_ready = anyio.Event()
        async with anyio.create_task_group() as group:
            begin_learner = partial(group.start_soon, _keep_running, learner, learner_ready)
            # vLLM takes what is missing on its GPU, once it has looked at what its model needs, for its own need. On
            # the same GPU the learner therefore begins when that is over, and has what is left.
            # Where the engine is to sleep, it has to be there to be told to.
            shared = shares_card(config) or config.engine.sleep_while_learning
            if not shared:
                begin_learner()
            async with engine.running():
                if shared:
                    begin_learner()
                await self._evaluate_and_train(engine, learner, learner_ready, tasks, recovery)
            group.cancel_scope.cancel()

    async def _evaluate_and_train(
        self,
        engine: EngineHost,
        learner: LearnerHost,
        learner_ready: anyio.Event,
        tasks: TaskFeed,
        recovery: Recovery,
    ) -> None:
        attached = bool(self.config.engine.urls)
        if attached or self.config.engine.sleep_while_learning:
            await learner_ready.wait()
        if attached and not recovery.version:  # what others have started is not measured before it is known
            await engine.compare(await learner.probe())
        if recovery.step == 0:
            await self.evaluations.alone(engine, "before")
        await learner_ready.wait()
        if recovery.version:
            weights = self.run.weights / f"v{recovery.version:06d}"  # The learner writes it as it comes back.
            await engine.publish(recovery.version, weights, changed=True, probe=await learner.probe())
        elif not attached:
            await engine.compare(await learner.probe())
        self.reporter.phase("training")
        self.controller = self._controller(engine, learner, tasks, recovery)
        await self.controller.train()
        # Asked to stop when all steps were done, there may still be the evaluation to come back for.
        stopped = self.controller.stopped or (self.controller.stop_asked and self.config.eval.tasks > 0)
        if not stopped:
            await self.evaluations.alone(engine, "after")
        self.ledger.event("stopped" if stopped else "finished", step=self.controller.step)
        self.finished = True

    def _controller(self, engine: EngineHost, learner: LearnerHost, tasks: TaskFeed, recovery: Recovery) -> Controller:
        config = self.config
        return Controller(
            config,
            ledger=self.ledger,
            learner=learner,
            engine=engine,
            runner=EpisodeRunner(config.env.id, self.factory, self._agent(engine.client, config.sampling.temperature)),
            tasks=tasks,
            sandboxes=self.sandboxes.take_figures,
            buffer=self.buffer,
            reporter=self.reporter,
            evaluate=partial(self.evaluations.meanwhile, engine),
            recovery=recovery,
            length=self.length,
        )

    def _restore(self, recovery: Recovery) -> None:
        """Bring the buffer to where the run stands."""
        log: Iterable[Rollout] = recovery.pending
        if self.buffer.filters.remembers:
            log = read_jsonl(self.run.rollouts, Rollout)
        consumed = recovery.batches * self.config.learner.batch_rollouts
        self.buffer.restore(log, {rollout.id for rollout in recovery.pending}, consumed)

    def _agent(self, client: InferenceClient, temperature: float) -> PolicyAgent:
        sampling = msgspec.structs.replace(self.config.sampling, temperature=temperature)
        return PolicyAgent(client, self.renderer, sampling, self.config.model.max_length)

    def _note(self, kind: str, **data: object) -> None:
        """Keep an event; tell the user of those that are not routine."""
        self.ledger.event(kind, **data)
        if kind == "engine_starting":
            self.reporter.phase(str(data["text"]))
            return
        if kind == "warning":
            self.reporter.warn(str(data["text"]))
        elif kind not in _ROUTINE:
            self.reporter.warn(f"{kind.replace('_', ' ')}: " + ", ".join(f"{k} {v}" for k, v in data.items()))

    async def _watch_signals(self, signals: AsyncIterator[signal.Signals], job: anyio.CancelScope) -> None:
        """Stop with a checkpoint at the first signal, at once at the second; a third changes nothing.

        Where there is nothing to save yet, or all is saved, the first stops at once; what has finished stays so.
        """
        async for _ in signals:
            if self.finished:
                continue
            if self.controller is None or self.controller.stop_asked or self.controller.is_saved:
                # Not by an exception: asyncio lets KeyboardInterrupt through without ending its worker threads.
                self.stopped_at_once = True
                job.cancel()
            else:
                self.reporter.phase("stopping after this step; once more to stop at once")
                self.controller.stop()


def _whence(recovery: Recovery) -> str:
    """Where a run goes on; nothing of one that begins."""
    if not recovery.step and not recovery.pending:
        return ""
    return (
        f"resuming after step {recovery.step}, version {recovery.version}, with {len(recovery.pending)} finished "
        "rollouts: "
    )


async def _keep_running(learner: LearnerHost, ready: anyio.Event) -> None:
    async with learner.running():
        ready.set()
        await anyio.sleep_forever()


def make_buffer(config: Config, algorithm: ResolvedAlgorithm) -> Buffer:
    """The buffer an algorithm needs: units of one rollout, or of a group."""
    size = algorithm.group_size
    units = config.learner.batch_rollouts // size
    window = config.async_.window or 2 * config.learner.batch_rollouts
    return Buffer(
        batch_units=units,
        window=max(units, window // size),
        max_staleness=config.async_.staleness_bound,
        group_size=size,
        min_valid=algorithm.min_valid,
        filters=Filters(config.async_.filters, config.eval.success),
    )


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of a failed task group: one meant for users if there is one, else the first."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return own_error(group) or first
