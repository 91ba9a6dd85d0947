"""Stragglers: wall clock to the same number of trained rollouts, single rollouts in async against groups in sync.

    python tests/benchmarks/bench_stragglers.py [--rollouts 1280] [--curves] [--json]

The starter policy plays episodes of 3 to 6 turns whose tool takes log-normal time (p50 0.2 s, p99 5 s), 64 in flight.
`async` is SAO, `sync` is GRPO in groups of 8; a batch is 64 rollouts for both. An episode has the same latencies in
both, and both are whole runs of the trainer; the wall clock is from the first episode to the last committed step.
Beside them, in the same run: `generation` is 64 episodes in flight without a learner, until as many have finished, and
`learning` the async run's steps one after another without an engine. async can be no faster than the slower of the two.

With --curves also shorter runs of both over the weight of the tail and over the episodes in flight.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path

import anyio
from msgspec import Struct
from transformers.utils import logging

from moonmill import make
from moonmill.agents.open_files import allow_many_files
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.rendering import load_renderer
from moonmill.agents.runner import EpisodeRunner
from moonmill.config import Config
from moonmill.config_io import make_config
from moonmill.envs import TaskFeed
from moonmill.jsonl import read_jsonl
from moonmill.reporting import EvalResult, StepLine
from moonmill.seeding import derive_seed
from moonmill.trainer.compared import figures_of
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.learner import Learner, make_deterministic
from moonmill.trainer.records import StepRecord
from moonmill.trainer.run import train
from moonmill.types import Rollout

HERE = Path(__file__).parent
POLICY = HERE.parents[1] / "examples" / "calculator" / "policy"
BATCH, GROUP = 64, 8
P50, P99, IN_FLIGHT = 0.2, 5.0, 64
TAILS = (0.5, 1.0, 2.0, 5.0, 10.0)
FLIGHTS = (16, 32, 64, 128)
CURVE_ROLLOUTS = 640
SAO = {"preset": "sao", "critic": {"lr": 2e-3, "warmup_steps": 0}}
GRPO = {"preset": "grpo", "advantage": {"type": "group_zscore", "group_size": GROUP}}


class Outcome(Struct):
    """What a run came to."""

    seconds: float
    stale: int
    """Rollouts that were dropped as too old."""
    staleness: float
    waits: dict[str, float]


class Quiet:
    """A reporter that tells nobody."""

    def phase(self, text: str) -> None:
        pass

    def step(self, line: StepLine) -> None:
        pass

    def eval(self, result: EvalResult) -> None:
        pass

    def warn(self, text: str) -> None:
        print(f"warning: {text}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1280)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable_progress_bar()
    allow_many_files()
    result: dict[str, object] = headline(args.rollouts // BATCH * BATCH, quiet=args.json)
    if args.curves:
        tails = {p99: pair(CURVE_ROLLOUTS, p99=p99) for p99 in TAILS}
        flights = {flight: pair(CURVE_ROLLOUTS, in_flight=flight) for flight in FLIGHTS}
        result |= {"tails": tails, "in_flight": flights}
        if not args.json:
            table("p99 (s)", tails)
            table("in flight", flights)
    if args.json:
        print(json.dumps(result))


def headline(rollouts: int, *, quiet: bool) -> dict[str, object]:
    """The comparison itself, and what bounds it."""
    with tempfile.TemporaryDirectory() as folder:
        config = configured(Path(folder, "async"), rollouts, "async")
        sync = run(configured(Path(folder, "sync"), rollouts, "sync"))
        asynchronous = run(config)
        generation = anyio.run(generate, config, rollouts)
        learning = learn(config)
    bound = max(generation, learning)
    speedup, over = sync.seconds / asynchronous.seconds, asynchronous.seconds / bound
    if not quiet:
        print(f"{rollouts} trained rollouts, {IN_FLIGHT} in flight, batches of {BATCH}; seconds")
        for name, seconds in {"sync": sync.seconds, "async": asynchronous.seconds}.items():
            print(f"{name:12} {seconds:8.1f} {rollouts / seconds:8.1f} rollouts/s")
        print(f"{'generation':12} {generation:8.1f}\n{'learning':12} {learning:8.1f}")
        print(f"async is {speedup:.2f}× as fast as sync, and takes {over:.2f} of max(generation, learning)")
        print(f"async: mean staleness {asynchronous.staleness:.1f}, {asynchronous.stale} dropped as stale")
        for name, of in {"sync": sync, "async": asynchronous}.items():
            print(f"{name} waits: " + ", ".join(f"{cause} {s / of.seconds:.0%}" for cause, s in of.waits.items()))
    return {
        "rollouts": rollouts,
        "sync": sync.seconds,
        "async": asynchronous.seconds,
        "generation": generation,
        "learning": learning,
        "speedup": speedup,
        "over_bound": over,
        "stale": asynchronous.stale,
    }


def pair(rollouts: int, *, p99: float = P99, in_flight: int = IN_FLIGHT) -> tuple[float, float]:
    """Seconds of sync and of async."""
    with tempfile.TemporaryDirectory() as folder:
        sync, asynchronous = (
            run(configured(Path(folder, mode), rollouts, mode, p99=p99, in_flight=in_flight)).seconds
            for mode in ("sync", "async")
        )
    return sync, asynchronous


def table(title: str, of: dict[float, tuple[float, float]] | dict[int, tuple[float, float]]) -> None:
    """Print a curve."""
    print(f"\n{title:>10} {'sync':>8} {'async':>8}   ({CURVE_ROLLOUTS} rollouts)")
    for value, (sync, asynchronous) in of.items():
        print(f"{value:>10} {sync:8.1f} {asynchronous:8.1f}   {sync / asynchronous:.2f}×")


def configured(run_dir: Path, rollouts: int, mode: str, *, p99: float = P99, in_flight: int = IN_FLIGHT) -> Config:
    """A run of one kind."""
    data = {
        "name": run_dir.name,
        "run_dir": str(run_dir),
        "env": {"id": f"{HERE / 'stragglers.py'}:Stragglers", "args": {"p50": P50, "p99": p99}},
        "model": {"path": str(POLICY), "max_length": 512},
        "engine": {"max_batch": max(FLIGHTS)},
        "sampling": {"max_tokens": 32},
        "algorithm": SAO if mode == "async" else GRPO,
        "async": {"mode": mode, "max_staleness": 8, "max_concurrent": in_flight},
        "learner": {"batch_rollouts": BATCH, "lr": 1e-5},
        "train": {"steps": rollouts // BATCH, "checkpoint_every": 10_000},
    }
    return make_config(data, source="the benchmark", folder=HERE)


def run(config: Config) -> Outcome:
    """Train, and read what the run's logs say."""
    train(config, resume=False, reporter=Quiet())
    path = Path(config.run_dir)
    told = figures_of("", 0, path)
    drops = Counter(drop.reason for step in read_jsonl(path / "steps.jsonl", StepRecord) for drop in step.dropped)
    return Outcome(told.figures["wall clock"], drops["stale"], told.figures["staleness"], told.waits)


