"""Episodes without a model: rollouts/s and CPU of a 3-turn rollout with two tool calls.

    python tests/benchmarks/bench_episodes.py [--episodes 2000] [--concurrent 64] [--json]

A scripted agent plays a calculator task of two operations: two calls, then the answer. What is measured is ours alone:
environment, tools, scoring, the owner thread and the runner.
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial

import anyio

from moonmill import MultiTurnEnv, Rollout, Task, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Taskset
from moonmill.envs.library.calculator import demonstrate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    factory = partial(make, "calculator-v0", levels=[2])
    taskset = Taskset(factory, "train", 0)
    tasks = [taskset.task(i) for i in range(args.episodes)]
    anyio.run(play, factory, tasks[:100], args.concurrent)
    wall, cpu = time.perf_counter(), time.process_time()
    rollouts = anyio.run(play, factory, tasks, args.concurrent)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert all(r.reward == 1.0 and r.turns == 3 for r in rollouts), rollouts[0]
    result = {
        "episodes": args.episodes,
        "concurrent": args.concurrent,
        "rollouts_per_second": args.episodes / wall,
        "wall_ms_per_rollout": 1000 * wall / args.episodes,
        "cpu_ms_per_rollout": 1000 * cpu / args.episodes,
    }
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:22} {value:10.2f}")


async def play(factory: partial[MultiTurnEnv], tasks: Sequence[Task], concurrent: int) -> list[Rollout]:
    """Play every task once, so many at a time."""
    limit = anyio.Semaphore(concurrent)
    runner = EpisodeRunner("calculator-v0", factory, ScriptedAgent(demonstrate))
    rollouts: list[Rollout] = []

    async def one(index: int, task: Task) -> None:
        async with limit:
            rollouts.append(await runner.run(task, id=str(index), seed=index))

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            group.start_soon(one, index, task)
    return rollouts


if __name__ == "__main__":
    main()
