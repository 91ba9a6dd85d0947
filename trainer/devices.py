"""Where the processes of a run compute, and whether that is there.

One card, or none, is `model.device`. `learner.device` and `engine.devices` give the learner and the engines places of
their own, in place of it.
"""

from moonmill.agents.engine.arguments import DEVICE
from moonmill.config import Config
from moonmill.errors import ConfigError


def learner_device(config: Config) -> str:
    """Where the learner computes."""
    return config.learner.device or config.model.device


def engine_devices(config: Config) -> tuple[str, ...]:
    """Where the engines that a run starts compute, one for each."""
    devices = config.engine.devices or (config.model.device,)
    return tuple(devices[number % len(devices)] for number in range(config.engine.replicas))


def shares_card(config: Config) -> bool:
    """Whether the learner computes on the GPU of an engine that the run starts."""
    return not config.engine.urls and _card(learner_device(config)) != "" and shares_memory(config)


def shares_memory(config: Config) -> bool:
    """Whether the learner computes where an engine that the run starts does: on the same GPU, or on the CPU both."""
    return _card(learner_device(config)) in map(_card, engine_devices(config))


def describe_devices(config: Config) -> str:
    """Where the engines compute.

    Raises:
        ConfigError: a device is not there, or is none, or they make no sense together.
    """
    engine = config.engine
    for device in engine.devices:
        require_device("engine.devices", device)
    if engine.devices and engine.urls:
        raise ConfigError(
            f"engine.devices: {', '.join(engine.devices)} is for engines that the run starts, and engine.urls names "
            "some that run already: leave one of the two keys out"
        )
    if len(engine.devices) > engine.replicas:
        raise ConfigError(
            f"engine.devices: there are {len(engine.devices)} of them for {engine.replicas} engines: raise "
            "engine.replicas, or leave some out"
        )
    if len({device.partition(":")[0] for device in engine.devices}) > 1:
        raise ConfigError(
            f"engine.devices: {', '.join(engine.devices)}: engines on a CPU and on a GPU round otherwise, and what one "
            "has begun the other may have to go on with: give devices of one kind"
        )
    if not engine.devices:
        require_device("model.device", config.model.device)
    return ", ".join(dict.fromkeys(engine_devices(config)))


def require_device(key: str, device: str) -> None:
    """Refuse a device that is not there, or is none, with the key that names it. Raises `ConfigError`."""
    known = DEVICE.fullmatch(device)
    if known is None:
        raise ConfigError(f"{key}: {device!r:.60} is unknown: give cpu, cuda, or cuda:1 for the second GPU")
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        why = "this machine has none that it can use" if torch.version.cuda else "this PyTorch is built without CUDA"
        cpu = "[cpu]" if key == "engine.devices" else "cpu"
        raise ConfigError(
            f"{key}: {device}: PyTorch finds no GPU: {why}. Set {key} to {cpu}, or install the driver and a "
            "PyTorch with CUDA"
        )
    count = torch.cuda.device_count()
    if int(known[1] or 0) >= count:
        raise ConfigError(f"{key}: {device}: there are {count} GPUs here, cuda:0 to cuda:{count - 1}")


def _card(device: str) -> str:
    """The GPU that a device is; empty of none."""
    return "" if device == "cpu" else f"cuda:{device.partition(':')[2] or 0}"
