"""The learner's formulas beside what a real learner takes on a CPU, byte by byte."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, CriticLoraConfig, GroupZscoreConfig
from moonmill.config import Config, EnvConfig, LearnerConfig, LoraConfig, ModelConfig
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.learner import Learner
from moonmill.trainer.planning.learner_memory import kept, learner_parts
from moonmill.trainer.planning.parts import BYTES
from moonmill.trainer.planning.shapes import Shape, shape_of
from tests.trainer.conftest import action, observation, rollout

COUNT, LENGTH, VOCABULARY, LAYERS = 8, 64, 256, 6
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=32)),
}


def config_of(folder: Path, *, lora: bool, dtype: Any = "float32", again: bool = False) -> Config:
    return Config(
        env=EnvConfig("test-v0"),
        model=ModelConfig(str(folder), max_length=LENGTH, dtype=dtype, lora=LoraConfig(r=8) if lora else None),
        algorithm=AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4)),
        learner=LearnerConfig(batch_rollouts=COUNT, lr=1e-3, gradient_checkpointing=again),
    )


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    made: PreTrainedModel = FAMILIES[request.param]()
    folder: Path = tmp_path_factory.mktemp(request.param)
    made.save_pretrained(folder)
    return folder


def batch() -> list[Any]:
    """Rollouts of one length, so that attention pads nothing, with few action tokens, so that logits are few."""
    return [
        rollout(
            observation(*range(1, LENGTH - 3)), action(5, 6, 7, 8), reward=float(i % 2), id=str(i), group=str(i // 4)
        )
        for i in range(COUNT)
    ]


def shape_for(config: Config) -> Shape:
    critic = resolve(config.algorithm, COUNT).critic
    return shape_of(AutoConfig.from_pretrained(config.model.path), config.model.lora, critic)


class Live(TorchDispatchMode):
    """Bytes of the tensors that are alive and were made inside, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage(), given)
        return made

    def _count(self, storage: Any, given: set[int]) -> None:
        key = storage._cdata
        if key in self._seen or key in given:
            return
        self._seen.add(key)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._drop, key, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@contextmanager
def saved(model: nn.Module) -> Iterator[dict[int, int]]:
    """What autograd keeps inside, by storage: bytes of each, without the model's own weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: list[Tensor] = []
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held.append(tensor)  # so that no address is used twice
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_autograd_keeps_is_within_a_tenth(model: Path, lora: bool, dtype: str):
    config = config_of(model, lora=lora, dtype=dtype)
    learner = Learner(config)
    shape = shape_for(config)
    with saved(learner.policy) as sizes:
        learner.step(batch())
    rank, width = (8 if lora else None), BYTES[dtype]
    sizing = {"tokens": COUNT * LENGTH, "longest": LENGTH, "width": width, "hidden": 64}
    planned = sum(kept(x, x.policy if lora else x.projections, rank, **sizing) for x in shape.layers)
    assert planned == pytest.approx(sum(sizes.values()), rel=0.1)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_weights_gradients_and_moments_are_exact(model: Path, lora: bool):
    config = config_of(model, lora=lora)
    learner = Learner(config)
    gradients: dict[int, int] = {}
    for p in learner.policy.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: gradients.update({id(p): p.grad.nbytes}))
    learner.step(batch())
    parts = {
        p.name: p.bytes for p in learner_parts(config, resolve(config.algorithm, COUNT), shape_for(config), gpu=False)
    }
    weights = sum(p.nbytes for p in learner.policy.parameters())
    assert parts["weights"] + parts.get("policy adapter", 0) == weights
    assert parts["gradients"] == sum(gradients.values())
    state = learner._policy_update.state_dict()["adam"]["state"].values()
    assert parts["AdamW"] == sum(t.nbytes for s in state for name, t in s.items() if name != "step")


def test_a_critic_on_the_policys_base_is_exact(model: Path):
    config = config_of(model, lora=True)
    critic = CriticConfig(warmup_steps=0, lora=CriticLoraConfig(r=4))
    config = Config(
        env=config.env, model=config.model, algorithm=AlgorithmConfig("sao", critic=critic), learner=config.learner
    )
    learner = Learner(config)
    assert learner.critic
    parts = {p.name: p for p in learner_parts(config, resolve(config.algorithm, COUNT), shape_for(config), gpu=False)}
    assert parts["critic adapter"].bytes == sum(p.nbytes for p in learner.critic.trained())


def test_a_critic_of_its_own_is_exact(model: Path):
    config = config_of(model, lora=False)
    algorithm = AlgorithmConfig("sao", critic=CriticConfig(warmup_steps=0))
    config = Config(env=config.env, model=config.model, algorithm=algorithm, learner=config.learner)
    learner = Learner(config)
    assert learner.critic
    resolved = resolve(algorithm, COUNT)
    parts = {p.name: p for p in learner_parts(config, resolved, shape_for(config), gpu=False)}
    assert parts["critic"].bytes == sum(p.nbytes for p in learner.critic.parameters())
    trained = sum(p.nbytes for p in learner.critic.trained())
    assert parts["AdamW"].bytes == 2 * (trained + parts["weights"].bytes)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_the_peak_of_a_step_is_within_a_tenth(model: Path, again: bool):
    config = config_of(model, lora=True, again=again)
    learner = Learner(config)
    parts = learner_parts(config, resolve(config.algorithm, COUNT), shape_for(config), gpu=False)
    # Plans take every token for an action's; here they are few, and so are their logits.
    planned = sum(p.bytes for p in parts if p.name in ("gradients", "activations"))
    learner.step(batch())  # AdamW's moments come into being
    with Live() as live:
        learner.step(batch())
    assert planned == pytest.approx(live.most, rel=0.1)
