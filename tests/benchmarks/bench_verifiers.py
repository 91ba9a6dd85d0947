"""Environments of verifiers without a model: rollouts/s of one sum with a calculator, a call and an answer.

    moonmill envs add verifiers:moonmill-sums --from tests/verifiers/package
    python tests/benchmarks/bench_verifiers.py [--episodes 200] [--concurrent 32] [--rounds 3]
        [--null EPISODES] [--gem PYTHON] [--json]

In one run, in turns: a native environment of ours; verifiers' through the adapter, with the recording proxy; verifiers
alone, with a harness and tools in its process, as the adapter has them. Once: with `--null`, verifiers alone as it is
used by default, with a program and a tool server for each episode (needs `uv`, and the package index the first time);
with `--gem`, GEM, in a Python environment that has it, and beside it ours as it does it, stepped by a bare loop.
"""

import argparse
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from moonmill import Message, MultiTurnEnv, Rollout, Task, Taskset, ToolCall, make
from moonmill.agents.agent import Session, Turn
from moonmill.agents.runner import EpisodeRunner
from moonmill.envs import ToolSpec
from moonmill.envs.adapters.verifiers.added import find
from moonmill.envs.adapters.verifiers.worker import ProcessWorker
from moonmill.installing import without_ours

HERE = Path(__file__).parent
INSIDE = HERE.parents[1] / "envs" / "adapters" / "verifiers" / "inside"
NATIVE, ADAPTED = "calculator-v0", "verifiers:moonmill-sums"
STEPPED = 2000
"""Episodes that a bare loop steps."""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many")
    parser.add_argument("--null", type=int, default=0, metavar="EPISODES")
    parser.add_argument("--gem", metavar="PYTHON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    added = find("moonmill-sums")
    if added is None:
        raise SystemExit(f"first: moonmill envs add {ADAPTED} --from tests/verifiers/package")
    native, adapted = partial(make, NATIVE, levels=[1]), partial(make, ADAPTED, taskset={"size": 2 * args.episodes})
    kinds: dict[str, Callable[[], dict[str, float]]] = {
        "native": partial(here, native, args.episodes, args.concurrent),
        "adapter": partial(here, adapted, args.episodes, args.concurrent),
        "verifiers, in its process": partial(alone, added.python, "moonmill_chat", args.episodes, args.concurrent),
    }
    rows = {name: kind() for name, kind in kinds.items()}
    for _ in range(args.rounds - 1):
        for name, kind in kinds.items():
            rows[name] = max(rows[name], kind(), key=lambda row: row["per_second"])
    if args.null:
        rows["verifiers, null harness"] = alone(added.python, "null", args.null, args.concurrent)
    if args.gem:
        rows["native, bare steps"] = stepped(STEPPED)
        rows["GEM, bare steps"] = run(args.gem, "gem_alone.py", str(STEPPED), episodes=STEPPED)
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{'':26} {'rollouts/s':>10} {'CPU ms':>8} {'of native':>9}")
    for name, row in rows.items():
        share = row["per_second"] / rows["native"]["per_second"]
        print(f"{name:26} {row['per_second']:10.1f} {row['cpu_ms']:8.1f} {share:9.3f}")


def here(factory: partial[MultiTurnEnv], episodes: int, concurrent: int) -> dict[str, float]:
    """Episodes played by Moonmill, with the CPU of the process that plays them where there is one."""
    taskset = Taskset(factory, "train", 0)
    tasks = [taskset.task(i) for i in range(episodes)]
    anyio.run(play, factory, tasks[:concurrent], concurrent)
    worker = getattr(factory(), "_worker", None)
    pid = worker.pid if isinstance(worker, ProcessWorker) else None
    wall, cpu = time.perf_counter(), seconds(pid)
    rollouts = anyio.run(play, factory, tasks, concurrent)
    wall, cpu = time.perf_counter() - wall, seconds(pid) - cpu
    assert all(r.reward == 1.0 for r in rollouts), rollouts[0]
    return result(episodes, wall, cpu)


def alone(python: str, harness: str, episodes: int, concurrent: int) -> dict[str, float]:
    """Episodes played by verifiers."""
    rest = (str(INSIDE), harness, str(episodes), str(concurrent))
    return run(python, "verifiers_alone.py", *rest, episodes=episodes)


def run(python: str, script: str, *arguments: str, episodes: int) -> dict[str, float]:
    """Episodes played by a script beside this one, in another Python environment."""
    command = [python, "-P", str(HERE / script), *arguments]
    done = subprocess.run(command, env=without_ours(os.environ), stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return result(episodes, told["wall"], told["cpu"])


def stepped(episodes: int) -> dict[str, float]:
    """Episodes of the native environment, one after the other in a bare loop, of which nothing is kept."""
    env = make(NATIVE, levels=[1])
    wall, cpu = time.perf_counter(), seconds(None)
    for seed in range(episodes):
        messages, _ = env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            messages, _, terminated, truncated, _ = env.step(calculating(messages))
    return result(episodes, time.perf_counter() - wall, seconds(None) - cpu)


def result(episodes: int, wall: float, cpu: float) -> dict[str, float]:
    return {"per_second": episodes / wall, "cpu_ms": 1000 * cpu / episodes}


def seconds(pid: int | None) -> float:
    """Of CPU, in this process and another."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    other = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] if pid else []
    return used.ru_utime + used.ru_stime + sum(map(int, other)) / TICKS


async def play(factory: partial[MultiTurnEnv], tasks: Sequence[Task], concurrent: int) -> list[Rollout]:
    """Play every task once, so many at a time."""
    limit = anyio.Semaphore(concurrent)
    runner = EpisodeRunner(factory.args[0], factory, Calculating())
    rollouts: list[Rollout] = []

    async def one(index: int, task: Task) -> None:
        async with limit:
            rollouts.append(await runner.run(task, id=str(index), seed=index))

    async with anyio.create_task_group() as group:
        for index, task in enumerate(tasks):
            group.start_soon(one, index, task)
    return rollouts


class Calculating:
    """A model that answers at once, on the event loop, as the one that verifiers alone has."""

    def session(self, tools: tuple[ToolSpec, ...], seed: int) -> Session:
        return self

    async def act(self, new_messages: Sequence[Message]) -> Turn:
        return Turn(calculating(new_messages))


def calculating(messages: Sequence[Message]) -> Message:
    """Calls the calculator with the prompt, and answers with what it says."""
    last = messages[-1]
    if last.role == "tool":
        return Message("assistant", last.content)
    return Message("assistant", tool_calls=(ToolCall("call", "calculate", {"expression": last.content}),))


if __name__ == "__main__":
    main()
