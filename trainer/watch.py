"""Watches over a run: tells what looks wrong in a learner step, and does what is wanted at an alarm.

To fall back is a learner step of its own, without rollouts: it makes a new version out of an old checkpoint, so that
steps and versions only ever grow, and `steps.jsonl` tells what was done and can be done again. Rollouts consumed since
that checkpoint stay consumed; those sampled since that are not, are dropped.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from moonmill.alarm_config import AlarmName
from moonmill.algorithm_config import DisConfig, GspoConfig
from moonmill.config import Config
from moonmill.errors import RunError
from moonmill.trainer.alarms import MARGIN, Alarm, Alarms
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.buffer import Buffer
from moonmill.trainer.checkpoint import damage_of, forget, newest_of, newest_step, step_of
from moonmill.trainer.ledger import Ledger, Recovery
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.mismatch import MismatchWatch
from moonmill.trainer.records import StepRecord
from moonmill.trainer.rewards import RewardWatch
from moonmill.trainer.warm_up import how_it_ended, most_steps
from moonmill.types import Rollout

_GO_ON = "go on with --resume and alarms.on_alarm=warn, or start a new run with a lower learner.lr"


class Learner(Protocol):
    """What is needed of the learner."""

    async def checkpoint(self, back_to: int | None = None) -> Path:
        """Save everything; checkpoints of later steps than `back_to` remain, and the newest before them."""
        ...

    async def fall_back(self, checkpoint: Path, step: int, version: int, lr_scale: float) -> StepAnswer:
        """Go back to a checkpoint, and count that as this step and version, with scaled learning rates."""
        ...


class Watch:
    """One run's.

    Args:
        config: the run's.
        ledger: its logs.
        learner: saves, and goes back.
        buffer: of the run.
        warn: told of what looks wrong.
        tell: told of what is only news.
        recovery: where the run stands.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        learner: Learner,
        buffer: Buffer,
        warn: Callable[[str], None],
        recovery: Recovery,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config.alarms
        self._ledger = ledger
        self._learner = learner
        self._buffer = buffer
        self._warn = warn
        self._tell = tell
        algorithm = resolve(config.algorithm, config.learner.batch_rollouts)
        self._first = recovery.alone
        """Learner steps before the first policy update: nothing goes back behind them."""
        self._critic = algorithm.critic
        self._critic_ready = recovery.critic_ready or not most_steps(algorithm.critic)
        self._rewards = RewardWatch(critic=algorithm.critic is not None)
        self._mismatch = MismatchWatch(config)
        self._lora = config.model.lora is not None
        # GSPO clips a large share of the tokens by design: its paper shows 15%, with batches that are never stale.
        by_design: set[AlarmName] = {"masked_share"} if isinstance(algorithm.objective, GspoConfig) else set()
        self._alarms = Alarms(
            by_design.union(config.alarms.off),
            strict=isinstance(algorithm.objective, DisConfig),
            max_bad_steps=config.learner.max_bad_steps,
        )
        self._due: list[Alarm] = []
        for record in recovery.history:
            self._due = self._alarms.see(record)
        if self._config.on_alarm != "fall_back":  # It has ended. Whoever resumes wants it to go on.
            self._due = []
        self._lr_scale = 1.0
        self.fall_backs = len(recovery.fall_backs)
        """How often the run has fallen back."""
        for record in recovery.fall_backs:
            self._lr_scale, buffer.first_version = record.lr_scale, record.version

    def see(self, record: StepRecord, rollouts: Sequence[Rollout], notice: str = "") -> None:
        """Tell what looks wrong in a committed step, once each, and what the learner itself has noticed."""
        step = record.step or 0
        self._first = step if not record.version else self._first
        found = (self._rewards.see(rollouts), self._mismatch.see(step, record.metrics), notice, self._ready(record))
        for text in filter(None, found):
            self._ledger.event("warning", text=text)
            self._warn(text)
        self._due = self._alarms.see(record)
        for alarm in self._due:
            self._ledger.event("alarm", name=alarm.name, step=alarm.step, text=alarm.text)
            self._warn(f"alarm {alarm.name}: {alarm.text}")

    def _ready(self, record: StepRecord) -> str:
        """Notice that the critic is trained alone no longer; returns what looks wrong with it."""
        if self._critic is None or self._critic_ready or record.metrics.get("critic_ready") != 1:
            return ""
        self._critic_ready = True
        explained = record.metrics.get("explained_variance_smoothed")
        news, wrong = how_it_ended(self._critic, record.step or 0, explained)
        if news:
            self._ledger.event("critic_ready", step=record.step, text=news)
            self._tell(news)
        return wrong

    async def checkpoint(self, step: int) -> None:
        """Save everything after this step, and keep what may have to be gone back to."""
        back_to = max(self._first, step - MARGIN) if self._config.on_alarm == "fall_back" else None
        await self._learner.checkpoint(back_to)

    async def act(self, step: int, version: int) -> StepAnswer | None:
        """Do what is wanted at the alarms of the last step, which was `step` and led to `version`.

        Returns:
            Where the run has fallen back, the step that did so; it is committed.

        Raises:
            RunError: the run is to stop, or cannot fall back.
        """
        due, self._due = self._due, []
        if self._config.on_alarm == "fall_back" and not version and self._critic_ready:
            await self.checkpoint(step)
        if not due:
            return None
        ends = due[0].ends_the_run
        if not ends and (self._config.on_alarm == "warn" or (self._config.on_alarm == "fall_back" and not version)):
            return None  # Before the first policy update the policy is what it was: all of it is told.
        if self._config.on_alarm == "stop":
            await self.checkpoint(step)
            where = "It stops here (alarms.on_alarm: stop)"
            raise RunError(f"alarm {due[0].name}: {due[0].text}. {where}: {self._go_on(due[0])}")
        if self._config.on_alarm == "warn" or not version:
            raise RunError(f"{due[0].text}, and ends here: {self._go_on(due[0])}")
        return await self._fall_back(due[0], step + 1, version + 1)

    async def _fall_back(self, alarm: Alarm, step: int, version: int) -> StepAnswer:
        target = await anyio.to_thread.run_sync(self._target, alarm)
        scale = self._lr_scale * self._config.lr_factor
        answer = await self._learner.fall_back(target, step, version, scale)
        self._buffer.forget_before(version)
        back = step_of(target)
        record = StepRecord(
            step,
            version,
            dropped=self._buffer.take_drops(),
            metrics=answer.metrics,
            rolled_back_to=back,
            lr_scale=scale,
        )
        await anyio.to_thread.run_sync(self._ledger.step, record)
        self._alarms.see(record)
        self.fall_backs, self._lr_scale = self.fall_backs + 1, scale
        await anyio.to_thread.run_sync(forget, self._ledger.run.path, range(back + 1, step))
        self._ledger.event("fell_back", step=step, version=version, to=back, lr_scale=scale, alarm=alarm.name)
        now = f"step {step}: fell back to step {back}, which is v{version} now"
        self._warn(f"{now}; learning rates are multiplied by {scale:g}")
        return answer

    def _target(self, alarm: Alarm) -> Path:
        """The checkpoint to fall back to."""
        most = self._config.max_fall_backs
        if self.fall_backs >= most:
            raise RunError(
                f"alarm {alarm.name}: {alarm.text}. The run has fallen back {self.fall_backs} times "
                f"(alarms.max_fall_backs: {most}), so it ends here: {self._go_on(alarm)}"
            )
        last = max(self._first, alarm.step - MARGIN)
        while found := newest_of(self._ledger.run.path, self._first, last):
            if not damage_of(found):
                return found
            forget(self._ledger.run.path, {step_of(found)})
        raise RunError(
            f"alarm {alarm.name}: {alarm.text}. There is no checkpoint of the steps {self._first} to {last} to fall "
            f"back to: {self._go_on(alarm)}"
        )

    def _go_on(self, alarm: Alarm) -> str:
        """What whoever started the run can do."""
        if not alarm.ends_the_run:
            return _GO_ON
        path = self._ledger.run.path
        lower = "start a new run with a lower learner.lr or algorithm.critic.lr"
        newest = newest_step(path)
        if self._config.on_alarm != "fall_back" and newest_of(path, self._first, max(self._first, alarm.step - MARGIN)):
            lower = f"go on from an earlier checkpoint with --resume --set alarms.on_alarm=fall_back, or {lower}"
        if not newest:
            return lower
        export = f"moonmill export {path}{' --merge' * self._lora} --out FOLDER"
        made = f"makes of its newest checkpoint, of step {newest}, a model to begin with (model.path)"
        return f"{lower}; `{export}` {made}"
