"""What vLLM's log says: how far its start is, and why it ended. Pure.

vLLM tells what is wrong in the middle of tracebacks of several processes. The lines here are those that vLLM 0.32 wrote
when each thing was done to it.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from moonmill.agents.engine.vllm_boot import REFUSES, SAYS
from moonmill.agents.engine.vllm_command import VllmOptions, device_type

_PHASES = (
    (re.compile(rf"^{SAYS}(importing .*)"), "{}"),
    (re.compile(r"Resolved architecture|Using max model len"), "reading the model's config"),
    (re.compile(r"Initializing a V1 LLM engine"), "starting its engine process"),
    (re.compile(r"Starting to load model"), "loading weights"),
    (re.compile(r"Loading \S+ checkpoint shards: +(\d+%)"), "loading weights, {}"),
    (re.compile(r"Loading weights took|Model loading took"), "setting up memory"),
    (re.compile(r"Dynamo bytecode transform|Compiling a graph"), "compiling"),
    (re.compile(r"[Cc]apturing CUDA graphs?"), "capturing CUDA graphs"),
    (re.compile(r"KV cache size"), "warming up"),
    (re.compile(r"Starting vLLM server"), "opening its HTTP server"),
)
_LABEL = re.compile(r"\(\S+ pid=\d+\) ")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?")
_ERROR = re.compile(r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.+)")
_VALIDATION = re.compile(r" *Value error, (.+)")
_NOT_THE_CAUSE = ("EngineDeadError", "Engine core initialization failed", "WorkerProc initialization failed")
"""Errors that say that there was another one."""
_LONGEST = 400
"""Characters of vLLM's words that are repeated."""


class End(Struct, frozen=True):
    """Why vLLM ended."""

    text: str
    final: bool
    """Whether it would end the same way if it were started again."""


def phase_of(line: str) -> str | None:
    """What vLLM has begun to do, if the line tells."""
    for pattern, words in _PHASES:
        if found := pattern.search(line):
            return words.format(*found.groups())
    return None


def why_it_ended(lines: Iterable[str], returncode: int | None, options: VllmOptions, *, served: bool) -> End:
    """Why vLLM ended, from its output.

    Args:
        lines: the output, or the end of it.
        returncode: of its first process; negative where a signal ended it.
        options: what it was to serve.
        served: whether it had answered a request: then nothing that it was given can be what is wrong.
    """
    said = [*_errors(lines)]
    for pattern, text, final in _CAUSES:
        for line in said:
            if found := pattern.search(line):
                return End(_told(text, found, options), final and not served)
    if cause := _cause(said):
        return End(f"vLLM ended: {cause[:_LONGEST]}", final=False)
    if any("died unexpectedly" in line for line in said) or returncode == -9:
        return End("a process of vLLM was killed; most often that is the system, out of memory", final=False)
    return End(f"vLLM ended with {returncode} and did not say why", final=False)


def _errors(lines: Iterable[str]) -> Iterable[str]:
    """The lines that no logger calls harmless, without their prefixes."""
    for line in lines:
        text = _LABEL.sub("", line, count=1)
        level = _LEVEL.match(text)
        if level is None or level[1] in ("ERROR", "CRITICAL"):
            yield text[level.end() :] if level else text


def _cause(said: list[str]) -> str | None:
    """The first exception that is told: those after it follow from it."""
    for line in said:
        found = _ERROR.match(line)
        if found and not any(text in line for text in _NOT_THE_CAUSE):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return None


def _told(text: str, found: "re.Match[str]", options: VllmOptions) -> str:
    """The words of a cause, with what the line and the options say of it filled in."""
    cpu = device_type(options.device) == "cpu"
    return text.format(
        *(group[:_LONGEST] for group in found.groups("")),
        line=found[0][:_LONGEST],
        model=options.model,
        python=options.python,
        port=options.port,
        gpu_memory=options.gpu_memory,
        memory="memory" if cpu else "GPU memory",
        memory_key="engine.vllm.kv_cache_gib" if cpu else "engine.vllm.gpu_memory",
    )


