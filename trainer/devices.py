"""Whether the device that a config names is there."""

from moonmill.agents.engine.arguments import DEVICE
from moonmill.config import Config
from moonmill.errors import ConfigError


def describe_device(config: Config) -> str:
    """The device of a config, which is there.

    Raises:
        ConfigError: it is not, or is none.
    """
    device = config.model.device
    known = DEVICE.fullmatch(device)
    if known is None:
        raise ConfigError(f"model.device: {device!r:.60} is unknown: give cpu, cuda, or cuda:1 for the second GPU")
    if device == "cpu":
        return device
    import torch

    if not torch.cuda.is_available():
        why = "this machine has none that it can use" if torch.version.cuda else "this PyTorch is built without CUDA"
        raise ConfigError(
            f"model.device: {device}: PyTorch finds no GPU: {why}. Set model.device to cpu, or install the driver "
            "and a PyTorch with CUDA"
        )
    count = torch.cuda.device_count()
    if int(known[1] or 0) >= count:
        raise ConfigError(f"model.device: {device}: there are {count} GPUs here, cuda:0 to cuda:{count - 1}")
    return device
