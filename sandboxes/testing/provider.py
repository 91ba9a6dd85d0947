"""Calls to a provider that somebody else has written: what is wrong with it is told as its own fault, by its name."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from moonmill.blame import told_as
from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.sandbox import Sandbox, SandboxProvider
from moonmill.sandboxes.types import SandboxSpec


def name_of(provider: SandboxProvider) -> str:
    """What it is called."""
    name: Any = getattr(provider, "name", None)
    return name if isinstance(name, str) else type(provider).__name__


@asynccontextmanager
async def entered(provider: SandboxProvider) -> AsyncIterator[None]:
    """It is entered, and left in the end."""

    async def leave(*exc: Any) -> None:
        with _blamed(provider):
            await provider.__aexit__(*exc)

    with _blamed(provider):
        await provider.__aenter__()
    async with AsyncExitStack() as stack:
        stack.push_async_exit(leave)
        yield


def means_of(provider: SandboxProvider) -> dict[str, str]:
    """What it enforces, and how."""
    with _blamed(provider):
        return dict(_expect(provider, "enforces", provider.enforces(), "promises and their means, as text", _are_means))


def require(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Raise what it has against a spec."""
    with _blamed(provider):
        said: Any = provider.require(spec)  # type: ignore[func-returns-value]
        _expect(provider, "require", said, "None", lambda said: said is None)


@asynccontextmanager
async def opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """One of its sandboxes."""
    wanted = "an async context, such as contextlib.asynccontextmanager makes"
    async with AsyncExitStack() as stack:
        with _blamed(provider):
            opening = _expect(provider, "open", provider.open(spec), wanted, lambda it: hasattr(it, "__aenter__"))
            sandbox: Sandbox = await stack.enter_async_context(opening)
        yield sandbox


def fault(provider: SandboxProvider, what: str) -> SandboxUnavailableError:
    """What it does wrong, as an error."""
    return SandboxUnavailableError(f"the provider {name_of(provider)} is not as it should be: {what}")


@contextmanager
def _blamed(provider: SandboxProvider) -> Iterator[None]:
    """What is raised inside, and is none of ours, comes out with its name and place."""
    with told_as(lambda said: SandboxUnavailableError(f"the provider {name_of(provider)} raised {said}")):
        yield


def _expect(provider: SandboxProvider, method: str, said: Any, wanted: str, is_fine: Callable[[Any], bool]) -> Any:
    """What a method of it has returned, if that can be."""
    if is_fine(said):
        return said
    if inspect.iscoroutine(said):
        said.close()  # nobody waits for it
    raise fault(provider, f"{method}() returns {said!r:.200}, but should return {wanted}")


def _are_means(said: Any) -> bool:
    return isinstance(said, Mapping) and all(isinstance(text, str) for pair in said.items() for text in pair)
