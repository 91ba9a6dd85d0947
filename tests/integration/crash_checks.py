"""What must hold of a run that has finished, however often it was killed."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from moonmill.algorithm_config import GroupZscoreConfig
from moonmill.config import Config
from moonmill.envs import Taskset
from moonmill.jsonl import read_jsonl
from moonmill.registry import make
from moonmill.seeding import derive_seed
from moonmill.trainer.checkpoint import damage_of, latest
from moonmill.trainer.learner import Learner, make_deterministic
from moonmill.trainer.records import StepRecord
from moonmill.types import Action, Rollout
from tests.integration.conftest import assert_accounted_for, events, steps


def check_logs(run: Path, config: Config, total: int) -> None:
    """Every rollout ended once, every step is there once, and versions never go back.

    Args:
        run: its directory.
        config: what it was begun with.
        total: learner steps it was to make.
    """
    assert_accounted_for(run)
    made = steps(run)
    assert [s.step for s in made] == list(range(1, total + 1))
    versions = [s.version for s in made]
    assert versions == sorted(versions)
    assert versions[-1] == config.train.steps
    # Rewards may be alike by chance. Nothing else is to be warned of: no damage, no step that gave something else.
    assert not [e for e in events(run, "warning") if "every reward" not in e.data["text"]]
    rollouts = {r.id: r for r in read_jsonl(run / "rollouts.jsonl", Rollout)}
    for before, step in zip([0, *versions], made, strict=False):
        assert max(step.staleness, default=0) <= config.async_.max_staleness
        for name, staleness in zip(step.consumed, step.staleness, strict=True):
            sampled = [v for s in rollouts[name].segments if isinstance(s, Action) for v in s.versions]
            assert sampled == sorted(sampled)
            assert max(sampled) <= before == min(sampled) + staleness
    advantage = config.algorithm.advantage
    size = advantage.group_size if isinstance(advantage, GroupZscoreConfig) else 1
    tasks = Taskset(partial(make, config.env.id, **config.env.args), "train", config.train.seed)
    for rollout in rollouts.values():
        assert rollout.task == tasks.task(rollout.index // size)
        assert rollout.seed == derive_seed(config.train.seed, "rollout", rollout.index)
    # What was in flight at the end, and nothing else, has no rollout.
    assert max(r.index for r in rollouts.values()) + 1 - len(rollouts) <= config.async_.max_concurrent


def check_weights(run: Path, config: Config) -> None:
    """What is saved at the end is, bit for bit, that of a learner that does the log's steps from the beginning."""
    final = latest(run)
    assert final is not None
    assert damage_of(final) is None
    make_deterministic(config)
    again = Learner(config)
    rollouts = {r.id: r for r in read_jsonl(run / "rollouts.jsonl", Rollout)}
    for step in _that_count(steps(run)):
        if step.rolled_back_to is not None:
            again.count_as(step.step or 0, step.version, step.lr_scale)
            continue
        done = again.step([rollouts[name] for name in step.consumed])
        assert (done.step, done.version) == (step.step, step.version)
        for name in ("policy_loss", "grad_norm", "value_loss", "critic_grad_norm", "lr"):
            assert done.metrics.get(name) == step.metrics.get(name), (step.step, name)
    own = run.parent / "again"
    (own / "checkpoints").mkdir(parents=True)
    assert differing(final, again.checkpoint(own)) == []


def _that_count(made: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps behind the weights at the end: without those that a later one has gone back behind."""
    kept: list[StepRecord] = []
    for step in made:
        if (back := step.rolled_back_to) is not None:
            kept = [before for before in kept if (before.step or 0) <= back]
        kept.append(step)
    return kept


def differing(one: Path, other: Path) -> list[str]:
    """Files of two checkpoints that do not hold the same."""
    names = {str(p.relative_to(f)) for f in (one, other) for p in f.rglob("*") if p.is_file()}
    return sorted(name for name in names - {"files.json"} if not _same(one / name, other / name))


def _same(one: Path, other: Path) -> bool:
    if one.suffix != ".pt":
        return one.read_bytes() == other.read_bytes()
    return equal(*(torch.load(file, weights_only=True) for file in (one, other)))


def equal(one: object, other: object) -> bool:
    """Nested containers of tensors and numbers, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other
