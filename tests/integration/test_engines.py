"""Runs on two engines: started by the run, one of them killed; and attached by URL."""

import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
from anyio.from_thread import start_blocking_portal
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from moonmill.agents.processes import ServerProcess
from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.trainer.engine_commands import engine_argv
from moonmill.types import Rollout
from tests.integration.conftest import Cli, as_json, assert_accounted_for, assert_load_is_spread, events, steps
from tests.integration.test_crash import DEADLINE, start, wait_for_steps, wait_until


def test_a_run_on_two_engines_goes_on_when_one_is_killed(config: Path, tmp_path: Path, moonmill: Cli) -> None:
    run = tmp_path / "run"
    with start(config, tmp_path, "--set", "engine.replicas=2") as trainer:
        wait_until(lambda: len(events(run, "engine_started")) == 2, "both engines to start", trainer)
        wait_for_steps(run, 3, trainer)
        victim = events(run, "engine_started")[1]
        os.kill(int(victim.data["pid"]), signal.SIGKILL)
        assert trainer.wait(DEADLINE) == 0, trainer.communicate()
    assert [e.data["engine"] for e in events(run, "engine_died")] == [victim.data["engine"]]
    assert not events(run, "publish_failed"), "the other one took every version"
    assert steps(run)[-1].version == 10
    assert_accounted_for(run)
    assert_versions_in_order(run)
    assert {p.name for p in (run / "logs").iterdir()} >= {"engine-1.log", "engine-2.log"}
    summary = as_json(moonmill("inspect", run, "--json"))
    assert isinstance(summary, dict)
    assert summary["probe_difference_max"] < 1e-4
    assert not summary["failed"]


def test_a_run_on_attached_engines_uses_both_and_leaves_them_alone(config: Path, tmp_path: Path, moonmill: Cli) -> None:
    argv = engine_argv(load_config(config))
    with start_blocking_portal() as portal, ExitStack() as stack:
        engines = [
            stack.enter_context(
                portal.wrap_async_context_manager(
                    ServerProcess(name, argv, log_path=tmp_path / f"{name}.log", start_timeout=240)
                )
            )
            for name in ("one", "two")
        ]
        urls = f"engine.urls=[{', '.join(e.base_url for e in engines)}]"
        done = moonmill("train", config, "--set", urls, "--set", "train.steps=4")
        assert done.returncode == 0, done.stderr
        assert all(e.alive for e in engines)
        served = [requests_of(e) for e in engines]
    run = tmp_path / "run"
    assert min(served) > 0.3 * sum(served)
    assert_load_is_spread(run)
    assert {e.data["url"] for e in events(run, "engine_started")} == {e.base_url for e in engines}
    assert events(run, "version_published")[-1].data["version"] == 4
    assert_accounted_for(run)
    assert_versions_in_order(run)


def test_a_run_on_an_attached_engine_with_another_model_ends_before_it_trains(
    config: Path, tmp_path: Path, moonmill: Cli
) -> None:
    ours = load_config(config)
    other = shutil.copytree(ours.model.path, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: 0.9 * w for name, w in weights.items()}, other / "model.safetensors", metadata={"format": "pt"})
    argv = engine_argv(replace(ours, model=replace(ours.model, path=str(other))))
    process = ServerProcess("other", argv, log_path=tmp_path / "other.log", start_timeout=240)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(process):
        done = moonmill("train", config, "--set", f"engine.urls=[{process.base_url}]", "--set", "eval.tasks=4")
        assert process.alive
    assert done.returncode == 1
    assert f"{process.base_url} does not sample from the model that is trained, {ours.model.path}: " in done.stderr
    assert "Either it serves another model" in done.stderr
    assert "Traceback" not in done.stderr
    assert "evaluating" not in done.stderr, "it would be the other model's figures"
    assert not steps(tmp_path / "run")
    assert as_json(moonmill("inspect", tmp_path / "run", "--json"))["status"] == "failed"


def assert_versions_in_order(run: Path) -> None:
    newest = 0
    for rollout in read_jsonl(run / "rollouts.jsonl", Rollout):
        versions = [v for action in rollout.actions for v in action.versions]
        assert versions == sorted(versions)
        newest = max(newest, *versions)
    assert newest > 0


def requests_of(engine: ServerProcess) -> int:
    lines = httpx.get(f"{engine.base_url}/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("moonmill_requests_total"))
