"""How the engine of a run is started, by its type, and what can be known of that before. Pure but for one look.

What always holds: an engine of either type serves the model under the name of version 0, keeps to the convention of
`moonmill.agents.serving`, and has room for every version a run has on it at once.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from moonmill.agents.client import version_name
from moonmill.agents.engine.vllm_command import check_args, rank_for
from moonmill.agents.engine.vllm_environment import interpreter_for, interpreter_problem
from moonmill.agents.processes import ServerProcess
from moonmill.config import Config
from moonmill.errors import ConfigError
from moonmill.trainer.devices import engine_devices, learner_device, shares_memory

_LAST_PORT = 65535
_LOCAL = ("127.0.0.1", "::1", "localhost")


def engine_argv(config: Config, number: int = 0) -> list[str]:
    """The command line of one of the engines; no module of the folder we are in gets in its way.

    Args:
        config: the run's.
        number: which one, from 0.

    Raises:
        ConfigError: vLLM is wanted, and is not installed.
    """
    engine, model, device = config.engine, config.model, engine_devices(config)[number]
    port = engine.port + number if engine.port else 0
    module = {"embedded": "moonmill.agents.engine", "vllm": "moonmill.agents.engine.vllm"}[engine.type]
    argv = [sys.executable, "-P", "-m", module]
    argv += ["--model", model.path, "--served-name", version_name(0)]
    argv += ["--host", engine.host, "--port", str(port), "--threads", str(engine.threads)]
    argv += ["--max-batch", str(engine.max_batch + eval_places(config)), "--max-length", str(model.max_length)]
    argv += ["--dtype", model.dtype, "--device", device, "--exit-with-stdin"]
    argv += ["--can-sleep"] * engine.sleep_while_learning
    if engine.type == "vllm":
        return argv + _of_vllm(config, device)
    argv += ["--renderer", model.renderer, "--tool-format", model.tool_format]
    return [*argv, *["--batch-invariant"] * engine.batch_invariant]


def engine_places(config: Config, logs: Path, progress: Callable[[str, str], None]) -> dict[str, ServerProcess | str]:
    """The engines of a run by name: attached, or processes to start, which tell their progress under their name."""
    engine = config.engine
    if engine.urls:
        return {url: url for url in engine.urls}
    places: dict[str, ServerProcess | str] = {}
    for number in range(engine.replicas):
        name = f"engine-{number + 1}" if engine.replicas > 1 else "engine"
        log = logs / f"{name}.log"
        timeout, told = engine.start_timeout, partial(progress, name)
        places[name] = ServerProcess(
            name, engine_argv(config, number), log_path=log, start_timeout=timeout, on_progress=told
        )
    return places


def eval_places(config: Config) -> int:
    """Places that evaluations beside training have on each engine, besides `engine.max_batch`."""
    beside = config.eval.tasks and config.train.eval_every
    return config.eval.max_concurrent if beside else 0


def versions_in_use(config: Config) -> int:
    """The newest so many versions are sampled from by training.

    Interrupted requests have left a version as soon as the next is in use; requests that finish under theirs can be as
    old as the staleness bound.
    """
    return 1 if config.async_.on_new_version == "interrupt" else config.async_.staleness_bound + 1


def slots_needed(config: Config) -> int:
    """Versions that are on the engine at once: those in use, one being loaded, one that an evaluation stays with."""
    return versions_in_use(config) + 1 + bool(config.eval.tasks)


def describe_engine(config: Config) -> str:
    """What the engine will be.

    Raises:
        ConfigError: it cannot be started as configured.
    """
    engine, model = config.engine, config.model
    places = _places(config)
    if engine.batch_invariant and (engine.type != "embedded" or engine.urls):
        raise ConfigError(
            "engine.batch_invariant: is for embedded engines that Moonmill starts; vLLM has a way of its own, the "
            "environment variable VLLM_BATCH_INVARIANT=1, on some GPUs"
        )
    if engine.type == "embedded" or engine.urls:
        return ", ".join(filter(None, (engine.type, places)))
    check_args(engine.vllm.args)
    device = engine_devices(config)[0]  # The others are of its kind.
    python = interpreter_for(device, engine.vllm.python)
    if problem := interpreter_problem(python):
        raise ConfigError(
            f"engine.vllm.python: {problem}: install vLLM with `moonmill engine install`, or name the interpreter of "
            "an environment that has it"
        )
    facts = [engine.type, places, f"of {python}"]
    if model.dtype == "bfloat16" and device == "cpu":
        facts.append("bfloat16 is several times slower than float32 on most CPUs")
    return ", ".join(filter(None, facts))


def describe_versions(config: Config) -> str:
    """How many versions the engine will hold while a run trains.

    Raises:
        ConfigError: it cannot take them.
    """
    needed = slots_needed(config)
    if config.engine.type == "embedded":
        return f"up to {needed} on the engine at once"
    if config.model.lora is None:
        raise ConfigError(
            "model.lora: is null, but vLLM takes new versions as adapters alone: set model.lora to {}, or engine.type "
            "to embedded"
        )
    slots = config.engine.vllm.max_loras or needed
    if slots < needed:
        raise ConfigError(
            f"engine.vllm.max_loras: {slots} is too few: this run has up to {needed} versions on the engine at once "
            f"({_explained(config)}); leave it out for as many as are needed"
        )
    return f"up to {needed} on the engine at once, which has {slots} slots for adapters of rank {_rank(config)}"


def check_sleep(config: Config) -> None:
    """See that the engines can sleep while the learner computes, where they are to.

    Raises:
        ConfigError: they cannot, or it is of no use.
    """
    if not config.engine.sleep_while_learning:
        return
    key = "engine.sleep_while_learning"
    if config.async_.mode == "async":
        raise ConfigError(
            f"{key}: wants async.mode: sync, in which nothing is generated while the learner computes; in async mode "
            "the engine has no time to sleep"
        )
    if eval_places(config):
        raise ConfigError(
            f"{key}: train.eval_every: {config.train.eval_every} evaluates beside training, and would find the engine "
            "asleep while the learner computes: set it to 0, which evaluates before and after training"
        )
    if config.engine.urls:
        raise ConfigError(f"{key}: is for engines that the run starts, and engine.urls names some that run already")
    if not shares_memory(config):
        raise ConfigError(
            f"{key}: the learner computes on {learner_device(config)}, and no engine does: what an engine on "
            f"{engine_devices(config)[0]} gives free is of no use to it"
        )
    if config.engine.type == "vllm" and config.engine.host not in _LOCAL:
        raise ConfigError(
            f"{key}: vLLM sleeps in its development mode alone, in which whoever reaches it can have it do anything: "
            f"set engine.host to 127.0.0.1, not {config.engine.host}"
        )


def _places(config: Config) -> str:
    engine = config.engine
    if not engine.urls:
        if engine.port and engine.port + engine.replicas - 1 > _LAST_PORT:
            raise ConfigError(
                f"engine.port: {engine.replicas} engines from port {engine.port} on do not fit below {_LAST_PORT + 1}: "
                "lower it, or leave it at 0 for free ones"
            )
        return f"{engine.replicas} to start" if engine.replicas > 1 else ""
    if engine.replicas > 1:
        raise ConfigError(
            f"engine.replicas: {engine.replicas} cannot be started, for engine.urls names the engines to use: leave "
            "one of the two keys out"
        )
    for url in engine.urls:
        if problem := _problem_of(url):
            raise ConfigError(f"engine.urls: {url!r:.100} {problem}; it should be like http://127.0.0.1:8000")
    if len({url.rstrip("/") for url in engine.urls}) < len(engine.urls):
        raise ConfigError("engine.urls: an engine stands there twice")
    return f"attached: {', '.join(engine.urls)}"


def _problem_of(url: str) -> str:
    """What is wrong with the URL of an engine; empty where it can be one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as e:
        return f"is no URL ({e})"
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in url):
        return "is no URL of a server"
    return "has a path, and should not" if parts.path.strip("/") or parts.query or parts.fragment else ""


def _of_vllm(config: Config, device: str) -> list[str]:
    vllm, lora = config.engine.vllm, config.model.lora
    argv = ["--python", interpreter_for(device, vllm.python)]
    argv += ["--kv-cache-gib", f"{vllm.kv_cache_gib:g}", "--gpu-memory", f"{vllm.gpu_memory:g}"]
    if lora is not None:
        argv += ["--max-loras", str(vllm.max_loras or slots_needed(config)), "--max-lora-rank", str(_rank(config))]
    for name, value in vllm.args.items():
        argv += ["--arg", f"{name}={json.dumps(value)}"]
    return argv


def _rank(config: Config) -> int:
    assert config.model.lora
    return rank_for(config.model.lora.r)


def _explained(config: Config) -> str:
    evaluated = ", 1 being evaluated" if config.eval.tasks else ""
    return f"{versions_in_use(config)} in use, 1 being loaded{evaluated}"
