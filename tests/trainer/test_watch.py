"""What is done at an alarm, on a real learner and real logs: and that all of it can be done again from the logs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from msgspec.structs import replace

from moonmill.alarm_config import AlarmsConfig
from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, GroupZscoreConfig, PretrainConfig
from moonmill.config import Config, LoraConfig
from moonmill.errors import RunError
from moonmill.jsonl import read_jsonl
from moonmill.rundir import RunDirectory
from moonmill.trainer import alarms, watch
from moonmill.trainer.buffer import Buffer
from moonmill.trainer.learner import Learner
from moonmill.trainer.ledger import Ledger, Recovery
from moonmill.trainer.messages import StepAnswer
from moonmill.trainer.records import Event, StepRecord
from moonmill.trainer.watch import Watch
from moonmill.types import Rollout
from tests.trainer.conftest import MakeConfig, sampled
from tests.trainer.test_checkpoint import everything

pytestmark = pytest.mark.anyio
BAD = {"masked_share": 1.0}
NOT_FINITE = {"skipped_updates": 1.0, "masked_share": 0.0, "ratio_std": 0.0}
EVERY = 8


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Here:
    """A learner in this process, with the manners of the one behind HTTP."""

    def __init__(self, learner: Learner, run: RunDirectory) -> None:
        self.learner = learner
        self._run = run

    async def checkpoint(self, back_to: int | None = None) -> Path:
        return self.learner.checkpoint(self._run.path, back_to)

    async def fall_back(self, checkpoint: Path, step: int, version: int, lr_scale: float) -> StepAnswer:
        self.learner.restore(checkpoint)
        self.learner.count_as(step, version, lr_scale)
        return StepAnswer(step, version, "somewhere", {})


class Run:
    """A run whose steps are done here one after another. Those of `bad` show a sign of a collapse."""

    def __init__(self, config: Config, path: Path, model: Path) -> None:
        self.config = config
        self._model = model
        self.directory = (RunDirectory.resume if path.exists() else RunDirectory.create)(path, config)
        self.ledger = Ledger(self.directory)
        recovery = self.ledger.recover()
        self.learner = Learner(config)
        self.buffer = Buffer(batch_units=8, window=16, max_staleness=4)
        self.warnings: list[str] = []
        self.signs = BAD
        here = Here(self.learner, self.directory)
        self.watch = Watch(config, self.ledger, here, self.buffer, self.warnings.append, recovery)
        self.step, self.version = recovery.step, recovery.version

    async def go(self, until: int, bad: Callable[[int], bool] = lambda step: False) -> None:
        while self.step < until:
            if fallen := await self.watch.act(self.step, self.version):
                self.step, self.version = fallen.step, fallen.version
                continue
            rollouts = self.rollouts(self.step + 1)
            for rollout in rollouts:
                self.ledger.rollout(rollout)
            done = self.learner.step(rollouts)
            self.step, self.version = done.step, done.version
            metrics = {**done.metrics, **(self.signs if bad(self.step) else {"masked_share": 0.0, "ratio_std": 0.0})}
            record = StepRecord(self.step, self.version, tuple(r.id for r in rollouts), reward=0.5, metrics=metrics)
            self.ledger.step(record)
            self.watch.see(record, rollouts)
            if self.step % EVERY == 0:
                await self.watch.checkpoint(self.step)

    def rollouts(self, step: int) -> tuple[Rollout, ...]:
        made = sampled(self._model, step, group_size=4)
        return tuple(replace(r, id=f"{step}-{r.id}", index=8 * step + i, reward=i / 8) for i, r in enumerate(made))

    @property
    def steps(self) -> list[StepRecord]:
        return list(read_jsonl(self.directory.steps, StepRecord))

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(p.name.removeprefix("step-")) for p in self.directory.checkpoints.iterdir())

    def close(self) -> None:
        self.ledger.close()
        self.directory.unlock()


Begin = Callable[..., Run]


@pytest.fixture
def begin(make_config: MakeConfig, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """A GRPO run with these alarms; called again, the same one resumed. Its batches are smaller than others'."""
    monkeypatch.setattr(alarms, "_ROLLOUTS", 24)

    def begun(wanted: AlarmsConfig, lora: LoraConfig | None = None, algorithm: AlgorithmConfig | None = None) -> Run:
        algorithm = algorithm or AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4))
        return Run(replace(make_config(algorithm=algorithm, lora=lora), alarms=wanted), tmp_path / "run", model_path)

    return begun


