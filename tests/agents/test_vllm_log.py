"""What vLLM's log says. The lines are those that vLLM 0.32 wrote when each thing was done to it."""

import pytest
from msgspec.structs import replace

from moonmill.agents.engine.vllm_command import VllmOptions
from moonmill.agents.engine.vllm_log import phase_of, why_it_ended

OPTIONS = VllmOptions(python="/venv/bin/python", model="/models/m", served_name="policy-v0", host="127.0.0.1", port=81)
WORKER = "(Worker pid=31) ERROR 11-29 23:35:30 [multiproc_executor.py:1063] "
ENGINE = "(EngineCore pid=30) ERROR 11-29 23:38:37 [core.py:1510] "
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the"

FINAL = {
    "moonmill: refused: /venv/bin/python has no vLLM": "/venv/bin/python has no vLLM",
    "vllm_boot.py: error: unrecognized arguments: --foo-bar": (
        "vLLM does not take its options: unrecognized arguments: --foo-bar (engine.vllm.args)"
    ),
    f"{WORKER}RuntimeError: Unsupported CPU attention configuration: head_dim=16 isa=2 kv_cache_idx=0": (
        "vLLM cannot compute /models/m on a CPU: its attention heads have 16 dimensions (head_dim), which vLLM's "
        "CPU attention does not have. Take the embedded engine (engine.type), a GPU, or another model"
    ),
    "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len "
    "(max_position_embeddings=512.0 or model_max_length=None in model's config.json). To allow overriding": (
        "model.max_length: 100000 is more than the 512 positions that the model /models/m has: lower it"
    ),
    f"{ENGINE}ValueError: To serve at least one request with the model's max seq len (4096), (1.5 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (0.25 GiB). Based on the available": (
        "a request of 4096 tokens (model.max_length) needs 1.5 GiB for keys and values, and vLLM has 0.25: raise "
        "engine.vllm.kv_cache_gib, or lower model.max_length"
    ),
    f"{ENGINE}ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when": (
        "vLLM has no memory for the keys and values of requests: raise engine.vllm.kv_cache_gib, or take a smaller "
        "model"
    ),
    f"{WORKER}ValueError: Available memory on node 0 (17.49/23.54 GiB) on kv cache allocation is less than requested "
    "memory for kv (500.0 GiB). Decrease --kv-cache-memory-bytes": (
        "engine.vllm.kv_cache_gib: 500.0 GiB are wanted for keys and values, and this machine has 17.49 free: lower it"
    ),
    "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported": (
        "vLLM has no such model as /models/m: its architecture is 'FooForCausalLM'; the embedded engine may know it"
    ),
    "(APIServer pid=29) ERROR 11-29 23:30:45 [repo_utils.py:126] Error parsing config for /models/m: The checkpoint "
    "you are trying to load has model type `foollama` but Transformers does not recognize this architecture.": (
        "vLLM has no such model as /models/m: the model type foollama is unknown to the transformers of "
        "/venv/bin/python"
    ),
    f"{WORKER}RuntimeError: Cannot find any model weights with `m`": "the model folder /models/m has no weights",
    "  Value error, Unterminated string starting at: line 1 column 992 (char 991) [type=value_error": (
        "the weights in /models/m are damaged: a file of them cannot be read"
    ),
    "ValueError: Couldn't instantiate the backend tokenizer from one of: ": (
        "the model folder /models/m has no tokenizer that vLLM can load"
    ),
    f"{WORKER}vllm.exceptions.LoRAAdapterNotFoundError: Loading lora policy-v0 failed: No adapter found for /a": (
        "the adapter cannot be loaded: No adapter found for /a"
    ),
    "OSError: [Errno 98] Address already in use": "port 81 is in use: choose another (0 takes any)",
    "  Value error, something else that it checks": (
        "vLLM refuses the model or an option of its: something else that it checks"
    ),
}


@pytest.mark.parametrize(("line", "words"), FINAL.items(), ids=range(len(FINAL)))
def test_what_will_not_mend_itself_is_told_in_plain_words(line: str, words: str) -> None:
    end = why_it_ended(["loading", line, DEAD], 1, OPTIONS, served=False)
    assert (end.text, end.final) == (words, True)


def test_the_same_after_it_has_served_may_mend_itself() -> None:
    line = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert why_it_ended([line], 1, replace(OPTIONS, device="cuda"), served=False).final
    end = why_it_ended([line], 1, replace(OPTIONS, device="cuda"), served=True)
    assert not end.final
    assert "do not fit into the GPU memory there is" in end.text


def test_a_gpu_whose_memory_is_not_free_yet_is_tried_again() -> None:
    line = (
        f"{WORKER}ValueError: Free memory on device cuda:0 (10.5/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB)."
    )
    end = why_it_ended([line], 1, replace(OPTIONS, device="cuda", gpu_memory=0.9), served=False)
    assert end.text == (
        "engine.vllm.gpu_memory: 0.9 of the GPU's memory is wanted, and it has 10.5 of 79.1 GiB free: lower it, or end "
        "what else uses the GPU"
    )
    assert not end.final


def test_anything_else_is_told_by_the_first_exception() -> None:
    lines = [
        "(APIServer pid=29) WARNING 11-29 23:31:55 [system_utils.py:255] Errors like `OSError: Too many files`",
        "Traceback (most recent call last):",
        f"{WORKER}safetensors.Strange: 12",
        f"{WORKER}some.module.OddError: nobody knows",
        f"{ENGINE}RuntimeError: Worker failed with error 'nobody knows', please check the stack trace above",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    end = why_it_ended(lines, 1, OPTIONS, served=False)
    assert (end.text, end.final) == ("vLLM ended: OddError: nobody knows", False)


def test_a_killed_process_is_told_as_such() -> None:
    told = "a process of vLLM was killed; most often that is the system, out of memory"
    line = f"{ENGINE}Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
    assert why_it_ended([line, DEAD], 1, OPTIONS, served=True).text == told
    assert why_it_ended([], -9, OPTIONS, served=True).text == told
    assert why_it_ended(["INFO all is well"], 3, OPTIONS, served=True).text == "vLLM ended with 3 and did not say why"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("moonmill: importing vLLM 0.32.0", "importing vLLM 0.32.0"),
        (
            "(APIServer pid=1) INFO 11-29 20:28:53 [model.py:733] Resolved architecture: Llama",
            "reading the model's config",
        ),
        (
            "(EngineCore pid=1) INFO 11-29 20:29:03 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: ",
            "starting its engine process",
        ),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<?, ?it/s]", "loading weights, 50%"),
        ("(EngineCore pid=1) INFO 11-29 20:29:17 [kv.py:2] CPU KV cache size: 349,440 tokens", "warming up"),
        ("(APIServer pid=1) WARNING 11-29 20:28:54 [vllm.py:1] Enforce eager set, disabling torch.compile", None),
    ],
)
def test_its_start_has_phases(line: str, phase: str | None) -> None:
    assert phase_of(line) == phase
