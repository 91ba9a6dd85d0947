"""Buffer and log: rollouts/s from a finished episode to a committed step.

    python tests/benchmarks/bench_buffer.py [--rollouts 4000] [--batch 64] [--json]

Each rollout is written to `rollouts.jsonl`, put into the buffer and taken in a batch; each step is written to
`steps.jsonl`, and both are on the disk before it counts. That is what the controller does but for playing and learning.
The bound beside it, in the same run: `json.dumps` of the same rollouts as plain data, and a buffered write of each. The
two take turns, best of 3.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from moonmill.config import Config, EnvConfig, FiltersConfig, ModelConfig, SuccessRateConfig
from moonmill.rundir import RunDirectory
from moonmill.trainer.buffer import Buffer
from moonmill.trainer.filters import Filters
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.records import StepRecord
from moonmill.types import Action, Message, Observation, Rollout, Segment, Status, StopReason, Task, Timings, ToolCall

LENGTHS = (100, 2000)
"""Tokens of a rollout, half of them sampled."""
TURNS = 4
REPEATS = 3
CONFIG = Config(env=EnvConfig("bench-v0"), model=ModelConfig("none"))
FILTERS = FiltersConfig(overlong=True, success_rate=SuccessRateConfig(min=0.01, max=0.99))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    for length in LENGTHS:
        rollouts = make(args.rollouts // args.batch * args.batch, length)
        plain = [msgspec.to_builtins(rollout) for rollout in rollouts]
        with tempfile.TemporaryDirectory() as folder:
            pairs = [
                (ours(rollouts, args.batch, Path(folder, f"run-{i}")), bound(plain, Path(folder, f"bound-{i}")))
                for i in range(REPEATS)
            ]
        own, other = (len(rollouts) / min(seconds) for seconds in zip(*pairs, strict=True))
        size = len(msgspec.json.encode(rollouts[0]))
        results.append({"tokens": length, "bytes": size, "rollouts_per_second": own, "json_dumps_and_write": other})
    if args.json:
        print(json.dumps(results))
        return
    print(f"{'tokens':>7} {'bytes':>8} {'rollouts/s':>11} {'json.dumps':>11}")
    for r in results:
        own, other = r["rollouts_per_second"], r["json_dumps_and_write"]
        print(f"{r['tokens']:7} {r['bytes']:8} {own:11,.0f} {other:11,.0f} ({own / other:.1f}×)")


def ours(rollouts: Sequence[Rollout], batch: int, path: Path) -> float:
    """Seconds for all of them, some always in the buffer."""
    run = RunDirectory.create(path, CONFIG)
    ledger = Ledger(run)
    buffer = Buffer(batch_units=batch, window=2 * batch, max_staleness=4, filters=Filters(FILTERS))
    begin, step = time.perf_counter(), 0
    for rollout in rollouts:
        buffer.admit(rollout.index)
    for rollout in rollouts:
        ledger.rollout(rollout)
        buffer.add(rollout)
        taken = buffer.take(0)
        if taken is None:
            continue
        step += 1
        consumed = tuple(r.id for r in taken.rollouts)
        ledger.step(StepRecord(step, 0, consumed=consumed, dropped=buffer.take_drops(), staleness=taken.staleness))
    seconds = time.perf_counter() - begin
    ledger.close()
    run.unlock()
    assert step == len(rollouts) // batch, "some were dropped"
    return seconds


def bound(plain: Sequence[Any], path: Path) -> float:
    """Seconds to dump and write the same rollouts with the standard library, synced at the end."""
    begin = time.perf_counter()
    with path.open("w") as file:
        for rollout in plain:
            file.write(json.dumps(rollout) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def make(count: int, tokens: int) -> list[Rollout]:
    """Rollouts as the calculator's, with so many tokens over some turns."""
    draw = random.Random(0)
    return [_rollout(index, tokens, draw) for index in range(count)]


def _rollout(index: int, tokens: int, draw: random.Random) -> Rollout:
    each = tokens // (2 * TURNS)
    segments: list[Segment] = []
    messages: list[Message] = [Message("user", "((48+7)*21)-530")]
    for turn in range(TURNS):
        ids = tuple(draw.randrange(32_000) for _ in range(2 * each))
        logprobs = tuple(-draw.expovariate(2.0) for _ in range(each))
        segments += [Observation(ids[:each]), Action(ids[each:], logprobs, (turn // 2,) * each)]
        call = ToolCall(f"call-{turn}", "calculate", {"expression": "48+7"})
        messages += [Message("assistant", "x" * each, tool_calls=(call,)), Message("tool", "55", tool_call_id=call.id)]
    return Rollout(
        id=f"{index:08d}",
        env="bench-v0",
        task=Task("((48+7)*21)-530", 625, id=f"train-{index % 500}", split="train", level="3"),
        status=Status.FINISHED,
        stop_reason=StopReason.ANSWERED,
        index=index,
        seed=draw.getrandbits(60),
        messages=tuple(messages),
        segments=tuple(segments),
        reward=float(index % 2),
        rewards={"correct": float(index % 2)},
        turn_rewards=(0.0,) * TURNS,
        metrics={"tool_calls": float(TURNS)},
        timings=Timings(1.0, 2.0, 1.5, 0.4, 0.1),
    )


if __name__ == "__main__":
    main()
