"""Hand-over: from the learner's last optimizer step to the first token sampled under the new version, and its parts.

    python tests/benchmarks/bench_handover.py [--engine embedded] [--full] [--versions 30] [--running 32] [--json]

The starter policy with a LoRA adapter (or, with --full, all weights), so many completions always in flight, and new
weights every second. `write` is the learner's export, `load` and `probe` the engine's taking the version over, `switch`
the client's interrupting and sending again, `first token` what is left until one arrives. At the end, what the client
costs beside a bare HTTP call of httpx with the same body: the two take turns, one token each.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import httpx
import torch
from anyio.abc import TaskGroup
from transformers.utils import logging

from moonmill.agents.client import InferenceClient
from moonmill.agents.pending import Run
from moonmill.config import Config, EngineConfig, EnvConfig, LoraConfig, ModelConfig
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.learner import Learner, make_deterministic
from moonmill.types import Sampling

POLICY = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
PROMPT = list(range(12, 36))
PARTS = ("write", "load", "probe", "switch", "first token", "all")
LOOK_SECONDS = 0.0005
CALLS = 300
JSON = {"Content-Type": "application/json"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--full", action="store_true", help="hand over all weights (embedded engine)")
    parser.add_argument("--versions", type=int, default=30)
    parser.add_argument("--running", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable_progress_bar()
    config = Config(
        env=EnvConfig("calculator-v0"),
        model=ModelConfig(str(POLICY), max_length=512, lora=None if args.full else LoraConfig()),
        engine=EngineConfig(type=args.engine, start_timeout=600),
    )
    with tempfile.TemporaryDirectory() as folder:
        seconds, overhead = anyio.run(measure, config, Path(folder), args.versions, args.running)
    figures = {part: (quantile(of, 0.5), quantile(of, 0.95)) for part, of in seconds.items()}
    if args.json:
        print(json.dumps({"milliseconds": figures, "client_overhead_milliseconds": overhead}))
        return
    print(f"{args.engine}, {args.versions} versions, {args.running} completions in flight; ms")
    print(f"{'':12} {'p50':>7} {'p95':>7}")
    for part, (middle, high) in figures.items():
        print(f"{part:12} {middle:7.1f} {high:7.1f}")
    print(f"a request through the client costs {overhead:.2f} ms more than a bare call (median of {CALLS})")


def quantile(seconds: list[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * sorted(seconds)[round(share * (len(seconds) - 1))]


async def measure(config: Config, folder: Path, versions: int, running: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of each part for each version, and the client's overhead in milliseconds."""
    make_deterministic(config)
    learner = Learner(config)
    told: dict[str, float] = {}

    def note(kind: str, **data: object) -> None:
        if kind == "version_published":
            told.update({k: float(str(v)) for k, v in data.items() if k.startswith("seconds")})

    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    host = EngineHost(config, folder, note, PROMPT, None)
    async with host.running():
        await hand_over(host, learner, told, seconds, folder, versions, running)
        overhead = await measure_overhead(host.client)
    return seconds, overhead


async def hand_over(
    host: EngineHost,
    learner: Learner,
    told: dict[str, float],
    seconds: dict[str, list[float]],
    folder: Path,
    versions: int,
    running: int,
) -> None:
    """Publish one version after the other while completions go on."""
    async with anyio.create_task_group() as group:
        keep_busy(group, host.client, running)
        for version in range(1, versions + 1):
            await anyio.sleep(1)
            change(learner)
            begin = time.perf_counter()
            learner.export(weights := folder / f"v{version}")
            written = time.perf_counter()
            async with anyio.create_task_group() as publishing:
                publishing.start_soon(publish, host, version, weights)
                await first_token(host.client, version)
                done = time.perf_counter()
            parts = [written - begin, *(told[f"seconds_{part}"] for part in ("load", "probe", "switch"))]
            parts += [max(0.0, done - begin - sum(parts)), done - begin]
            for part, of in zip(PARTS, parts, strict=True):
                seconds[part].append(of)
        group.cancel_scope.cancel()


async def measure_overhead(client: InferenceClient) -> float:
    """How much longer a request of one token takes through the client than by httpx alone, in milliseconds."""
    sampling, url = Sampling(max_tokens=1), client._router.routes[0].url
    ours, bare = [], []
    async with httpx.AsyncClient(trust_env=False) as http:
        for seed in range(CALLS + 20):
            run = Run(PROMPT, sampling, seed, frozenset(), "")
            run.version = client.version
            begin = time.perf_counter()
            answer = await http.post(f"{url}/v1/completions", content=run.body(), headers=JSON)
            answer.raise_for_status()
            between = time.perf_counter()
            await client.complete(PROMPT, sampling, seed=seed, stop_token_ids=())
            bare.append(between - begin)
            ours.append(time.perf_counter() - between)
    return 1000 * (statistics.median(ours[20:]) - statistics.median(bare[20:]))


async def publish(host: EngineHost, version: int, weights: Path) -> None:
    await host.publish(version, weights, changed=True, probe=None)


def keep_busy(group: TaskGroup, client: InferenceClient, running: int) -> None:
    """Have so many completions in flight, always."""
    seeds = itertools.count()

    async def one() -> None:
        while True:
            await client.complete(PROMPT, Sampling(max_tokens=256), seed=next(seeds), stop_token_ids=())

    for _ in range(running):
        group.start_soon(one)


def change(learner: Learner) -> None:
    """Other weights, as after an optimizer step."""
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            if parameter.requires_grad:
                parameter += 1e-3 * torch.randn_like(parameter)


async def first_token(client: InferenceClient, version: int) -> None:
    """Wait until a token of this version has arrived."""
    runs: set[Run] = client._running
    while not any(run.versions and run.versions[-1] == version for run in runs):  # noqa: ASYNC110
        await anyio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
