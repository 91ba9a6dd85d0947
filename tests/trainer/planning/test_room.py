"""What vLLM leaves the learner on a card that they share."""

from pathlib import Path

import pytest
import torch

from moonmill.errors import ConfigError
from moonmill.trainer.planning import plan
from moonmill.trainer.planning.advice import advice
from moonmill.trainer.planning.gpus import Gpu, gpu_named
from moonmill.trainer.planning.learner_memory import CONTEXT
from moonmill.trainer.planning.parts import GIB, total
from moonmill.trainer.planning.room import describe_memory
from moonmill.trainer.validate import validate
from tests.trainer.planning.settings import config_of

POLICY = str(Path(__file__).parents[3] / "examples" / "calculator" / "policy")
QWEN = ("Qwen/Qwen3-1.7B", "learner.quantization=4bit")


def test_a_share_that_leaves_the_learner_too_little_is_refused_with_the_one_to_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "gpu_here", lambda: gpu_named("rtx5090"))
    with pytest.raises(ConfigError) as refused:
        describe_memory(config_of(*QWEN, "engine.vllm.gpu_memory=0.9"))
    said, _, share = str(refused.value).rpartition(": set it to ")
    assert said.startswith(
        "engine.vllm.gpu_memory: 0.9 of the card's 31.36 GiB leaves the learner 3.14 GiB, and it takes "
    )
    assert 0.5 < float(share) < 0.9
    fits = config_of(*QWEN, f"engine.vllm.gpu_memory={share}")
    assert plan.planner(fits, None).plan().fits
    assert describe_memory(fits).startswith("vLLM leaves the learner ")


def test_those_that_take_turns_need_the_larger_of_two(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "gpu_here", lambda: gpu_named("rtx5090"))
    turns = ("async.mode=sync", "engine.sleep_while_learning=true")
    together, alternate = (
        plan.planner(config_of(*QWEN, "engine.vllm.gpu_memory=0.85", *more), None) for more in ((), turns)
    )
    learner = total(together.learner(together.config))
    [side_by_side], [in_turns] = together.cards(together.config), alternate.cards(alternate.config)
    engine = side_by_side.used - learner
    passing = sum(part.bytes for part in together.learner(together.config) if part.passing)
    assert in_turns.used == max(engine + learner - passing, CONTEXT + learner)
    assert side_by_side.missing
    assert not in_turns.missing
    assert describe_memory(alternate.config).startswith("vLLM and the learner take turns, and ")
    with pytest.raises(ConfigError, match="leaves the learner"):
        describe_memory(config_of(*QWEN, "engine.vllm.gpu_memory=0.99", *turns))


def test_turns_are_advised_where_they_are_enough():
    made = plan.planner(config_of(*QWEN, "engine.vllm.gpu_memory=0.85", "train.eval_every=5"), "rtx5090")
    told = [line for line in advice(made, made.plan()) if "sleep" in line]
    assert told == [
        "it fits with async.mode: sync, engine.sleep_while_learning: true and train.eval_every: 0, which has the two "
        "take turns"
    ]


def test_a_card_of_its_own_may_be_taken_whole():
    for alone in ("learner.device=cuda:1", "engine.urls=[http://127.0.0.1:8000]"):
        found = describe_memory(config_of(*QWEN, "engine.vllm.gpu_memory=0.9", alone))
        assert found == "engine and learner share no card"


def test_an_embedded_engine_is_told_as_one_that_takes_what_it_needs():
    embedded = ("engine.type=embedded", "model.device=cpu")
    together = describe_memory(config_of(*QWEN, *embedded))
    assert together == "cpu has engine and learner, which share it, and no part is set aside"
    in_turns = describe_memory(config_of(*QWEN, *embedded, "async.mode=sync", "engine.sleep_while_learning=true"))
    assert in_turns == "cpu has engine and learner, which take turns in it"


def test_a_run_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(plan, "gpu_here", lambda: Gpu("a small one", 2 * GIB))
    config = config_of(POLICY, "model.max_length=256", "engine.vllm.gpu_memory=0.9", "sampling.max_tokens=32")
    [memory] = [check for check in validate(config) if check.name == "memory"]
    assert memory.ok is False
    assert memory.detail.startswith("engine.vllm.gpu_memory: 0.9 of the card's 2.00 GiB leaves the learner 0.20 GiB")
