"""What is said of a step that is done again, and how long a learner may take to start."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from moonmill.config import Config, EngineConfig, EnvConfig, LearnerConfig, ModelConfig
from moonmill.errors import WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer.learner_host import LearnerHost, differing
from moonmill.trainer.ledger import Ledger


def test_a_step_that_gives_other_numbers_than_before_is_noticed() -> None:
    before = {"policy_loss": 0.1, "grad_norm": 0.5, "seconds_policy": 1.0}
    assert differing(before, {**before, "seconds_policy": 2.0}) == ""
    assert differing(before, {**before, "grad_norm": 0.5000001}) == "grad_norm 0.5 then, 0.5000001 now"
    assert differing(before, {"policy_loss": 0.1}) == "grad_norm 0.5 then, None now"


@pytest.mark.anyio
async def test_a_learner_has_its_start_timeout_to_get_ready(tmp_path: Path) -> None:
    config = Config(
        env=EnvConfig("test-v0"),
        model=ModelConfig("nowhere"),
        learner=LearnerConfig(start_timeout=0.01),
        engine=EngineConfig(max_restarts=0),
    )
    run = RunDirectory.create(tmp_path / "run", config)
    host = LearnerHost(config, run, Ledger(run), lambda kind, **data: None, (1,), nullcontext)
    with pytest.raises(WorkerDiedError, match=r"the learner was not ready in 0\.01 s \(its start_timeout\)"):
        async with host.running():
            pass
