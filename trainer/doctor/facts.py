"""What can be found out about a machine, as plain data: what probes fill in and judgments are made of."""

import re

from msgspec import Struct

HUB = "https://huggingface.co"


class Unknown(Struct, frozen=True):
    """In the place of a fact that could not be found out."""

    reason: str
    late: bool = False
    """It took too long, which a busy machine or a slow disk can be the cause of."""
    said: str = ""
    """What was said before."""


class Package(Struct, frozen=True):
    """A package that one of our extras brings."""

    name: str
    version: str = ""
    """Empty where it is not installed."""
    problem: str = ""
    """Why it cannot be imported."""
    tried: bool = True
    """Whether there was time to import it."""


class Extra(Struct, frozen=True):
    """One of our extras, with what it brings."""

    name: str
    packages: tuple[Package, ...]

    @property
    def works(self) -> bool:
        """Whether all of it is there and can be imported."""
        return all(package.version and not package.problem for package in self.packages)


class Interpreter(Struct, frozen=True):
    """The Python that runs this."""

    version: str
    path: str
    platform: str
    moonmill: str


class Gpu(Struct, frozen=True):
    """A card, as the driver tells of it."""

    name: str
    memory_mib: int
    free_mib: int
    capability: str
    """Compute capability, such as `12.0` of an RTX 5090."""


class Driver(Struct, frozen=True):
    """NVIDIA's driver, with the cards that it sees."""

    version: str
    gpus: tuple[Gpu, ...]


class Torch(Struct, frozen=True):
    """A PyTorch, as its own interpreter tells of it."""

    version: str
    cuda: str = ""
    """The CUDA that it is built for; empty: for none."""
    architectures: tuple[str, ...] = ()
    """What its kernels are built for: `sm_90`, `compute_120`."""
    gpus: int = 0
    """Cards that it sees."""
    problem: str = ""
    """What the first computation on the first card failed with."""


class Engine(Struct, frozen=True):
    """An environment of vLLM."""

    name: str
    """As `moonmill engine install` calls it."""
    version: str = ""
    """Empty where it is not installed."""
    half: bool = False
    """Its installation was interrupted."""
    torch: Torch | Unknown | None = None
    """As the environment's own interpreter tells of it; None where it is not installed."""


class Trial(Struct, frozen=True):
    """Something that was tried: a provider of sandboxes, a port."""

    works: str = ""
    """How it works."""
    problem: str = ""
    """Why it does not; what to do follows the first colon or full stop."""

    @property
    def parts(self) -> tuple[str, str]:
        """What is wrong, and what to do about it."""
        found, *todo = re.split(r": |\. ", self.problem, maxsplit=1)
        return found, "".join(todo)


class Disk(Struct, frozen=True):
    """Space at a place."""

    what: str
    path: str
    free_gib: float
    writable: bool


class Machine(Struct, frozen=True):
    """Cores that we may use, memory of the machine or of our control group, files that we may open."""

    cores: int
    memory_gib: float
    free_gib: float
    files: int
    most_files: int
    """What `ulimit -n` may be raised to."""


class Hub(Struct, frozen=True):
    """The hub that models come from."""

    endpoint: str
    offline: bool
    """Whether `HF_HUB_OFFLINE` is set."""
    problem: str = ""
    """Why it cannot be reached."""
    cached: tuple[str, ...] = ()
    """Models that were fetched before."""


class Facts(Struct, frozen=True):
    """All that was found out. None: there is none of it here."""

    python: Interpreter
    extras: tuple[Extra, ...] | Unknown
    torch: Torch | Unknown | None
    driver: Driver | Unknown | None
    cards: int
    """NVIDIA's cards on the bus, whether there is a driver or not."""
    engines: tuple[Engine, ...] | Unknown
    local: Trial | Unknown
    docker: Trial | Unknown
    disks: tuple[Disk, ...] | Unknown
    port: Trial | Unknown
    """Whether 127.0.0.1 can be listened on and reached."""
    machine: Machine | Unknown
    hub: Hub | Unknown
