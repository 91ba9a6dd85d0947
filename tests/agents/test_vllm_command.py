"""From our options to vLLM's command line and environment."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from moonmill.agents.engine.vllm_boot import PARENT_VARIABLE
from moonmill.agents.engine.vllm_command import RANKS, VllmOptions, check_args, rank_for, server_argv, server_environ
from moonmill.errors import ConfigError

OPTIONS = VllmOptions(python="/venv/bin/python", model="/models/m", served_name="policy-v0", host="127.0.0.1", port=81)


def value_of(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_the_interpreter_of_the_environment_runs_our_file_with_no_folder_of_ours_in_its_path() -> None:
    python, flag, file, device, *_ = server_argv(OPTIONS)
    assert (python, flag, Path(file).name, device) == ("/venv/bin/python", "-P", "vllm_boot.py", "cpu")


def test_what_the_trainer_relies_on_is_always_set() -> None:
    for device in ("cpu", "cuda:1"):
        argv = server_argv(replace(OPTIONS, device=device, max_length=256, max_batch=8))
        assert value_of(argv, "--logprobs-mode") == "processed_logprobs"
        assert value_of(argv, "--generation-config") == "vllm"
        assert "--enable-prefix-caching" in argv
        assert value_of(argv, "--served-model-name") == "policy-v0"
        assert value_of(argv, "--max-model-len") == "256"
        assert value_of(argv, "--max-num-seqs") == "8"


def test_a_cpu_gets_its_memory_in_bytes_and_a_gpu_a_share() -> None:
    cpu = server_argv(replace(OPTIONS, kv_cache_gib=0.5))
    assert value_of(cpu, "--kv-cache-memory-bytes") == str(1 << 29)
    assert "--enforce-eager" in cpu
    gpu = server_argv(replace(OPTIONS, device="cuda", gpu_memory=0.45))
    assert value_of(gpu, "--gpu-memory-utilization") == "0.45"
    assert "--enforce-eager" not in gpu
    assert "--kv-cache-memory-bytes" not in gpu


def test_what_can_sleep_has_the_requests_for_it_and_on_a_gpu_the_mode() -> None:
    for device, able in (("cuda", True), ("cuda:1", True), ("cpu", False)):
        options = replace(OPTIONS, device=device, can_sleep=True)
        # On a CPU vLLM refuses the option, and knows the requests.
        assert ("--enable-sleep-mode" in server_argv(options)) is able
        assert server_environ(options, {}, 7)["VLLM_SERVER_DEV_MODE"] == "1"
        awake = replace(options, can_sleep=False)
        assert "--enable-sleep-mode" not in server_argv(awake)
        assert "VLLM_SERVER_DEV_MODE" not in server_environ(awake, {}, 7)


def test_adapters_get_slots_and_the_rank_that_vllm_has() -> None:
    argv = server_argv(replace(OPTIONS, max_loras=3, max_lora_rank=12))
    assert "--enable-lora" in argv
    assert value_of(argv, "--max-loras") == value_of(argv, "--max-cpu-loras") == "3"
    assert value_of(argv, "--max-lora-rank") == "16"
    assert "--enable-lora" not in server_argv(OPTIONS)


def test_an_adapter_that_is_served_itself_has_the_name_and_a_slot_more() -> None:
    argv = server_argv(replace(OPTIONS, adapter="/adapters/a", max_loras=2))
    assert value_of(argv, "--max-loras") == "3"
    assert value_of(argv, "--lora-modules") == '{"name": "policy-v0", "path": "/adapters/a"}'
    assert value_of(argv, "--served-model-name") == "policy-v0-base"


def test_further_options_come_last_so_that_they_win() -> None:
    args: dict[str, Any] = {"max_num_batched_tokens": 4096, "enforce-eager": False, "async_scheduling": True}
    args |= {"compilation_config": {"level": 0}, "lora_target_modules": ["q_proj", "v_proj"]}
    assert server_argv(replace(OPTIONS, args=args))[-9:] == [
        *("--max-num-batched-tokens", "4096", "--no-enforce-eager", "--async-scheduling"),
        *("--compilation-config", '{"level": 0}', "--lora-target-modules", "q_proj", "v_proj"),
    ]


@pytest.mark.parametrize(
    "name", ["port", "served_model_name", "--max-loras", "no_enable_lora", "logprobs-mode", "enable_sleep_mode"]
)
def test_an_option_that_another_key_decides_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^engine.vllm.args: {name} cannot be set here: "):
        check_args({name: 1})


@pytest.mark.parametrize(("rank", "told"), [(1, 8), (8, 8), (9, 16), (65, 128), (512, 512)])
def test_ranks_are_rounded_up(rank: int, told: int) -> None:
    assert rank_for(rank) == told


def test_a_rank_beyond_the_largest_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.lora.r: 513 is more than vLLM takes: the largest rank is 512"):
        rank_for(RANKS[-1] + 1)


def test_the_environment_lets_adapters_be_loaded_and_tells_nobody() -> None:
    environ = server_environ(replace(OPTIONS, threads=3), {"PATH": "/bin", "PYTHONPATH": "/ours"}, parent=7)
    assert environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert (environ["VLLM_NO_USAGE_STATS"], environ["DO_NOT_TRACK"]) == ("1", "1")
    assert (environ["OMP_NUM_THREADS"], environ["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")
    assert environ[PARENT_VARIABLE] == "7"
    assert environ["PATH"] == "/bin"
    assert "PYTHONPATH" not in environ


def test_no_hub_is_asked_for_a_folder(tmp_path: Path) -> None:
    assert server_environ(replace(OPTIONS, model=str(tmp_path)), {}, 7)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in server_environ(replace(OPTIONS, model="owner/name"), {}, 7)


@pytest.mark.parametrize(("seen", "device", "told"), [("", "cuda:1", "1"), ("4,6", "cuda:1", "6"), ("4", "cuda", "4")])
def test_a_gpu_is_counted_among_those_we_see(seen: str, device: str, told: str) -> None:
    ours = {"CUDA_VISIBLE_DEVICES": seen} if seen else {}
    assert server_environ(replace(OPTIONS, device=device), ours, 7)["CUDA_VISIBLE_DEVICES"] == told