async def generate(config: Config, rollouts: int) -> float:
    """Seconds until so many episodes have ended, with always as many in flight, and nothing else."""
    renderer = load_renderer(config.model.path)
    factory = partial(make, config.env.id, **config.env.args)
    with tempfile.TemporaryDirectory() as folder:
        host = EngineHost(config, Path(folder), lambda kind, **data: None, [12], None)
        async with host.running(), TaskFeed(factory, "train", 0) as tasks:
            agent = PolicyAgent(host.client, renderer, config.sampling, config.model.max_length)
            runner = EpisodeRunner(config.env.id, factory, agent)
            numbers, ended = count(), 0
            begin = time.perf_counter()
            async with anyio.create_task_group() as group:

                async def slot() -> None:
                    nonlocal ended
                    while ended < rollouts:
                        index = next(numbers)
                        task = await tasks.task(index)
                        seed = derive_seed(config.train.seed, "rollout", index)
                        await runner.run(task, id=str(index), seed=seed, index=index)
                        ended += 1
                    group.cancel_scope.cancel()

                for _ in range(config.async_.max_concurrent):
                    group.start_soon(slot)
            return time.perf_counter() - begin


def learn(config: Config) -> float:
    """Seconds of a run's steps without anything beside them, its weights written after each."""
    path = Path(config.run_dir)
    rollouts = {r.id: r for r in read_jsonl(path / "rollouts.jsonl", Rollout)}
    steps = [s for s in read_jsonl(path / "steps.jsonl", StepRecord) if s.step is not None]
    make_deterministic(config)
    learner = Learner(config)
    weights = path / "alone"
    weights.mkdir()
    begin = time.perf_counter()
    for step in steps:
        learner.step([rollouts[name] for name in step.consumed])
        learner.export(weights / f"v{step.version}")
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