async def test_a_warning_is_told_and_the_run_goes_on(begin: Begin) -> None:
    run = begin(AlarmsConfig())
    await run.go(6, bad=lambda step: step > 3)
    assert [text[:26] for text in run.warnings if "alarm" in text] == ["alarm masked_share: step 4"]
    (event,) = [e for e in read_jsonl(run.directory.events, Event) if e.kind == "alarm"]
    assert (event.data["name"], event.data["step"]) == ("masked_share", 4)


async def test_gspo_masks_many_tokens_by_design(begin: Begin) -> None:
    gspo = AlgorithmConfig("gspo", advantage=GroupZscoreConfig(group_size=4))
    run = begin(AlarmsConfig(), algorithm=gspo)
    await run.go(6, bad=lambda step: step > 3)
    assert [text for text in run.warnings if "masked_share" in text] == []


async def test_stop_leaves_a_checkpoint_and_a_resumed_run_goes_on(begin: Begin) -> None:
    run = begin(AlarmsConfig("stop"))
    with pytest.raises(RunError, match=r"alarm masked_share: step 4: .*\(alarms.on_alarm: stop\).*--resume"):
        await run.go(6, bad=lambda step: step > 3)
    assert run.checkpoints == [4]
    run.close()
    again = begin(AlarmsConfig("stop"))
    again.learner.restore(again.directory.checkpoints / "step-000004")
    await again.go(6, bad=lambda step: step > 3)
    assert again.warnings == []


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)], ids=["full", "lora"])
async def test_a_fall_back_is_a_step_that_can_be_done_again_to_the_bit(begin: Begin, lora: LoraConfig | None) -> None:
    run = begin(AlarmsConfig("fall_back", lr_factor=0.25), lora)
    await run.go(34, bad=lambda step: step == 30)
    fell = run.steps[30]
    assert (fell.step, fell.version, fell.consumed, fell.rolled_back_to, fell.lr_scale) == (31, 31, (), 8, 0.25)
    assert "step 31: fell back to step 8, which is v31 now; learning rates are multiplied by 0.25" in run.warnings
    assert [s.step for s in run.steps] == list(range(1, 35))
    assert [s.version for s in run.steps] == list(range(1, 35))
    assert run.steps[31].metrics["lr"] == 0.25 * run.steps[7].metrics["lr"]
    assert run.checkpoints == [0, 8, 32]  # Those of steps 16 and 24 are given up.

    for begins in (None, "step-000008", "step-000032"):
        again = Learner(run.config)
        if begins:
            again.restore(run.directory.checkpoints / begins)
        for record, rollouts in run.ledger.steps_after(again.step_number):
            if record.rolled_back_to is None:
                again.step(rollouts)
            else:
                again.count_as(record.step or 0, record.version, record.lr_scale)
        assert (again.step_number, again.version) == (34, 34)
        expected, got = everything(run.learner), everything(again)
        assert all(torch.equal(expected[name], got[name]) for name in expected)


async def test_rollouts_from_behind_a_fall_back_are_dropped_with_the_reason(begin: Begin) -> None:
    run = begin(AlarmsConfig("fall_back"))
    await run.go(25)
    waiting, running = run.rollouts(100)[:2]
    for rollout in (waiting, running):
        run.ledger.rollout(rollout)
        run.buffer.admit(rollout.index)
    run.buffer.add(waiting)
    await run.go(27, bad=lambda step: step == 26)
    assert [(d.rollout, d.reason) for d in run.steps[26].dropped] == [(waiting.id, "rolled_back")]
    run.buffer.add(running)
    assert run.buffer.take(run.version) is None
    assert [(d.rollout, d.reason) for d in run.buffer.take_drops()] == [(running.id, "rolled_back")]
    run.close()
    assert begin(AlarmsConfig("fall_back")).buffer.first_version == 27


async def test_each_fall_back_halves_and_after_so_many_the_run_ends(begin: Begin) -> None:
    run = begin(AlarmsConfig("fall_back", max_fall_backs=2))
    with pytest.raises(RunError, match=r"has fallen back 2 times \(alarms.max_fall_backs: 2\)"):
        await run.go(40, bad=lambda step: step > 3)
    assert [s.lr_scale for s in run.steps if s.rolled_back_to is not None] == [0.5, 0.25]
    assert [s.rolled_back_to for s in run.steps if s.rolled_back_to is not None] == [0, 0]


async def test_a_run_killed_between_alarm_and_fall_back_falls_back_when_it_is_resumed(begin: Begin) -> None:
    run = begin(AlarmsConfig("fall_back"))
    await run.go(26, bad=lambda step: step == 26)
    run.close()
    again = begin(AlarmsConfig("fall_back"))
    fell = await again.watch.act(26, 26)
    assert fell is not None
    assert (fell.step, fell.version) == (27, 27)


