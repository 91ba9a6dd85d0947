"""What a learner trains: the policy's weights or an adapter on them, and a critic."""

import copy

from transformers import PreTrainedModel

from moonmill.algorithm_config import CriticConfig
from moonmill.config import Config
from moonmill.seeding import derive_seed
from moonmill.trainer.backends import backend_of
from moonmill.trainer.critic import AdaptedCritic, Critic, WholeCritic, places_of
from moonmill.trainer.critic_folder import load_critic
from moonmill.trainer.models import export_dtype
from moonmill.trainer.position_wise import backbone_of
from moonmill.trainer.trying import refuse_wrong_gradients
from moonmill.trainer.weights import FullWeights, TrainedWeights


def make_parts(
    policy: PreTrainedModel, critic: CriticConfig | None, config: Config
) -> tuple[TrainedWeights, Critic | None]:
    """Make what is trained of a model that was just loaded: the policy's part, and the critic where there is one.

    Args:
        policy: the model; an adapter is put into it.
        critic: the critic's config; None has none.
        config: the run's.

    Raises:
        ConfigError: the model has not the modules that are to be trained, or the critic to begin with cannot be had.
    """
    made: Critic | None = None
    # A critic with weights of its own copies those of the base: before there is an adapter in it.
    if critic and (critic.lora is None or config.model.lora is None):
        made = _apart(policy, critic, config)
    if config.model.lora is None:
        weights: TrainedWeights = FullWeights(policy, config.model.path)
    else:
        from moonmill.trainer.lora import Adapter  # and peft, which takes a second to import

        places = places_of(policy, critic) if critic and critic.lora else {}
        seed = derive_seed(config.train.seed, "adapter")
        weights = adapter = Adapter(policy, config.model.lora, config.model.path, seed)
        backend_of(config).adapt(adapter.peft)
        if critic and critic.lora:
            made = AdaptedCritic(policy, adapter.beside(places, critic.lora, _seed(config)))
    if config.model.lora is not None:
        refuse_wrong_gradients(policy, backbone_of(policy), weights.parameters, config.model)
    if isinstance(made, AdaptedCritic):
        with made.at_work():
            refuse_wrong_gradients(policy, made.body(), made.adapter_parameters, config.model)
    if critic and critic.path:
        assert made is not None
        load_critic(made, critic)
    return weights, made


def _apart(policy: PreTrainedModel, critic: CriticConfig, config: Config) -> Critic:
    """A critic that shares nothing with the policy."""
    if critic.lora is None:
        return WholeCritic(policy, critic)
    from moonmill.trainer.lora import SideAdapter

    base = copy.deepcopy(backbone_of(policy)).to(export_dtype(config.model)).eval().requires_grad_(False)
    return AdaptedCritic(policy, SideAdapter(base, places_of(base, critic), critic.lora, _seed(config)))


def _seed(config: Config) -> int:
    return derive_seed(config.train.seed, "critic adapter")
