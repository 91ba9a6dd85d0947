"""Learner: trained tokens/s, packed, beside a plain padded loop over the same rollouts in the same run, and beside TRL.

    python tests/benchmarks/bench_learner.py [--json] [--repeat 7] [--trl PYTHON [--size 135m | --run DIR]]

One policy update each, from rollouts to updated weights: forward, `dis` loss, backward, AdamW. The same model (a random
Llama of 64 hidden × 3 layers) and the same 64 rollouts of 40-120 tokens. The padded loop is what one writes first: one
batch as wide as its longest rollout, logits everywhere, a mask at the end. That both compute the same gradient is
checked before anything is timed. The two take turns, and the best of the repetitions counts. At the end, one whole SAO
step of the learner, with its two value updates.

`--trl PYTHON`, with a Python that has TRL (`pip install trl==1.16.0` beside torch and transformers as pinned here),
races whole learner steps of the preset `grpo` against those of TRL's GRPOTrainer: the same model, rollouts in groups of
8 and recorded log-probabilities, one update each in turns, from having the rollouts to updated weights, with metrics.
Trained tokens are the sampled ones on both sides. That both begin with the same gradient is checked. `--size 135m` does
that alone, with 16 rollouts and a model of SmolLM2-135M's shape. `--run DIR` races the first 64 rollouts of a run
in place of made ones, whose lengths are evenly spread: those of a real run are not.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, GroupZscoreConfig
from moonmill.config import Config, EnvConfig, LearnerConfig, ModelConfig
from moonmill.jsonl import read_jsonl
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
SHAPES: dict[str, dict[str, int]] = {
    "small": {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "head_dim": 32,
    },
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--trl", metavar="PYTHON", help="a Python that has TRL, to be measured beside it")
    parser.add_argument("--run", type=Path, metavar="DIR", help="race the rollouts of this run beside TRL")
    parser.add_argument("--size", choices=list(SHAPES), default="small", help="of the model")
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        count = ROLLOUTS if args.size == "small" else 16
        rollouts = recorded_rollouts(args.run, count) if args.run else make_rollouts(count)
        make_model(Path(folder), args.size, vocabulary_of(rollouts))
        figures = measure(folder, args.threads, args.repeat) if args.size == "small" else {}
        if args.trl:
            figures |= beside_trl(args.trl, Path(folder), rollouts, args.threads, args.repeat)
    if args.json:
        print(json.dumps(figures))
        return
    if args.size == "small":
        print_table(figures, args.threads, args.repeat)
    if args.trl:
        ratio = figures["grpo"] / figures["trl"]
        lengths = f"{figures['mean']:.0f} tokens long in the mean, {figures['longest']:.0f} at most"
        print(f"a whole GRPO step over {figures['acted']:.0f} sampled tokens of rollouts {lengths}; trained tokens/s")
        print(f"{'TRL':>8} {figures['trl']:9.0f}")
        print(f"{'ours':>8} {figures['grpo']:9.0f} ({ratio:.2f}×)")


def print_table(figures: dict[str, float], threads: int, repeat: int) -> None:
    print(f"one policy update over {figures['tokens']:.0f} tokens, {threads} thread(s), best of {repeat}")
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
    rollouts = make_rollouts(ROLLOUTS)
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


def beside_trl(python: str, folder: Path, rollouts: list[Rollout], threads: int, repeat: int) -> dict[str, float]:
    """Trained tokens per second of a GRPO step, ours and TRL's."""
    config = Config(
        env=EnvConfig("benchmark"),
        model=ModelConfig(str(folder)),
        algorithm=AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=8, epsilon=1e-4)),
        learner=LearnerConfig(batch_rollouts=len(rollouts), lr=LR, threads=threads, max_grad_norm=1e9),
    )
    make_deterministic(config)
    learner = Learner(config)
    rollouts = as_sampled(learner.policy, rollouts)
    (folder / "rollouts.json").write_text(json.dumps({"lr": LR, "rollouts": [told(r) for r in rollouts]}))
    script = Path(__file__).with_name("trl_update.py")
    ours, theirs = list[float](), list[float]()
    with subprocess.Popen(
        [python, str(script), str(folder), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin
        assert peer.stdout
        for number in range(repeat + 1):
            peer.stdin.write("update\n")
            peer.stdin.flush()
            answer = json.loads(peer.stdout.readline())
            begin = time.perf_counter()
            metrics = learner.step(rollouts).metrics
            ours.append(time.perf_counter() - begin)
            theirs.append(answer["seconds"])
            if number == 0:
                require_same("gradients", metrics["grad_norm"], answer["norm"])
    acted = sum(r.action_tokens for r in rollouts)
    lengths = [r.tokens for r in rollouts]
    told_of_them = {"acted": acted, "mean": sum(lengths) / len(lengths), "longest": max(lengths)}
    return told_of_them | {"grpo": acted / min(ours), "trl": acted / min(theirs)}


def as_sampled(policy: PreTrainedModel, rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts with the log-probabilities of their action tokens under the policy."""
    result = []
    for rollout in rollouts:
        (batch,) = pack([rollout], budget=1_000_000)
        with torch.no_grad():
            found = action_logprobs(policy, Packed(batch, PACKED, torch.device("cpu")), Sampling())[0].tolist()
        own = iter(found)
        segments = tuple(
            Action(s.tokens, tuple(next(own) for _ in s.tokens), s.versions) if isinstance(s, Action) else s
            for s in rollout.segments
        )
        result.append(replace(rollout, segments=segments))
    return result


def told(rollout: Rollout) -> dict[str, object]:
    """A rollout as TRL is given it: what comes after the prompt is the completion, its observations masked."""
    prompt, *rest = rollout.segments
    return {
        "prompt": prompt.tokens,
        "completion": [t for s in rest for t in s.tokens],
        "mask": [int(isinstance(s, Action)) for s in rest for _ in s.tokens],
        "logprobs": [p for s in rest for p in (s.logprobs if isinstance(s, Action) else [0.0] * len(s.tokens))],
        "reward": rollout.reward,
        "group": rollout.group,
    }


Loss = Callable[[PreTrainedModel, list[Rollout], Tensor], Tensor]


class Way:
    """One way to train a model on rollouts."""

    def __init__(self, folder: str, attention: str, loss: Loss, rollouts: list[Rollout], advantages: Tensor) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
        self._model.eval()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LR, fused=True)
        self._loss: Callable[[], Tensor] = lambda: loss(self._model, rollouts, advantages)

    def gradient(self) -> Tensor:
        torch.autograd.backward(self._loss())
        return torch.cat([p.grad.flatten() for p in self._model.parameters()])

    def update(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self._loss())
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
    largest = float(one.abs().max())
    require_same("gradients", largest + float((one - other).abs().max()), largest)


def require_same(what: str, one: float, other: float) -> None:
    """End the benchmark where two numbers differ by more than rounding."""
    difference = abs(one - other) / abs(other)
    if not difference < TOLERANCE:
        sys.exit(f"the two {what} differ by {difference:.2g} of the largest: there is nothing to compare")


def step_seconds(metrics: dict[str, float]) -> float:
    return sum(seconds for name, seconds in metrics.items() if name.startswith("seconds_"))


def make_model(folder: Path, size: str, vocabulary: int) -> None:
    """Write the model that is measured."""
    torch.manual_seed(0)
    shape = SHAPES[size] | {"vocab_size": max(vocabulary, SHAPES[size]["vocab_size"])}
    config = LlamaConfig(**shape, max_position_embeddings=512, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(folder)


def vocabulary_of(rollouts: list[Rollout]) -> int:
    return 1 + max(token for r in rollouts for s in r.segments for token in s.tokens)


def recorded_rollouts(run: Path, count: int) -> list[Rollout]:
    """The first rollouts of a run that can be trained on, as groups of eight in their order."""
    scored = (r for r in read_jsonl(run / "rollouts.jsonl", Rollout) if r.reward is not None and r.action_tokens)
    return [replace(r, group=str(index // 8)) for index, r in enumerate(islice(scored, count))]


def make_rollouts(count: int) -> list[Rollout]:
    """Rollouts of four turns, shortest first: about as the calculator's, half of the tokens sampled."""
    draw = random.Random(0)
    rollouts = [make_rollout(draw, index) for index in range(count)]
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
        group=str(index // 8),
    )


if __name__ == "__main__":
    main()
