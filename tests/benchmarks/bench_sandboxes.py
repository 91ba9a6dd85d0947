"""Sandboxes: from nothing to the first result, and to each further one, beside what one would take instead.

    python tests/benchmarks/bench_sandboxes.py [--image IMAGE] [--inspect PYTHON] [--rounds 30] [--json]

Measured is `true`, so that what is left is ours: `first` from opening a sandbox to its result, `later` in one that is
open, `ready` from asking a pool for one that stands ready to holding it, `sixteen` until sixteen opened at once have
answered. Peers, in the same run: a plain subprocess, bubblewrap for each command, `docker exec` on the command line and
through docker-py (with --image), and inspect-ai's sandbox `local` (with --inspect, a Python that has it installed).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial

import anyio

from moonmill.sandboxes import SandboxProvider, SandboxSpec
from moonmill.sandboxes.local import LocalProvider
from moonmill.sandboxes.pool import SandboxPool

INSPECT = """
import asyncio, sys, time
from inspect_ai.util._concurrency import init_concurrency
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

async def main(rounds):
    init_concurrency()
    first, later = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        sandbox = LocalSandboxEnvironment()
        await sandbox.exec(["true"])
        first.append(time.perf_counter() - begin)
        for _ in range(10):
            begin = time.perf_counter()
            await sandbox.exec(["true"])
            later.append(time.perf_counter() - begin)
        sandbox.directory.cleanup()
    print(sorted(first)[rounds // 2] * 1000, sorted(later)[5 * rounds] * 1000)

asyncio.run(main(int(sys.argv[1])))
"""
LATER = 10
"""Commands in each sandbox after the first."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", help="measure the docker provider too, with this image")
    parser.add_argument("--inspect", metavar="PYTHON", help="a Python with inspect-ai")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    bwrap = shutil.which("bwrap")
    assert bwrap, "bubblewrap is not installed"
    result = {
        "subprocess": {"later": timed(partial(run, ["true"]), args.rounds)},
        "bwrap": {"later": timed(partial(run, [bwrap, "--unshare-all", "--ro-bind", "/", "/", "true"]), args.rounds)},
        "local": anyio.run(measure, LocalProvider, SandboxSpec(), args.rounds),
    }
    if args.image:
        from moonmill.sandboxes.docker_provider import DockerProvider

        rounds = max(3, args.rounds // 6)
        result["docker"] = anyio.run(measure, DockerProvider, SandboxSpec(image=args.image), rounds)
        result |= docker_peers(args.image, args.rounds)
    if args.inspect:
        told = subprocess.run(
            [args.inspect, "-c", INSPECT, str(args.rounds)], capture_output=True, text=True, check=True
        ).stdout
        result["inspect-ai local"] = dict(zip(("first", "later"), map(float, told.split()), strict=True))
    if args.json:
        print(json.dumps(result))
        return
    print(f"{'ms, medians':20} {'first':>8} {'later':>8} {'ready':>8} {'sixteen':>8}")
    for name, values in result.items():
        cells = [f"{values[key]:8.2f}" if key in values else " " * 8 for key in ("first", "later", "ready", "sixteen")]
        print(f"{name:20} {' '.join(cells)}")


async def measure(make: Callable[[], SandboxProvider], spec: SandboxSpec, rounds: int) -> dict[str, float]:
    """Of a provider, in milliseconds."""
    first, later, ready, sixteen = list[float](), list[float](), list[float](), list[float]()
    async with make() as provider:
        for _ in range(rounds):
            begin = time.perf_counter()
            async with provider.open(spec) as sandbox:
                await sandbox.exec(["true"])
                first.append(time.perf_counter() - begin)
                for _ in range(LATER):
                    begin = time.perf_counter()
                    await sandbox.exec(["true"])
                    later.append(time.perf_counter() - begin)
        for _ in range(3):
            begin = time.perf_counter()
            async with anyio.create_task_group() as group:
                for _ in range(16):
                    group.start_soon(one, provider, spec)
            sixteen.append(time.perf_counter() - begin)
    async with SandboxPool(make(), prewarm=2) as pool:
        async with pool.open(spec):
            pass
        for _ in range(rounds):
            while pool.metrics().ready < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            begin = time.perf_counter()
            async with pool.open(spec):
                ready.append(time.perf_counter() - begin)
    values = {"first": first, "later": later, "ready": ready, "sixteen": sixteen}
    return {name: 1000 * statistics.median(seconds) for name, seconds in values.items()}


async def one(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Open one, and have it answer."""
    async with provider.open(spec) as sandbox:
        await sandbox.exec(["true"])


def docker_peers(image: str, rounds: int) -> dict[str, dict[str, float]]:
    """A command in a container that runs, by the command line and by docker-py."""
    import docker

    client = docker.from_env()
    container = client.containers.run(image, ["sleep", "600"], detach=True, network_mode="none", init=True)
    try:
        by_line = timed(partial(run, ["docker", "exec", container.id, "true"]), rounds)
        by_package = timed(lambda: container.exec_run(["true"]), rounds)
    finally:
        container.remove(force=True)
    return {"docker exec": {"later": by_line}, "docker-py exec_run": {"later": by_package}}


def run(argv: list[str]) -> None:
    """Run a command as anybody would."""
    subprocess.run(argv, check=True, capture_output=True)


def timed(call: Callable[[], object], rounds: int) -> float:
    """Milliseconds, the median."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    main()
