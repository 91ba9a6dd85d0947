"""A run that goes on has the places for episodes that it had."""

from pathlib import Path

from moonmill.config import AsyncConfig, Config, EnvConfig, LearnerConfig, ModelConfig
from moonmill.reporting import Reporter
from moonmill.rundir import RunDirectory
from moonmill.trainer.admission import capacity
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.lines import Length
from moonmill.trainer.records import StepRecord
from moonmill.trainer.run import _Run


class Nobody(Reporter):
    """Is told, and tells nobody."""


def test_to_go_back_takes_no_batch(tmp_path: Path) -> None:
    """Were it counted as one, a run in turns would admit nothing ever again after it was resumed."""
    config = Config(
        env=EnvConfig("e-v0"),
        model=ModelConfig("nowhere"),
        async_=AsyncConfig(mode="sync"),
        learner=LearnerConfig(batch_rollouts=8),
    )
    directory = RunDirectory.create(tmp_path / "run", config)
    ledger = Ledger(directory)
    for step in (1, 2):
        ledger.step(StepRecord(step, step))
    ledger.step(StepRecord(3, 3, rolled_back_to=1))
    recovery = ledger.recover()
    run = _Run(config, directory, ledger, Nobody(), Length.of(config))
    run._restore(recovery)
    room = capacity(
        max_concurrent=64,
        max_staleness=0,
        batch=8,
        published=recovery.step - len(recovery.fall_backs),
        accepted=run.buffer.accepted,
        running=0,
    )
    assert room == 8
