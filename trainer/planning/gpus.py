"""GPUs as a plan knows them.

Memory is what PyTorch reports of a card, which is less than its name says; of the RTX 5090 it was looked up. All other
figures were written down without NVIDIA's data sheets at hand and not compared with them: bandwidth, and dense bfloat16
throughput with float32 accumulation, decide speeds alone, which are rough anyway.
"""

from msgspec import Struct

from moonmill.errors import ConfigError
from moonmill.trainer.planning.parts import GIB


class Gpu(Struct, frozen=True):
    """A card."""

    name: str
    memory: int
    """Bytes."""
    bandwidth: float | None = None
    """Bytes a second; None where it is not known, and no speed is told."""
    flops: float | None = None
    """Dense bfloat16 operations a second."""


def _gpu(name: str, gib: float, gigabytes: float, teraflops: float) -> Gpu:
    return Gpu(name, int(gib * GIB), gigabytes * 1e9, teraflops * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("rtx5090", 31.36, 1792, 209.5),
        _gpu("rtx4090", 23.52, 1008, 165.2),
        _gpu("rtx3090", 23.56, 936, 71),
        _gpu("a100-40g", 39.39, 1555, 312),
        _gpu("a100-80g", 79.14, 2039, 312),
        _gpu("h100", 79.10, 3350, 989),
        _gpu("h200", 139.72, 4800, 989),
        _gpu("b200", 178.35, 7700, 2250),
        _gpu("l4", 21.95, 300, 121),
        _gpu("l40s", 44.39, 864, 362),
        _gpu("a6000", 47.40, 768, 154.8),
    )
}
_ALSO = {"a100": "a100-80g", "rtxa6000": "a6000"}


def gpu_named(name: str) -> Gpu:
    """A card of the catalogue.

    Raises:
        ConfigError: it has none of that name.
    """
    plain = name.lower().replace(" ", "").replace("_", "-")
    known = GPUS.get(_ALSO.get(plain, plain))
    if known is None:
        raise ConfigError(f"--gpu {name}: unknown; known are {', '.join(GPUS)}")
    return known


def gpu_here() -> Gpu | None:
    """The first card of this machine, as PyTorch finds it; None where it finds none."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    known = next((gpu for gpu in GPUS.values() if _same(gpu, found.name, found.total_memory)), None)
    return Gpu(found.name, found.total_memory, known.bandwidth if known else None, known.flops if known else None)


def _same(gpu: Gpu, reported: str, memory: int) -> bool:
    """Whether a card goes by that name with its maker: `NVIDIA GeForce RTX 5090`, `NVIDIA A100-SXM4-80GB`."""
    plain = reported.lower().replace(" ", "")
    model = gpu.name.partition("-")[0]
    named = plain.endswith(model) or f"{model}-" in plain or f"{model}80gb" in plain
    return named and abs(gpu.memory - memory) < 0.1 * gpu.memory
