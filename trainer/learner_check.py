"""What can be known of the learner before it is started: that its device is there, and its backend can do what is
wanted of it. Imports nothing heavy, but torch where a GPU is wanted.
"""

from importlib.util import find_spec

from moonmill.config import Config
from moonmill.errors import ConfigError, MissingExtraError
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.devices import learner_device, require_device


def describe_learner(config: Config) -> str:
    """What the learner will be.

    Raises:
        ConfigError: it cannot be.
        MissingExtraError: a package that it needs is not installed.
    """
    learner, device = config.learner, learner_device(config)
    require_device("learner.device" if learner.device else "model.device", device)
    facts = [f"{learner.backend} on {device}"]
    if learner.backend == "unsloth":
        _check_unsloth(config, device)
    if learner.quantization is not None:
        key = f"learner.quantization: {learner.quantization}"
        _require_adapters(config, key, "keeps a frozen base")
        if find_spec("bitsandbytes") is None:
            raise MissingExtraError(key, "quantization")
        facts.append(f"the base in {learner.quantization.removesuffix('bit')} bits")
    if learner.gradient_checkpointing:
        facts.append("layers computed again for gradients")
    return ", ".join(facts)


def _check_unsloth(config: Config, device: str) -> None:
    key = "learner.backend: unsloth"
    if device == "cpu":
        raise ConfigError(f"{key}: its kernels are for GPUs, and the learner computes on the CPU: set it to torch")
    if find_spec("unsloth") is None:
        raise MissingExtraError(key, "unsloth")
    if config.model.dtype != "bfloat16":
        raise ConfigError(f"{key}: its kernels compute in 16 bits: set model.dtype to bfloat16, or it to torch")
    _require_adapters(config, key, "is for adapters on a frozen base")


def _require_adapters(config: Config, key: str, why: str) -> None:
    """Refuse a policy or a critic that is not an adapter."""
    if config.model.lora is None:
        raise ConfigError(
            f"{key} {why}, but model.lora is null, so that all weights are trained: set model.lora to {{}}"
        )
    critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
    if critic and critic.lora is None:
        raise ConfigError(
            f"{key} {why}, but algorithm.critic.lora is null, so that the critic is a float32 copy of the model, which "
            "such a base cannot give: set algorithm.critic.lora to {}"
        )
