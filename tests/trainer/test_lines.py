"""What a step's line takes from its record."""

from moonmill.trainer.buffer import Batch
from moonmill.trainer.lines import step_line
from moonmill.trainer.records import StepRecord
from moonmill.types import Rollout, Status, StopReason, Task


def test_what_went_wrong_in_its_rollouts_is_on_the_line() -> None:
    record = StepRecord(3, 2, ("0",), staleness=(1,), reward=1.0, truncated=0.25, tool_fault_share=0.5)
    rollout = Rollout("0", "test-v0", Task("?"), Status.TRUNCATED, StopReason.MAX_TURNS, reward=1.0)
    line = step_line(record, Batch((rollout,), (1,)), steps_total=9, success=1.0)
    assert (line.truncated, line.tool_errors) == (0.25, 0.5)
