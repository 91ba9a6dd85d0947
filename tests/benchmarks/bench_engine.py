"""Tokens per second of the embedded engine, beside transformers' continuous batching in the same run.

    python tests/benchmarks/bench_engine.py [--json] [--tokens 100] [--repeat 3]

A randomly initialised Llama of 64 hidden × 3 layers (the size of the starter policy) samples at temperature 1, with
log-probabilities, from prompts of 20 to 60 tokens, on one thread. Three ways, for 1, 16 and 64 requests at once:

- `generate_batch`: transformers, with sdpa and log-probabilities;
- `scheduler`: the engine's own loop, in this process;
- `http`: the engine as the process it is, through the client that training uses (a process of its own here, too).

Each figure is the best of the repetitions, which take turns: what else runs on the machine hits all three alike.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import anyio
import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.utils import logging

from moonmill.agents.client import InferenceClient
from moonmill.agents.engine.models import load_model
from moonmill.agents.engine.scheduler import Delta, Params, Request, Scheduler
from moonmill.agents.processes import ServerProcess
from moonmill.types import Sampling

VOCAB = 100
REQUESTS = (1, 16, 64)
MAX_LENGTH = 512


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tokens", type=int, default=100, help="tokens sampled for each request")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        figures = anyio.run(measure, folder, args.tokens, args.repeat)
    if args.json:
        print(json.dumps(figures))
        return
    print(f"tokens/s, {args.tokens} tokens a request, one thread, best of {args.repeat}")
    print(f"{'requests':>8} {'generate_batch':>15} {'scheduler':>15} {'http':>15}")
    for requests, row in figures.items():
        base = row["generate_batch"]
        cells = [f"{row[name]:8.0f} ({row[name] / base:.1f}×)" for name in ("scheduler", "http")]
        print(f"{requests:>8} {base:15.0f} {cells[0]:>15} {cells[1]:>15}")


def make_model(folder: Path) -> None:
    """Write the model that is measured."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


async def measure(folder: str, tokens: int, repeat: int) -> dict[str, dict[str, float]]:
    """Tokens per second by number of requests and way."""
    transformers_model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    slots_model = load_model(folder, "float32", "cpu")
    argv = [sys.executable, "-m", "moonmill.agents.engine", "--model", folder, "--served-name", "policy-v0"]
    argv += ["--port", "0", "--max-length", str(MAX_LENGTH), "--exit-with-stdin"]
    server = ServerProcess("engine", argv, log_path=Path(folder) / "engine.log", start_timeout=120)
    figures: dict[str, dict[str, float]] = {}
    async with server, InferenceClient(server.base_url) as client:
        for requests in REQUESTS:
            rng = random.Random(requests)
            prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(20, 60))] for _ in range(requests)]
            row = {"generate_batch": 0.0, "scheduler": 0.0, "http": 0.0}
            by_generate_batch(transformers_model, prompts, tokens)
            for _ in range(repeat):
                start = time.perf_counter()
                by_generate_batch(transformers_model, prompts, tokens)
                row["generate_batch"] = max(row["generate_batch"], requests * tokens / (time.perf_counter() - start))
                start = time.perf_counter()
                by_scheduler(slots_model, prompts, tokens)
                row["scheduler"] = max(row["scheduler"], requests * tokens / (time.perf_counter() - start))
                start = time.perf_counter()
                await by_http(client, prompts, tokens)
                row["http"] = max(row["http"], requests * tokens / (time.perf_counter() - start))
            transformers_model.destroy_cached_continuous_batching_manager()
            figures[str(requests)] = row
    return figures


def by_generate_batch(model: PreTrainedModel, prompts: list[list[int]], tokens: int) -> None:
    """Sample with transformers."""
    config = GenerationConfig(max_new_tokens=tokens, do_sample=True, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(page_size=32, num_blocks=1024, max_batch_tokens=1024, return_logprobs=True)
    # The manager is kept: setting it up takes a good part of a second, which a server would do once.
    answers = model.generate_batch(
        prompts, generation_config=config, continuous_batching_config=batching, persistent_manager=True
    )
    assert sum(len(a.generated_tokens) for a in answers.values()) == len(prompts) * tokens


def by_scheduler(model: PreTrainedModel, prompts: list[list[int]], tokens: int) -> None:
    """Sample with the engine's scheduler."""
    scheduler = Scheduler({"policy": model}, max(REQUESTS), MAX_LENGTH, torch.device("cpu"))
    deltas: list[Delta] = []
    for i, prompt in enumerate(prompts):
        scheduler.submit(Request("policy", prompt, Params(max_tokens=tokens, seed=i), deltas.append))
    with torch.inference_mode():
        while not scheduler.idle:
            scheduler.step()
    assert sum(len(d.tokens) for d in deltas) == len(prompts) * tokens


async def by_http(client: InferenceClient, prompts: list[list[int]], tokens: int) -> None:
    """Sample through the engine's process."""
    done = 0

    async def one(i: int, prompt: list[int]) -> None:
        nonlocal done
        answer = await client.complete(prompt, Sampling(max_tokens=tokens), seed=i, stop_token_ids=())
        done += len(answer.tokens)

    async with anyio.create_task_group() as tasks:
        for i, prompt in enumerate(prompts):
            tasks.start_soon(one, i, prompt)
    assert done == len(prompts) * tokens


if __name__ == "__main__":
    main()
