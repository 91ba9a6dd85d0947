"""GPUs as a plan knows them.

Memory is what PyTorch reports of a card, which is less than its name says; of the RTX 5090 it was looked up. Bandwidth
and throughput are those of the data sheet that stands with each, written down from memory of it; they decide speeds
alone. Throughput is dense, in bfloat16 with float32 accumulation: where a sheet has that with sparsity only, half of it
(L4: 242, A6000: 309.7). Cards of one name with other memory are others: an H100 PCIe or NVL is not this H100.
"""

from msgspec import Struct

from moonmill.errors import ConfigError
from moonmill.trainer.planning.parts import GIB


class Rates(Struct, frozen=True):
    """What a card or a processor reaches at most."""

    bandwidth: float
    """Bytes a second."""
    flops: float
    """Operations a second."""
    source: str
    """A data sheet, or how they were measured."""


class Gpu(Struct, frozen=True):
    """A card."""

    name: str
    memory: int
    """Bytes."""
    rates: Rates | None = None
    """None where they are not known, and no speed is told."""


def _gpu(name: str, gib: float, gigabytes: float, teraflops: float, sheet: str) -> Gpu:
    return Gpu(name, int(gib * GIB), Rates(gigabytes * 1e9, teraflops * 1e12, f"NVIDIA's {sheet}"))


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("rtx5090", 31.36, 1792, 209.5, "RTX Blackwell GPU Architecture, GeForce RTX 5090"),
        _gpu("rtx4090", 23.52, 1008, 165.2, "Ada GPU Architecture, GeForce RTX 4090"),
        _gpu("rtx3090", 23.56, 936, 71, "Ampere GA102 GPU Architecture, GeForce RTX 3090"),
        _gpu("a100-40g", 39.39, 1555, 312, "A100 Tensor Core GPU data sheet, 40 GB"),
        _gpu("a100-80g", 79.14, 2039, 312, "A100 Tensor Core GPU data sheet, 80 GB SXM"),
        _gpu("h100", 79.10, 3350, 989.4, "H100 Tensor Core GPU Architecture, SXM5"),
        _gpu("h200", 139.72, 4800, 989.4, "H200 Tensor Core GPU data sheet, SXM"),
        _gpu("b200", 178.35, 7700, 2250, "HGX B200 data sheet, a GPU of eight"),
        _gpu("l4", 21.95, 300, 121, "L4 Tensor Core GPU data sheet"),
        _gpu("l40s", 44.39, 864, 362.05, "L40S data sheet"),
        _gpu("a6000", 47.40, 768, 154.8, "RTX A6000 data sheet"),
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
    return Gpu(found.name, found.total_memory, known.rates if known else None)


def _same(gpu: Gpu, reported: str, memory: int) -> bool:
    """Whether a card goes by that name with its maker: `NVIDIA GeForce RTX 5090`, `NVIDIA A100-SXM4-80GB`."""
    plain = reported.lower().replace(" ", "")
    model = gpu.name.partition("-")[0]
    named = plain.endswith(model) or f"{model}-" in plain or f"{model}80gb" in plain
    return named and abs(gpu.memory - memory) < 0.1 * gpu.memory
