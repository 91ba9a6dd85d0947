"""A tiny policy, rollouts of it, and what a plain forward pass says of them."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, GaeConfig
from moonmill.config import Config, EnvConfig, LearnerConfig, LoraConfig, ModelConfig, TrainConfig
from moonmill.trainer.learner import make_deterministic
from moonmill.types import Action, Observation, Rollout, Sampling, Segment, Status, StopReason, Task

VOCAB = 24
GOOD = 7
"""The token that `sampled` rewards."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    make_deterministic(Config(env=EnvConfig("test-v0"), model=ModelConfig("none")))


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with shared key-value heads, beside a file as tokenizers have them."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        # So large that distributions are far from flat, and top-p has something to cut.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


MakeConfig = Callable[..., Config]


@pytest.fixture
def make_config(model_path: Path) -> MakeConfig:
    """Configs of the tiny policy; SAO without value warm-up unless told otherwise."""
    return partial(config_of, model_path)


def config_of(
    model: Path,
    *,
    algorithm: AlgorithmConfig | None = None,
    critic: CriticConfig | None = None,
    advantage: GaeConfig | None = None,
    sampling: Sampling | None = None,
    learner: LearnerConfig | None = None,
    lora: LoraConfig | None = None,
) -> Config:
    critic = critic or CriticConfig(lr=1e-3, warmup_steps=0)
    return Config(
        env=EnvConfig("test-v0"),
        model=ModelConfig(str(model), max_length=128, lora=lora),
        sampling=sampling or Sampling(),
        algorithm=algorithm or AlgorithmConfig("sao", critic=critic, advantage=advantage),
        learner=learner or LearnerConfig(batch_rollouts=8, lr=1e-3),
        train=TrainConfig(seed=5),
    )


def rollout(
    *segments: Segment,
    reward: float | None = 1.0,
    turn_rewards: Sequence[float] = (),
    status: Status = Status.FINISHED,
    id: str = "r",
    group: str | None = None,
) -> Rollout:
    return Rollout(
        id=id,
        env="test-v0",
        task=Task("?"),
        status=status,
        stop_reason=StopReason.ANSWERED if status is Status.FINISHED else StopReason.MAX_TOKENS,
        segments=segments,
        reward=reward,
        turn_rewards=tuple(turn_rewards),
        group=group,
    )


def action(*tokens: int, logprob: float = -1.0, version: int = 0) -> Action:
    return Action(tokens, (logprob,) * len(tokens), (version,) * len(tokens))


def observation(*tokens: int) -> Observation:
    return Observation(tokens)


def plain_logprobs(model_path: Path, tokens: Sequence[int], sampling: Sampling) -> Tensor:
    """Log-probability of each token but the first, by transformers alone: one sequence, no packing."""
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        logits = _plain(model_path)(input_ids=ids).logits[0, :-1]
    everything = processed_logprobs(logits, sampling.temperature, sampling.top_p, sampling.top_k, keep=ids[0, 1:])
    return everything.gather(-1, ids[0, 1:, None]).squeeze(-1)


@cache
def _plain(model_path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def sampled(
    model_path: Path, seed: int, count: int = 8, *, sampling: Sampling | None = None, group_size: int = 1
) -> tuple[Rollout, ...]:
    """Rollouts of two actions each, of different lengths, with the policy's own log-probabilities.

    The tokens are random and not drawn from the policy; the reward is the share of `GOOD` among the action tokens.
    """
    draw = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (), generator=draw))
        return tuple(torch.randint(1, VOCAB, (length,), generator=draw).tolist())

    made = []
    for index in range(count):
        parts = [tokens(2, 9), tokens(3, 12), tokens(1, 6), tokens(2, 7)]
        everything = [t for part in parts for t in part]
        logprobs = [0.0, *plain_logprobs(model_path, everything, sampling or Sampling()).tolist()]
        segments: list[Segment] = []
        at = 0
        for place, part in enumerate(parts):
            own = tuple(logprobs[at : at + len(part)])
            segments.append(Action(part, own, (0,) * len(part)) if place % 2 else Observation(part))
            at += len(part)
        acted = parts[1] + parts[3]
        made.append(
            rollout(
                *segments,
                reward=acted.count(GOOD) / len(acted),
                status=Status.TRUNCATED if index % 4 == 3 else Status.FINISHED,
                id=str(index),
                group=str(index // group_size),
            )
        )
    return tuple(made)