async def test_a_damaged_checkpoint_is_passed_over_and_where_there_is_none_that_is_said(begin: Begin) -> None:
    run = begin(AlarmsConfig("fall_back"))
    await run.go(29)
    (run.directory.checkpoints / "step-000008" / "state.json").unlink()
    await run.go(32, bad=lambda step: step == 30)
    assert run.steps[30].rolled_back_to == 0
    run.directory.checkpoints.joinpath("step-000000", "state.json").unlink()
    with pytest.raises(RunError, match="no checkpoint of the steps 0 to 14 to fall back to"):
        await run.go(40, bad=lambda step: step == 34)


@pytest.mark.parametrize("then", ["warn", "stop"])
async def test_numbers_that_are_not_finite_for_too_long_end_the_run_with_what_can_be_done(
    begin: Begin, then: Literal["warn", "stop"]
) -> None:
    run = begin(AlarmsConfig(then))
    run.signs = NOT_FINITE
    await run.go(10, bad=lambda step: step in (2, 3, 9, 10))
    assert run.warnings == []
    with pytest.raises(RunError) as ended:
        await run.go(14, bad=lambda step: step == 11)
    saved = 11 if then == "stop" else 8
    assert "step 11: loss or gradients were not finite in 3 steps in a row (learner.max_bad_steps)" in str(ended.value)
    assert "start a new run with a lower learner.lr or algorithm.critic.lr; `moonmill export " in str(ended.value)
    assert f"of its newest checkpoint, of step {saved}, a model to begin with (model.path)" in str(ended.value)
    assert "--resume" not in str(ended.value)
    run.close()
    again = begin(AlarmsConfig(then))
    assert await again.watch.act(11, 11) is None  # Whoever resumes wants it to go on.


async def test_a_run_falls_back_from_numbers_that_are_not_finite(begin: Begin) -> None:
    run = begin(AlarmsConfig("fall_back"))
    run.signs = NOT_FINITE
    await run.go(33, bad=lambda step: step in (28, 29, 30, 32, 33))
    assert [(s.step, s.rolled_back_to) for s in run.steps if s.rolled_back_to is not None] == [(31, 8)]
    assert "alarm not_finite: step 30: loss or gradients were not finite in 3 steps in a row" in run.warnings[0]


async def test_a_run_that_has_ended_so_can_be_resumed_to_fall_back(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MARGIN", 10)
    run = begin(AlarmsConfig("warn"))
    run.signs = NOT_FINITE
    with pytest.raises(RunError, match=r"--resume --set alarms.on_alarm=fall_back, or start a new run"):
        await run.go(31, bad=lambda step: step > 27)
    run.close()
    fell = await begin(AlarmsConfig("fall_back")).watch.act(30, 30)
    assert fell is not None
    assert fell.step == 31


async def test_why_pre_training_of_the_critic_ended_is_told_once(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
) -> None:
    config = make_config(critic=CriticConfig(warmup_steps=1, pretrain=PretrainConfig(max_steps=40)))
    ledger = Ledger(RunDirectory.create(tmp_path / "run", config))
    learner: Any = None  # It is asked for nothing.
    buffer, told, warned = Buffer(batch_units=8, window=16, max_staleness=4), list[str](), list[str]()
    recovery = Recovery(step=20, version=0, pending=(), next_index=0, holes=())
    watch = Watch(config, ledger, learner, buffer, warned.append, recovery, told.append)
    for step in (21, 22):
        metrics = {"critic_ready": 1.0, "explained_variance_smoothed": -0.002}
        watch.see(StepRecord(step, 0, metrics=metrics), sampled(model_path, step))
    assert len(told) == len(warned) == 1
    assert told[0].startswith("the critic's pre-training ended after 21 steps: its explained variance has not risen")
    assert warned[0].startswith("the critic has learned next to nothing in 21 steps: its explained variance is -0.002")


async def test_before_the_first_policy_update_there_is_nothing_to_go_back_to(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """The critic may be bad enough for an alarm while it is trained alone."""
    config = replace(make_config(critic=CriticConfig(warmup_steps=30)), alarms=AlarmsConfig("fall_back"))
    ledger = Ledger(RunDirectory.create(tmp_path / "run", config))
    names = tuple(map(str, range(8)))
    bad = [StepRecord(n, 0, names, metrics={"explained_variance": -3.0}) for n in range(1, 21)]
    recovery = Recovery(step=20, version=0, pending=(), next_index=0, holes=(), alone=20, history=tuple(bad))
    learner: Any = None  # It is asked for nothing.
    buffer = Buffer(batch_units=8, window=16, max_staleness=4)
    watch = Watch(config, ledger, learner, buffer, lambda text: None, recovery)
    assert await watch.act(20, 0) is None
