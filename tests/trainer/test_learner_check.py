"""What is known of the learner before it is started, and of where processes compute."""

import pytest
from msgspec.structs import replace

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, CriticLoraConfig
from moonmill.config import Config, EngineConfig, EnvConfig, LearnerConfig, LoraConfig, ModelConfig
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.trainer.devices import shares_card
from moonmill.trainer.learner_check import describe_learner

CONFIG = Config(EnvConfig("test-v0"), ModelConfig("none", lora=LoraConfig(), device="cuda", dtype="bfloat16"))
BESIDE = AlgorithmConfig("sao", critic=CriticConfig(lora=CriticLoraConfig()))
QUANTIZED, UNSLOTH = LearnerConfig(quantization="4bit"), LearnerConfig(backend="unsloth")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, on which everything is installed."""
    monkeypatch.setattr("moonmill.trainer.learner_check.require_device", lambda key, device: None)
    monkeypatch.setattr("moonmill.trainer.learner_check.find_spec", lambda name: object())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("learner", [QUANTIZED, UNSLOTH])
def test_a_frozen_base_wants_adapters_on_it(learner: LearnerConfig) -> None:
    config = replace(CONFIG, learner=learner)
    with pytest.raises(ConfigError, match=r"but model\.lora is null, so that all weights are trained"):
        describe_learner(replace(config, model=replace(config.model, lora=None)))
    with pytest.raises(ConfigError, match=r"algorithm.critic.lora is null, so that the critic is a float32 copy"):
        describe_learner(config)
    for algorithm in (BESIDE, AlgorithmConfig("grpo")):
        describe_learner(replace(config, algorithm=algorithm))


def test_a_quantized_base_is_told() -> None:
    model = replace(CONFIG.model, device="cpu")
    config = replace(CONFIG, model=model, algorithm=BESIDE, learner=LearnerConfig(quantization="8bit"))
    assert describe_learner(config) == "torch on cpu, the base in 8 bits"


@pytest.mark.usefixtures("gpu")
def test_what_unsloth_cannot_do_is_refused() -> None:
    config = replace(CONFIG, algorithm=BESIDE, learner=UNSLOTH)
    assert describe_learner(config) == "unsloth on cuda"
    with pytest.raises(ConfigError, match="kernels are for GPUs, and the learner computes on the CPU: set it to torch"):
        describe_learner(replace(config, learner=replace(UNSLOTH, device="cpu")))
    with pytest.raises(ConfigError, match=r"compute in 16 bits: set model.dtype to bfloat16"):
        describe_learner(replace(config, model=replace(CONFIG.model, dtype="float32")))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("learner", "extra"), [(UNSLOTH, "unsloth"), (QUANTIZED, "quantization")])
def test_an_extra_that_is_missing_is_told(learner: LearnerConfig, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonmill.trainer.learner_check.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'moonmill\[{extra}\]'"):
        describe_learner(replace(CONFIG, algorithm=BESIDE, learner=learner))


@pytest.mark.parametrize(
    ("learner", "engine", "shared"),
    [
        ("", EngineConfig(), True),
        ("cuda:0", EngineConfig(), True),
        ("cuda:1", EngineConfig(), False),
        ("cuda:1", EngineConfig(devices=("cuda:0", "cuda:1"), replicas=2), True),
        ("", EngineConfig(urls=("http://a:1",)), False),
        ("cpu", EngineConfig(devices=("cpu",)), False),
    ],
)
def test_it_is_known_whether_learner_and_engine_share_a_gpu(learner: str, engine: EngineConfig, shared: bool) -> None:
    assert shares_card(replace(CONFIG, learner=LearnerConfig(device=learner), engine=engine)) is shared
