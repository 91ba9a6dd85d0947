"""The run's logs, and what they say after a crash.

A finished rollout is written to `rollouts.jsonl` before anyone may train on it. A learner step is written to
`steps.jsonl` when it is done and before its weights are published. Together they tell, at any moment, what has become
of every finished rollout: consumed, dropped, or still to be used.

A step is on the disk, and the rollouts that it names before it, when `step` returns. So a power loss leaves no step
without its rollouts, and no rollout of a version that no step has made.
"""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from moonmill.errors import RunDirectoryError
from moonmill.jsonl import JsonlWriter, read_jsonl
from moonmill.rundir import RunDirectory
from moonmill.trainer.checkpoint import newest_step
from moonmill.trainer.records import Event, StepRecord
from moonmill.types import Rollout

_HISTORY = 500
"""Steps that are looked back on, when a run goes on."""


class Recovery(Struct, frozen=True):
    """Where a run stands, read from its logs."""

    step: int
    """Learner steps committed."""
    version: int
    pending: tuple[Rollout, ...]
    """Finished, neither consumed nor dropped."""
    next_index: int
    """The first admission number never used."""
    holes: tuple[int, ...]
    """Admission numbers below it whose episodes did not finish: they are played again."""
    critic_ready: bool = False
    """The critic has been trained alone for long enough."""
    alone: int = 0
    """Learner steps before the first policy update."""
    history: tuple[StepRecord, ...] = ()
    """The newest committed steps."""
    fall_backs: tuple[StepRecord, ...] = ()
    """All that only went back to an earlier step."""

    @property
    def batches(self) -> int:
        """Batches that were consumed: to go back takes none."""
        return self.step - len(self.fall_backs)


class Ledger:
    """Writes the logs of one run; the only writer."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._rollouts = JsonlWriter(run.rollouts)
        self._steps = JsonlWriter(run.steps)
        self._events = JsonlWriter(run.events)

    def rollout(self, rollout: Rollout) -> None:
        self._rollouts.append(rollout)

    def step(self, record: StepRecord) -> None:
        """Commit a step; waits for the disk.

        Raises:
            RunError: the run directory is not the one that was begun in.
            RunDirectoryError: the disk is full, or failed.
        """
        self.run.require_held()
        self._rollouts.sync()
        self._steps.append(record)
        self._steps.sync()

    def event(self, kind: str, **data: Any) -> None:
        self._events.append(Event(time.time(), kind, msgspec.to_builtins(data)))

    def close(self) -> None:
        for log in (self._rollouts, self._steps, self._events):
            log.close()

    def recover(self) -> Recovery:
        """Read the logs. A run that has just begun gives a recovery with nothing in it.

        Raises:
            RunDirectoryError: they cannot be read, lack a step or have one twice, know none where checkpoints of later
                steps stand, or no rollout where steps name it, or one twice.
        """
        step = version = alone = 0
        ready = False
        gone: set[str] = set()
        history: deque[StepRecord] = deque(maxlen=_HISTORY)
        fall_backs: list[StepRecord] = []
        for record in self._records():
            gone.update(record.consumed)
            gone.update(d.rollout for d in record.dropped)
            if record.step is not None:
                step, version = record.step, record.version
                ready = ready or record.metrics.get("critic_ready") == 1
                alone = step if not version else alone
                history.append(record)
                fall_backs += [record] if record.rolled_back_to is not None else []
        if not step and (newest := newest_step(self.run.path)):
            raise RunDirectoryError(
                f"{self.run.steps} has no step, but {self.run.checkpoints} has a checkpoint of step {newest}: the logs "
                "are lost, and to go on would begin again and remove it. Bring steps.jsonl and rollouts.jsonl back, or "
                "move the run directory away and start a new run from what `moonmill export --merge` makes of it"
            )
        pending: list[Rollout] = []
        seen: set[int] = set()
        missing = set(gone)
        for number, rollout in enumerate(read_jsonl(self.run.rollouts, Rollout), 1):
            if rollout.index in seen:
                raise RunDirectoryError(
                    f"{self.run.rollouts}, line {number} has rollout {rollout.id} for the second time: to go on might "
                    "train on it again. Remove the line that is too many"
                )
            seen.add(rollout.index)
            missing.discard(rollout.id)
            if rollout.id not in gone:
                pending.append(rollout)
        if missing:
            raise RunDirectoryError(
                f"{self.run.steps} names {len(missing):,} rollouts that {self.run.rollouts} does not have, the first "
                f"{min(missing)}: to go on would play and train on them again. Bring the whole rollouts.jsonl "
                "back, or start a new run from what `moonmill export` makes of this one"
            )
        next_index = max(seen, default=-1) + 1
        holes = tuple(sorted(set(range(next_index)) - seen))
        return Recovery(
            step=step,
            version=version,
            pending=tuple(pending),
            next_index=next_index,
            holes=holes,
            critic_ready=ready,
            alone=alone,
            history=tuple(history),
            fall_backs=tuple(fall_backs),
        )

    def last_step(self) -> int:
        """The last committed step, 0 before the first."""
        return max((r.step for r in self._records() if r.step is not None), default=0)

    def given_up(self) -> set[int]:
        """The steps that later ones have gone back behind."""
        steps: set[int] = set()
        for record in self._records():
            if record.step is not None and record.rolled_back_to is not None:
                steps.update(range(record.rolled_back_to + 1, record.step))
        return steps

    def steps_after(self, step: int) -> Iterator[tuple[StepRecord, list[Rollout]]]:
        """The committed steps after `step`, oldest first, each with the rollouts it consumed, in their order.

        Without those that a later one has gone back behind: they are of no consequence for the weights.
        """
        given_up = self.given_up()
        committed = (r for r in self._records() if r.step is not None and r.step > step)
        records = [r for r in committed if r.step not in given_up]
        wanted = {name for record in records for name in record.consumed}
        found = {r.id: r for r in read_jsonl(self.run.rollouts, Rollout) if r.id in wanted}
        for record in records:
            try:
                yield record, [found[name] for name in record.consumed]
            except KeyError as e:
                raise RunDirectoryError(
                    f"{self.run.steps} says that step {record.step} consumed rollout {e}, which {self.run.rollouts} "
                    "does not have: the run's files are not all of one run"
                ) from e

    def _records(self) -> Iterator[StepRecord]:
        """The lines of `steps.jsonl`: those of steps count from 1, without a gap."""
        step = 0
        for number, record in enumerate(read_jsonl(self.run.steps, StepRecord), 1):
            if record.step is not None:
                step += 1
                if record.step != step:
                    raise RunDirectoryError(
                        f"{self.run.steps}, line {number} is of step {record.step}, where step {step} belongs: lines "
                        "are missing, doubled or in another order, and to go on might train on rollouts again. Bring "
                        "the whole steps.jsonl back, or start a new run from what `moonmill export` makes of this one"
                    )
            yield record
