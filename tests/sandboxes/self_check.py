"""Running the self-check in a test."""

from collections.abc import Mapping
from functools import partial

import anyio

from moonmill.sandboxes.testing import Outcome, ProviderFactory, Report, check, choose


def run(factory: ProviderFactory, *names: str, image: str | None = None, backend: str = "asyncio") -> Report:
    return anyio.run(partial(check, factory, cases=choose(names), image=image), backend=backend)


def outcomes_of(
    factory: ProviderFactory, *, image: str | None = None, backend: str = "asyncio"
) -> Mapping[str, Outcome]:
    """What has become of each case, by its name."""
    return {outcome.name: outcome for outcome in run(factory, image=image, backend=backend).outcomes}
