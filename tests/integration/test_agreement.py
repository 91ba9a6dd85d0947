"""What was sampled is what is trained: engine and learner agree on the log-probability of every sampled token, of all
weights as of an adapter that has learned something."""

from functools import partial
from pathlib import Path

import anyio
import pytest
import torch

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import EngineControl
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.processes import ServerProcess
from moonmill.agents.rendering import load_renderer
from moonmill.agents.runner import EpisodeRunner
from moonmill.algorithm_config import AlgorithmConfig, CriticConfig
from moonmill.config import Config, EnvConfig, LoraConfig, ModelConfig
from moonmill.envs import Taskset
from moonmill.registry import make
from moonmill.trainer.engine_commands import engine_argv
from moonmill.trainer.learner import Learner
from moonmill.types import Rollout, Sampling
from tests.integration.conftest import POLICY

TOKENS = 1000
SAMPLINGS = {
    "T=1": Sampling(temperature=1.0, max_tokens=32),
    "T=0.7": Sampling(temperature=0.7, max_tokens=32),
    "top-p 0.9": Sampling(temperature=1.0, top_p=0.9, max_tokens=32),
    "T=1.3 top-k 5": Sampling(temperature=1.3, top_k=5, max_tokens=32),
}
Sampled = dict[str, list[Rollout]]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """Rollouts of one engine process, by the name of the sampling."""
    return anyio.run(play_all, tmp_path_factory.mktemp("engine"))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_log_probabilities_agree_on_unchanged_weights(name: str, sampled: Sampled) -> None:
    rollouts = sampled[name]
    tokens = sum(r.action_tokens for r in rollouts)
    metrics = Learner(config_with(SAMPLINGS[name])).step(rollouts).metrics
    print(f"{name}: max |Δ| {metrics['logprob_diff_max']:.2e} on {tokens} tokens")
    assert tokens >= TOKENS
    assert metrics["logprob_diff_max"] < 1e-3
    assert metrics["masked_share"] == 0.0
    assert metrics["ratio_std"] < 1e-3


def test_log_probabilities_agree_on_an_adapter(tmp_path: Path) -> None:
    """The engine merges it into the base, the learner computes the two beside each other."""
    config = config_with(SAMPLINGS["T=1"], LoraConfig(r=8, alpha=16))
    learner = Learner(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in learner.policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.01)
    learner.version = 1
    learner.export(tmp_path / "v000001")
    rollouts = anyio.run(play_version, config, tmp_path)
    metrics = learner.step(rollouts).metrics
    tokens = sum(r.action_tokens for r in rollouts)
    print(f"LoRA: max |Δ| {metrics['mismatch_max']:.2e} on {tokens} tokens")
    assert tokens >= TOKENS
    assert metrics["mismatch_max"] == metrics["logprob_diff_max"] < 1e-3
    base = Learner(config_with(SAMPLINGS["T=1"])).step(rollouts).metrics
    assert base["logprob_diff_max"] > 1e-2, "the adapter changes what is said"


def config_with(sampling: Sampling, lora: LoraConfig | None = None) -> Config:
    return Config(
        env=EnvConfig("calculator-v0"),
        model=ModelConfig(str(POLICY), max_length=256, lora=lora),
        sampling=sampling,
        algorithm=AlgorithmConfig(critic=CriticConfig(warmup_steps=0)),
    )


async def play_all(folder: Path) -> Sampled:
    argv = engine_argv(config_with(Sampling()))
    async with (
        ServerProcess("engine", argv, log_path=folder / "engine.log", start_timeout=120) as engine,
        InferenceClient(engine.base_url) as client,
    ):
        return {name: await play(config_with(sampling), client) for name, sampling in SAMPLINGS.items()}


async def play_version(config: Config, folder: Path) -> list[Rollout]:
    """Episodes of the version in `folder`."""
    async with (
        ServerProcess("engine", engine_argv(config), log_path=folder / "engine.log", start_timeout=120) as engine,
        EngineControl(engine.base_url) as control,
        InferenceClient(engine.base_url) as client,
    ):
        await control.load_version(1, folder / "v000001")
        await client.use_version(1)
        return await play(config, client)


async def play(config: Config, client: InferenceClient) -> list[Rollout]:
    """Episodes of the shipped policy until there are enough tokens."""
    factory = partial(make, config.env.id)
    taskset = Taskset(factory, "eval", 0)
    agent = PolicyAgent(client, load_renderer(config.model.path), config.sampling, config.model.max_length)
    runner = EpisodeRunner(config.env.id, factory, agent)
    rollouts: list[Rollout] = []

    async def one(index: int) -> None:
        rollouts.append(await runner.run(taskset.task(index), id=str(index), seed=index))

    while sum(r.action_tokens for r in rollouts) < TOKENS:
        async with anyio.create_task_group() as group:
            for index in range(len(rollouts), len(rollouts) + 16):
                group.start_soon(one, index)
    return rollouts