_CAUSES = (
    (re.compile(rf"^{REFUSES}(.+)"), "{0}", True),
    (re.compile(r"\.py: error: (.+)"), "vLLM does not take its options: {0} (engine.vllm.args)", True),
    (
        re.compile(r"Unsupported CPU attention configuration: head_dim=(\d+)"),
        "vLLM cannot compute {model} on a CPU: its attention heads have {0} dimensions (head_dim), which vLLM's CPU "
        "attention does not have. Take the embedded engine (engine.type), a GPU, or another model",
        True,
    ),
    (
        re.compile(r"max_model_len \((\d+)\) is greater than the derived .*max_position_embeddings=(\d+)"),
        "model.max_length: {0} is more than the {1} positions that the model {model} has: lower it",
        True,
    ),
    (
        re.compile(r"max seq len \((\d+)\), \(([\d.]+) GiB KV cache is needed, .* memory \(([\d.]+) GiB\)"),
        "a request of {0} tokens (model.max_length) needs {1} GiB for keys and values, and vLLM has {2}: raise "
        "{memory_key}, or lower model.max_length",
        True,
    ),
    (
        re.compile(r"No available memory for the cache blocks"),
        "vLLM has no memory for the keys and values of requests: raise {memory_key}, or take a smaller model",
        True,
    ),
    (
        re.compile(r"\(([\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than .* \(([\d.]+)"),
        "engine.vllm.kv_cache_gib: {1} GiB are wanted for keys and values, and this machine has {0} free: lower it",
        True,
    ),
    # The memory of an engine that has just died may not be free yet.
    (
        re.compile(r"Free memory on device \S* ?\(([\d.]+)/([\d.]+) GiB\) on startup"),
        "engine.vllm.gpu_memory: {gpu_memory:g} of the GPU's memory is wanted, and it has {0} of {1} GiB free: lower "
        "it, or end what else uses the GPU",
        False,
    ),
    (
        re.compile(r"OutOfMemoryError.*|CUDA out of memory.*|MemoryError.*|can't allocate memory.*"),
        "{model} and its requests do not fit into the {memory} there is: take a smaller model, or lower "
        "engine.max_batch and model.max_length ({line})",
        True,
    ),
    (
        re.compile(r"Model architectures \[(.*?)\] are not supported"),
        "vLLM has no such model as {model}: its architecture is {0}; the embedded engine may know it",
        True,
    ),
    (
        re.compile(r"has model type `(\S+)` but Transformers does not recognize"),
        "vLLM has no such model as {model}: the model type {0} is unknown to the transformers of {python}",
        True,
    ),
    (re.compile(r"Cannot find any model weights"), "the model folder {model} has no weights", True),
    (
        re.compile(r"Unterminated string starting at|[Ee]rror while deserializing header|SafetensorError"),
        "the weights in {model} are damaged: a file of them cannot be read",
        True,
    ),
    (
        re.compile(r"Couldn't instantiate the backend tokenizer|Can't load tokenizer"),
        "the model folder {model} has no tokenizer that vLLM can load",
        True,
    ),
    (re.compile(r"does not support LoRA"), "vLLM cannot put adapters on {model} (model.lora)", True),
    (re.compile(r"Loading lora \S+ failed: (.+?)(?:', please|$)"), "the adapter cannot be loaded: {0}", True),
    (re.compile(r"[Aa]ddress already in use"), "port {port} is in use: choose another (0 takes any)", True),
    (
        re.compile(r"Found no NVIDIA driver|No CUDA GPUs are available|Failed to infer device type"),
        "vLLM finds no GPU that it can use: set model.device to cpu, or install the driver",
        True,
    ),
    (re.compile(r"No space left on device"), "a disk is full, or the shared memory in /dev/shm", False),
    (
        re.compile(r"^(?:ImportError|ModuleNotFoundError|OSError: .*cannot open shared object file): ?(.*)"),
        "the vLLM of {python} cannot be imported: {0}; `moonmill engine install … --force` makes it anew",
        True,
    ),
    (_VALIDATION, "vLLM refuses the model or an option of its: {0}", True),
)
"""What a line says, what that means, and whether it would be the same another time. The first that is found is told."""
