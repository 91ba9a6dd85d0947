"""The launcher around the real vLLM: ready when it answers, adapters, and plain words where it cannot serve."""

import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import EngineControl
from moonmill.agents.engine.vllm_command import VllmOptions, server_argv, server_environ
from moonmill.agents.processes import ServerProcess
from moonmill.errors import ConfigError
from moonmill.types import Completion, Sampling
from tests.agents.conftest import random_model
from tests.vllm.conftest import MAX_LENGTH, RANK, START_SECONDS, gone, launcher_argv, processes_below

pytestmark = pytest.mark.anyio
PROMPT = [12, 13, 14, 15]


@pytest.fixture(scope="module")
def progress() -> list[str]:
    return []


@pytest.fixture(scope="module")
def engine(
    python: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory, progress: list[str]
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("vllm") / "engine.log"
    argv = launcher_argv(python, model_dir, "--max-loras", "2", "--max-lora-rank", str(RANK), "--max-batch", "32")
    argv.append("--can-sleep")
    process = ServerProcess("engine", argv, log_path=log, start_timeout=START_SECONDS, on_progress=progress.append)
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(process):
            below = {*processes_below(process.pid)}
            yield process
        assert process.returncode == 0, "SIGTERM ends it cleanly"
        portal.call(gone, below)


def sample(engine: ServerProcess, model: str) -> dict[str, object]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0.7, "seed": 1, "logprobs": 0}
    answer = httpx.post(f"{engine.base_url}/v1/completions", json=body | {"return_token_ids": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def test_it_says_how_far_it_is_and_that_it_is_ready(engine: ServerProcess, progress: list[str]) -> None:
    assert engine.ready | {"port": 0} == {
        "host": "127.0.0.1",
        "port": 0,
        "pid": engine.pid,
        "model": "policy-v0",
        "max_length": MAX_LENGTH,
    }
    said = "\n".join(progress)
    for phase in ("importing vLLM 0.32", "starting its engine process", "loading weights", "answering a first request"):
        assert phase in said
    assert '{"progress"' not in engine.log_path.read_text()


def test_it_answers_with_tokens_and_logprobs(engine: ServerProcess) -> None:
    choice = sample(engine, "policy-v0")
    logprobs = choice["logprobs"]["token_logprobs"]  # type: ignore[index]
    assert len(choice["token_ids"]) == len(logprobs) == 4  # type: ignore[arg-type]
    assert all(math.isfinite(value) and value <= 0 for value in logprobs)


async def test_more_prompts_than_a_step_takes_are_answered(engine: ServerProcess) -> None:
    answered: list[int] = []

    async def ask(http: httpx.AsyncClient, seed: int) -> None:
        prompt = [12 + (seed * at) % 90 for at in range(1, MAX_LENGTH - 8)]
        body = {"model": "policy-v0", "prompt": prompt, "max_tokens": 4, "seed": seed}
        answered.append((await http.post("/v1/completions", json=body)).status_code)

    async with httpx.AsyncClient(base_url=engine.base_url, timeout=120) as http, anyio.create_task_group() as group:
        for seed in range(40):  # 7,000 tokens, and a step computes 2,048
            group.start_soon(ask, http, seed)
    assert answered == [200] * 40


def test_adapters_are_loaded_sampled_from_and_unloaded(engine: ServerProcess, adapters: list[Path]) -> None:
    seen = [sample(engine, "policy-v0")["logprobs"]]
    for version, folder in enumerate(adapters, 1):
        name = f"policy-v{version}"
        body = {"lora_name": name, "lora_path": str(folder)}
        httpx.post(f"{engine.base_url}/v1/load_lora_adapter", json=body, timeout=60).raise_for_status()
        seen.append(sample(engine, name)["logprobs"])
        if version >= 2:  # two slots
            body = {"lora_name": f"policy-v{version - 1}"}
            httpx.post(f"{engine.base_url}/v1/unload_lora_adapter", json=body, timeout=60).raise_for_status()
    assert len({str(logprobs) for logprobs in seen}) == 4, "each answers otherwise, from the same prompt"
    assert sample(engine, "policy-v0")["logprobs"] == seen[0], "the base is what it was"
    models = httpx.get(f"{engine.base_url}/v1/models").json()["data"]
    assert [m["id"] for m in models] == ["policy-v0", "policy-v3"]


@pytest.fixture
def narrow_heads(model_dir: Path, tmp_path: Path) -> Path:
    """A model with attention heads of 16 dimensions, which vLLM's CPU attention does not have."""
    model = random_model()
    model.config.head_dim = 16
    type(model)(model.config).save_pretrained(tmp_path / "model")
    for file in model_dir.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "model")
    return tmp_path / "model"


async def test_it_sleeps_and_wakes_with_its_adapters(engine: ServerProcess, adapters: list[Path]) -> None:
    """On a CPU it frees nothing, but speaks as it does on a GPU."""
    async with (
        EngineControl(engine.base_url) as control,
        InferenceClient(engine.base_url) as client,
        httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http,
    ):
        await control.load_version(3, adapters[0])
        before = await control.probe(PROMPT, 3)
        await control.sleep()
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert await control.ailment(5) == ""
        done: list[Completion] = []

        async def complete() -> None:
            done.append(await client.complete(PROMPT, Sampling(max_tokens=4), seed=0, stop_token_ids=()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete)
            await anyio.sleep(2)
            assert not done, "a request waits"
            await control.wake_up()
        assert len(done[0].tokens) == 4
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert await control.probe(PROMPT, 3) == pytest.approx(before, abs=1e-4)
        await control.unload_version(3)


async def test_vllm_refuses_the_mode_itself_on_a_cpu(python: str, model_dir: Path, tmp_path: Path) -> None:
    options = VllmOptions(python=python, model=str(model_dir), served_name="m", host="127.0.0.1", port=0)
    argv, environ = [*server_argv(options), "--enable-sleep-mode"], server_environ(options, os.environ, os.getpid())
    with anyio.fail_after(START_SECONDS):
        ended = await anyio.run_process(argv, check=False, stderr=subprocess.STDOUT, env=environ)
    assert ended.returncode
    assert b"Sleep mode is not supported on current platform" in ended.stdout


async def test_a_model_that_fails_late_is_told(python: str, narrow_heads: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^the engine refused to start: .* attention heads have 16 dimensions"):
        await start(launcher_argv(python, narrow_heads), tmp_path)


async def test_what_is_wrong_from_the_start_is_told(python: str, model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.max_length: 5000 is more than the 1024 positions that the model"):
        await start(launcher_argv(python, model_dir, "--max-length", "5000"), tmp_path)


async def start(argv: list[str], tmp_path: Path) -> None:
    async with ServerProcess("engine", argv, log_path=tmp_path / "log", start_timeout=START_SECONDS):
        raise AssertionError("it started")
