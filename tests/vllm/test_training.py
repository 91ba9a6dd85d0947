"""Runs on vLLM: the starter policy, trained with a LoRA adapter, asynchronously, through the death of the engine."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import anyio
import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from moonmill.config_io import load_config
from moonmill.jsonl import read_jsonl
from moonmill.trainer.engine_host import EngineHost
from moonmill.types import Rollout
from tests.integration.conftest import (
    POLICY,
    assert_accounted_for,
    events,
    start,
    steps,
    wait_for_steps,
    wait_until,
)
from tests.vllm.conftest import START_SECONDS, processes_below

STEPS, MANY_STEPS, SWAPS, SLOTS = 10, 60, 30, 2
DEADLINE = 1200.0
PROBE = [12, 13, 14, 15]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        f"""
env: {{id: calculator-v0}}
model: {{path: {POLICY}, max_length: 256, lora: {{r: 16, alpha: 32}}}}
run_dir: {tmp_path / "run"}
engine: {{type: vllm, max_batch: 16, start_timeout: {START_SECONDS}, vllm: {{kv_cache_gib: 0.25}}}}
sampling: {{max_tokens: 32}}
algorithm: {{preset: sao, critic: {{lr: 2.0e-3, warmup_steps: 2}}}}
async: {{max_staleness: 4, max_concurrent: 32}}
learner: {{batch_rollouts: 16, lr: 1.0e-3}}
train: {{steps: {STEPS}, checkpoint_every: 4}}
"""
    )
    return path


def test_a_run_goes_on_when_vllm_is_killed(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(config, tmp_path) as trainer:
        wait_for_steps(run, 4, trainer, DEADLINE)
        launcher = events(run, "engine_started")[0].data["pid"]
        server = min(processes_below(int(launcher)))
        os.kill(server, signal.SIGKILL)
        assert trainer.wait(DEADLINE) == 0, trainer.communicate()
    assert events(run, "engine_restarted")
    assert_accounted_for(run)
    assert_learned_from_what_was_sampled(run)


def test_a_run_on_two_goes_on_with_one_when_the_other_is_killed(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(config, tmp_path, "--set", "engine.replicas=2") as trainer:
        wait_for_steps(run, 4, trainer, DEADLINE)
        served = [requests_served(str(event.data["url"])) for event in events(run, "engine_started")]
        assert min(served) > 0.3 * sum(served), served
        os.kill(min(processes_below(events(run, "engine_started")[1].data["pid"])), signal.SIGKILL)
        wait_until(lambda: bool(events(run, "engine_died")), "the death to be seen", trainer, DEADLINE)
        wait_for_steps(run, len(steps(run)) + 2, trainer, DEADLINE)
        assert not events(run, "engine_restarted"), "nobody waited for it"
        assert trainer.wait(DEADLINE) == 0, trainer.communicate()
    assert not events(run, "publish_failed")
    assert_accounted_for(run)
    assert_learned_from_what_was_sampled(run)


def test_the_same_config_runs_on_the_embedded_engine(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Its turns take milliseconds, so that few of a hand-over's are in the middle of one.
    more = ("--set", "engine.type=embedded", "--set", f"train.steps={MANY_STEPS}")
    with start(config, tmp_path, *more) as trainer:
        told, _ = trainer.communicate(timeout=DEADLINE)
    assert trainer.returncode == 0, told
    assert_accounted_for(run)
    assert_learned_from_what_was_sampled(run, MANY_STEPS)


def requests_served(url: str) -> float:
    """As vLLM itself counts them; conversations go to the engines by turns, and stay there."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{"))


def assert_learned_from_what_was_sampled(run: Path, versions: int = STEPS) -> None:
    """Every token names the version that sampled it, and there the learner computes the same log-probability."""
    trained = [s for s in steps(run) if s.version]
    assert trained[-1].version == versions
    assert all("ratio_std" in s.metrics and "masked_share" in s.metrics for s in trained)
    differences = [s.metrics["mismatch_max"] for s in trained if "mismatch_max" in s.metrics]
    assert differences
    assert max(differences) < 1e-2
    actions = [action for rollout in read_jsonl(run / "rollouts.jsonl", Rollout) for action in rollout.actions]
    assert all(list(a.versions) == sorted(a.versions) and a.versions[-1] <= versions for a in actions)
    assert any(len(set(a.versions)) > 1 for a in actions), "none was interrupted"
    handed_over = [e.data["probe_difference"] for e in events(run, "version_published") if "probe_difference" in e.data]
    assert len(handed_over) > versions / 2
    assert max(handed_over) < 1e-2


@pytest.fixture
def adapters(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "one", tmp_path / "other"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        lora = LoraConfig(r=16, init_lora_weights=False, target_modules=["q_proj", "v_proj", "down_proj"])
        get_peft_model(AutoModelForCausalLM.from_pretrained(POLICY), lora).save_pretrained(folder)
    return folders


@pytest.mark.anyio
async def test_many_versions_leave_nothing_behind(config: Path, tmp_path: Path, adapters: list[Path]) -> None:
    pid = 0
    loaded: list[int] = []
    usage: list[tuple[int, int]] = []

    def note(kind: str, **data: object) -> None:
        nonlocal pid
        if kind == "engine_started":
            pid = int(str(data["pid"]))
        assert kind not in ("publish_failed", "warning"), data

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    host = EngineHost(load_config(config, [f"engine.port={port}"]), tmp_path, note, PROBE, None)
    async with host.running(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for version in range(1, SWAPS + 1):
            await host.publish(version, adapters[version % 2], changed=True, probe=None)
            models = (await http.get("/v1/models")).json()["data"]
            loaded.append(len(models) - 1)
            usage.append(await anyio.to_thread.run_sync(used_by, [pid, *processes_below(pid)]))
    assert max(loaded) <= SLOTS
    (memory_before, files_before), (memory_after, files_after) = usage[SWAPS // 3], usage[-1]
    assert memory_after < memory_before * 1.02
    assert files_after <= files_before + 2


def used_by(pids: list[int]) -> tuple[int, int]:
    """Bytes of resident memory and open files of these processes."""
    page = int(subprocess.check_output(["getconf", "PAGESIZE"]))
    memory = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return memory * page, sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
