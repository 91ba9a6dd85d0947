"""What vLLM's server is started with: from our options to its command line and environment. Pure.

What always holds: a log-probability is that of the distribution a token was drawn from, after temperature, top-p and
top-k; nothing but a request decides how it is sampled; adapters can be loaded while it serves; it asks no hub for a
model that is a folder, and tells nobody that it runs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from moonmill.agents.engine import vllm_boot
from moonmill.errors import ConfigError

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be told."""
_LOG_STATS_SECONDS = 60
_GIB = 1 << 30
_OURS = {
    "model": "set model.path",
    "served-model-name": "versions have names of their own",
    "host": "set engine.host",
    "port": "set engine.port",
    "uds": "set engine.host and engine.port",
    "max-model-len": "set model.max_length",
    "dtype": "set model.dtype",
    "max-num-seqs": "set engine.max_batch",
    "enable-sleep-mode": "set engine.sleep_while_learning",
    "enable-lora": "set model.lora",
    "max-loras": "set engine.vllm.max_loras",
    "max-cpu-loras": "set engine.vllm.max_loras",
    "max-lora-rank": "set model.lora.r",
    "lora-modules": "versions are loaded while it serves",
    "logprobs-mode": "training needs the log-probabilities of what was sampled from",
    "generation-config": "set what is under sampling",
    "override-generation-config": "set what is under sampling",
    "api-key": "requests carry no key",
    "api-server-count": "there is one server to an engine",
    "headless": "there is one server to an engine",
}
"""Options of vLLM that are not to be set by its users here, and what to do instead."""
_BATCHED = "max-num-batched-tokens"


class VllmOptions(Struct, frozen=True):
    """What to serve, and how. Fields are called as the launcher's options."""

    python: str
    """The interpreter of the environment vLLM is in."""
    model: str
    served_name: str
    host: str
    port: int
    max_length: int | None = None
    """None takes the model's own."""
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    max_batch: int = 64
    max_loras: int = 0
    """Adapters on the engine at once; 0 serves the model alone."""
    max_lora_rank: int = 16
    adapter: str | None = None
    """An adapter's folder: what `served_name` is then, on top of the model."""
    kv_cache_gib: float = 2.0
    gpu_memory: float = 0.9
    can_sleep: bool = False
    """It answers `/sleep` and `/wake_up`, on a CPU as well, where it frees nothing."""
    args: Mapping[str, Any] = {}
    """Further options of vLLM's server, as its names or ours with underscores."""


def server_argv(options: VllmOptions) -> list[str]:
    """The command line of vLLM's server, by the interpreter of its environment.

    Raises:
        ConfigError: an option that is not the caller's to set, or a rank vLLM cannot have.
    """
    device = device_type(options.device)
    argv = [options.python, "-P", vllm_boot.__file__, device, "--model", options.model]
    argv += ["--host", options.host, "--port", str(options.port)]
    argv += ["--dtype", options.dtype, "--max-num-seqs", str(options.max_batch)]
    if options.max_length is not None:
        argv += ["--max-model-len", str(options.max_length)]
    argv += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-prefix-caching"]
    argv += ["--disable-uvicorn-access-log"]
    slots = options.max_loras + (options.adapter is not None)
    if slots:
        argv += ["--enable-lora", "--max-loras", str(slots), "--max-cpu-loras", str(slots)]
        argv += ["--max-lora-rank", str(rank_for(options.max_lora_rank))]
    if options.adapter is None:
        argv += ["--served-model-name", options.served_name]
    else:
        argv += ["--served-model-name", f"{options.served_name}-base"]
        argv += ["--lora-modules", json.dumps({"name": options.served_name, "path": options.adapter})]
    if device == "cpu":
        argv += ["--enforce-eager", "--kv-cache-memory-bytes", str(int(options.kv_cache_gib * _GIB))]
        # Where a prompt is taken in parts, vLLM sets the generator of a seeded request back after each, and dies of it:
        # torch's generators for a CPU know no way back.
        argv.append("--no-enable-chunked-prefill")
    else:
        argv += ["--gpu-memory-utilization", f"{options.gpu_memory:g}"]
        argv += ["--enable-sleep-mode"] * options.can_sleep  # refused on a CPU
    return argv + _further(options.args)


def server_environ(options: VllmOptions, ours: Mapping[str, str], parent: int) -> dict[str, str]:
    """The environment of vLLM's server.

    Args:
        options: what to serve.
        ours: the environment of this process.
        parent: the process that starts it, with which it ends.
    """
    environ = {name: value for name, value in ours.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VLLM_PORT")}
    environ |= {
        vllm_boot.PARENT_VARIABLE: str(parent),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_DISABLE_LOG_LOGO": "1",
        "VLLM_LOG_STATS_INTERVAL": str(_LOG_STATS_SECONDS),
        "OMP_NUM_THREADS": str(options.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if options.can_sleep:
        environ["VLLM_SERVER_DEV_MODE"] = "1"  # else it has no `/sleep`
    # Between its own processes vLLM speaks over TCP: not where others could listen.
    environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
    if Path(options.model).is_dir():
        environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if device_type(options.device) == "cpu":
        environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    elif ":" in options.device:
        environ["CUDA_VISIBLE_DEVICES"] = _visible(int(options.device.partition(":")[2]), ours)
    return environ


def rank_for(rank: int) -> int:
    """The smallest rank vLLM can be told that adapters of `rank` fit into.

    Raises:
        ConfigError: there is none.
    """
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise ConfigError(f"model.lora.r: {rank} is more than vLLM takes: the largest rank is {RANKS[-1]}")


def check_args(args: Mapping[str, Any]) -> None:
    """See that none of vLLM's options `args` is set elsewhere, and that those read here can be what they are.

    Raises:
        ConfigError: one is, or cannot.
    """
    for name in args:
        option = _dashed(name)
        if instead := _OURS.get(option) or _OURS.get(option.removeprefix("no-")):
            raise ConfigError(f"engine.vllm.args: {name} cannot be set here: {instead}")
    batched_tokens(args)


def batched_tokens(args: Mapping[str, Any]) -> int | None:
    """Most tokens of a step of vLLM's, where its options `args` say so.

    Raises:
        ConfigError: it is no number of tokens.
    """
    for name, value in args.items():
        if _dashed(name) == _BATCHED:
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"engine.vllm.args: {name}: {_text(value):.60}: expected a whole number of at least 1: tokens"
                )
            return value
    return None


def device_type(device: str) -> str:
    """`cpu` or `cuda`."""
    return device.partition(":")[0]


def _further(args: Mapping[str, Any]) -> list[str]:
    check_args(args)
    argv: list[str] = []
    for name, value in args.items():
        option = f"--{_dashed(name)}"
        if value is None or value is True:
            argv.append(option)
        elif value is False:
            argv.append(f"--no-{_dashed(name)}")
        elif isinstance(value, list):
            argv += [option, *(_text(v) for v in value)]
        else:
            argv += [option, _text(value)]
    return argv


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _dashed(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _visible(index: int, ours: Mapping[str, str]) -> str:
    """What `CUDA_VISIBLE_DEVICES` must be for GPU `index` of those we see ourselves."""
    seen = [part.strip() for part in ours.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return seen[index] if index < len(seen) else str(index)
