"""Whether vLLM leaves the learner room on a card that they share, by a plan for the card that is here."""

from moonmill.config import Config
from moonmill.errors import ConfigError
from moonmill.trainer.devices import learner_device, shares_card, shares_memory
from moonmill.trainer.planning.parts import gib, total


def describe_memory(config: Config) -> str:
    """How vLLM and the learner share a card. Imports neither torch nor transformers unless they do.

    Raises:
        ConfigError: vLLM is to take so much of it that the learner's need is more than the card has.
    """
    if config.engine.type == "embedded" and not config.engine.urls and shares_memory(config):
        how = "take turns in it" if config.engine.sleep_while_learning else "share it, and no part is set aside"
        return f"{learner_device(config)} has engine and learner, which {how}"
    if config.engine.type != "vllm" or not shares_card(config):
        return "engine and learner share no card"
    from moonmill.trainer.planning.changes import share_that_fits
    from moonmill.trainer.planning.plan import planner

    try:
        planned = planner(config, None)
        card = next(card for card in planned.cards(config) if "learner" in card.holds)
        needed = total(planned.learner(config))
    except ConfigError as e:  # a model that runs, but has no plan, is not refused
        return f"no plan for it: {e}"
    if config.engine.sleep_while_learning and card.used <= card.memory:
        return f"vLLM and the learner take turns, and {gib(card.used)} of {gib(card.memory)} by a plan"
    share = config.engine.vllm.gpu_memory
    left = card.memory - (card.used - needed)
    if needed <= left:
        return f"vLLM leaves the learner {gib(left)} of {gib(card.memory)}, and it takes {gib(needed)} by a plan"
    fitting = share_that_fits(planned, config)
    todo = f"set it to {fitting:g}" if fitting else "no share will do: `moonmill plan` tells what would"
    raise ConfigError(
        f"engine.vllm.gpu_memory: {share:g} of the card's {gib(card.memory)} leaves the learner {gib(max(0, left))}, "
        f"and it takes {gib(needed)}: {todo}"
    )
