"""GAE: milliseconds for a million action tokens in ten thousand rollouts, beside the padded loop one writes first.

    python tests/benchmarks/bench_gae.py [--json] [--repeat 15]

One thread, CPU time. Rollouts of equal lengths, and of log-normal ones (σ = 1): the longest is far above the mean. The
peer pads all of them to the longest and goes through the columns. That both compute the same is checked before anything
is timed: within 1e-9, in float64. The two take turns, and the best of the repetitions counts. The bound is 50 ms.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from moonmill.trainer.algorithms.gae import adaptive_lambda, skip_observation_gae

TOKENS = 1_000_000
ROLLOUTS = 10_000
BOUND_MS = 50.0
TOLERANCE = 1e-9

Gae = Callable[[Tensor, Tensor, Sequence[int], Tensor], Tensor]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # As in the learner's process.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    figures = {name: measure(lengths, args.repeat) for name, lengths in make_lengths().items()}
    if args.json:
        print(json.dumps(figures))
        return
    print(f"{TOKENS:,} action tokens in {ROLLOUTS:,} rollouts, one thread, ms of CPU, best of {args.repeat}")
    print(f"{'lengths':>11} {'longest':>8} {'padded':>9} {'ours':>7}")
    for name, row in figures.items():
        print(f"{name:>11} {row['longest']:8.0f} {row['padded_ms']:9.1f} {row['ours_ms']:7.1f}")
    slowest = max(row["ours_ms"] for row in figures.values())
    print(f"the bound is {BOUND_MS:.0f} ms: {'kept' if slowest < BOUND_MS else 'MISSED'}")


def make_lengths() -> dict[str, list[int]]:
    """Lengths that sum to `TOKENS`."""
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(ROLLOUTS, generator=draw, dtype=torch.float64).exp()
    lengths = (weights / weights.sum() * TOKENS).long().clamp(min=1)
    lengths[lengths.argmax()] += TOKENS - int(lengths.sum())
    return {"equal": [TOKENS // ROLLOUTS] * ROLLOUTS, "log-normal": lengths.tolist()}


def measure(lengths: list[int], repeat: int) -> dict[str, float]:
    """Milliseconds of both ways."""
    draw = torch.Generator().manual_seed(1)
    values, rewards = torch.randn(2, TOKENS, generator=draw)
    lam = adaptive_lambda(lengths, 1.5)
    one, other = (way(values.double(), rewards.double(), lengths, lam) for way in (ours, padded))
    difference = float((one - other).abs().max())
    if not difference < TOLERANCE:
        sys.exit(f"the two differ by {difference:.2g}: there is nothing to compare")
    best = {"ours": float("inf"), "padded": float("inf")}
    for turn in range(repeat):
        # The loop takes so much longer that a few of its turns are enough.
        for name, way in (("ours", ours), ("padded", padded)) if turn < 3 else (("ours", ours),):
            begin = time.thread_time()
            way(values, rewards, lengths, lam)
            best[name] = min(best[name], 1000 * (time.thread_time() - begin))
    return {"longest": max(lengths), "padded_ms": best["padded"], "ours_ms": best["ours"]}


def ours(values: Tensor, rewards: Tensor, lengths: Sequence[int], lam: Tensor) -> Tensor:
    """As the learner does it."""
    return skip_observation_gae(values, rewards, lengths, gamma=1.0, lam=lam)


def padded(values: Tensor, rewards: Tensor, lengths: Sequence[int], lam: Tensor) -> Tensor:
    """One row a rollout, as wide as the longest, column by column."""
    value, reward = (
        pad_sequence(list(torch.split(flat.double(), list(lengths))), batch_first=True) for flat in (values, rewards)
    )
    following = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1)
    inside = torch.arange(value.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    deltas = (reward + following - value) * inside
    advantages = torch.zeros_like(value)
    carried = value.new_zeros(len(lengths))
    for t in range(value.shape[1] - 1, -1, -1):
        carried = deltas[:, t] + lam * carried
        advantages[:, t] = carried
    return advantages[inside].to(values.dtype)


if __name__ == "__main__":
    main()
