"""Learner: trained tokens/s, packed, beside a plain padded loop over the same rollouts in the same run.

    python tests/benchmarks/bench_learner.py [--json] [--threads 1] [--repeat 7]

One policy update each, from rollouts to updated weights: forward, `dis` loss, backward, AdamW. The same model (a random
Llama of 64 hidden × 3 layers) and the same 64 rollouts of 40-120 tokens. The padded loop is what one writes first: one
batch as wide as its longest rollout, logits everywhere, a mask at the end. That both compute the same gradient is
checked before anything is timed. The two take turns, and the best of the repetitions counts. At the end, one whole SAO
step of the learner, with its two value updates.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig
from moonmill.config import Config, EnvConfig, LearnerConfig, ModelConfig
from moonmill.trainer.algorithms.dis import dis
from moonmill.trainer.attention import PACKED
from moonmill.trainer.learner import Learner, make_deterministic
from moonmill.trainer.models import Packed, action_logprobs
from moonmill.trainer.packing import pack
from moonmill.types import Action, Observation, Rollout, Sampling, Segment, Status, StopReason, Task

VOCAB = 100
ROLLOUTS = 64
LR = 1e-4
TOLERANCE = 1e-5


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        figures = measure(folder, args.threads, args.repeat)
    if args.json:
        print(json.dumps(figures))
        return
    print(f"one policy update over {figures['tokens']:.0f} tokens, {args.threads} thread(s), best of {args.repeat}")
    print(f"{'':>8} {'computed':>9} {'tokens/s':>9}")
    print(f"{'padded':>8} {figures['padded_tokens']:9.0f} {figures['padded']:9.0f}")
    ratio = figures["packed"] / figures["padded"]
    print(f"{'packed':>8} {figures['tokens']:9.0f} {figures['packed']:9.0f} ({ratio:.2f}×)")
    print(
        f"a whole SAO step: {figures['step_seconds']:.2f} s (critic {figures['critic_seconds']:.2f}, "
        f"policy {figures['policy_seconds']:.2f}), {figures['tokens'] / figures['step_seconds']:.0f} tokens/s"
    )


def measure(folder: str, threads: int, repeat: int) -> dict[str, float]:
    """Tokens per second of both ways, and a whole step."""
    config = Config(
        env=EnvConfig("benchmark"),
        model=ModelConfig(folder),
        algorithm=AlgorithmConfig(critic=CriticConfig(lr=1e-3, warmup_steps=0)),
        learner=LearnerConfig(batch_rollouts=ROLLOUTS, lr=LR, threads=threads),
    )
    make_deterministic(config)
    rollouts = make_rollouts()
    tokens = sum(r.tokens for r in rollouts)
    advantages = torch.randn(sum(r.action_tokens for r in rollouts))
    ways = [
        Way(folder, "sdpa", padded_loss, rollouts, advantages),
        Way(folder, PACKED, packed_loss, rollouts, advantages),
    ]
    require_equal(*(way.gradient() for way in ways))
    padded, packed = race(ways, repeat)
    learner = Learner(config)
    steps = [learner.step(rollouts).metrics for _ in range(repeat)]
    best = min(steps, key=step_seconds)
    return {
        "tokens": tokens,
        "padded_tokens": len(rollouts) * max(r.tokens for r in rollouts),
        "padded": tokens / padded,
        "packed": tokens / packed,
        "step_seconds": step_seconds(best),
        "critic_seconds": best["seconds_critic"] + best["seconds_advantages"],
        "policy_seconds": best["seconds_policy"],
    }


Loss = Callable[[PreTrainedModel, list[Rollout], Tensor], Tensor]


class Way:
    """One way to train a model on rollouts."""

    def __init__(self, folder: str, attention: str, loss: Loss, rollouts: list[Rollout], advantages: Tensor) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
        self._model.eval()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LR, fused=True)
        self._loss = lambda: loss(self._model, rollouts, advantages)

    def gradient(self) -> Tensor:
        self._loss().backward()
        return torch.cat([p.grad.flatten() for p in self._model.parameters()])

    def update(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss().backward()
        self._optimizer.step()


def packed_loss(model: PreTrainedModel, rollouts: list[Rollout], advantages: Tensor) -> Tensor:
    """As the learner does it, packing and planning included."""
    (batch,) = pack(rollouts, budget=1_000_000)
    logprobs, _ = action_logprobs(model, Packed(batch, PACKED, torch.device("cpu")), Sampling())
    loss, _ = dis(logprobs, batch.behaviour, advantages, low=0.3, high=5.0)
    return loss.sum() / len(advantages)


def padded_loss(model: PreTrainedModel, rollouts: list[Rollout], advantages: Tensor) -> Tensor:
    """A batch as wide as its longest rollout."""
    rows = [torch.tensor([t for s in r.segments for t in s.tokens]) for r in rollouts]
    acted = [torch.tensor([isinstance(s, Action) for s in r.segments for _ in s.tokens]) for r in rollouts]
    ids = pad_sequence(rows, batch_first=True)
    attention_mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    mask = pad_sequence(acted, batch_first=True)[:, 1:]
    behaviour = torch.tensor([p for r in rollouts for a in r.actions for p in a.logprobs])
    logits = model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    loss, _ = dis(logprobs[mask], behaviour, advantages, low=0.3, high=5.0)
    return loss.sum() / len(advantages)


def race(ways: list[Way], repeat: int) -> list[float]:
    """The least seconds of an update of each way."""
    best = [float("inf")] * len(ways)
    for _ in range(repeat + 1):
        for index, way in enumerate(ways):
            begin = time.perf_counter()
            way.update()
            best[index] = min(best[index], time.perf_counter() - begin)
    return best


def require_equal(one: Tensor, other: Tensor) -> None:
    """End the benchmark where the two ways do not compute the same."""
    difference = float((one - other).abs().max() / one.abs().max())
    if not difference < TOLERANCE:
        sys.exit(f"the two gradients differ by {difference:.2g} of the largest: there is nothing to compare")


def step_seconds(metrics: dict[str, float]) -> float:
    return sum(seconds for name, seconds in metrics.items() if name.startswith("seconds_"))


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
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_rollouts() -> list[Rollout]:
    """Rollouts of four turns, shortest first: about as the calculator's, half of the tokens sampled."""
    draw = random.Random(0)
    rollouts = [make_rollout(draw, index) for index in range(ROLLOUTS)]
    return sorted(rollouts, key=lambda r: r.tokens)


def make_rollout(draw: random.Random, index: int) -> Rollout:
    part = draw.randint(5, 15)
    segments: list[Segment] = []
    for _ in range(4):
        segments.append(Observation(tuple(draw.choices(range(VOCAB), k=part))))
        acted = tuple(draw.choices(range(VOCAB), k=part))
        segments.append(Action(acted, (-4.6,) * part, (0,) * part))
    return Rollout(
        id=str(index),
        env="benchmark",
        task=Task("?"),
        status=Status.FINISHED,
        stop_reason=StopReason.ANSWERED,
        segments=tuple(segments),
        reward=float(draw.random() < 0.5),
    )


if __name__ == "__main__":
    main()
