"""All cases, and running them against a provider."""

import difflib
from collections.abc import Callable, Sequence

from msgspec import Struct

from moonmill.errors import ConfigError
from moonmill.sandboxes.testing import (
    commands,
    endings,
    files,
    folders,
    kernel,
    limits,
    links,
    neighbours,
    network,
    processes,
    secrets,
    stdin,
    timeouts,
)
from moonmill.sandboxes.testing.case import PROMISES, Case, Outcome, Status
from moonmill.sandboxes.testing.lab import Lab, ProviderFactory
from moonmill.sandboxes.testing.provider import fault, name_of

_TOPICS = (
    *(files.topic, folders.topic, links.topic, commands.topic, stdin.topic, timeouts.topic, processes.topic),
    *(kernel.topic, network.topic, secrets.topic, limits.topic, neighbours.topic, endings.topic),
)
CASES: tuple[Case, ...] = tuple(case for topic in _TOPICS for case in topic.cases)


class Promise(Struct, frozen=True):
    """What became of the cases about one promise."""

    name: str | None
    """As in `PROMISES`; None for what every provider is to keep."""
    statement: str
    status: Status
    means: str
    """How the provider says that it keeps it."""
    cases: int
    broken: int


class Report(Struct, frozen=True):
    """What the check has found out about a provider on this host."""

    provider: str
    means: dict[str, str]
    """What it claims to enforce, and how."""
    outcomes: tuple[Outcome, ...]

    def having(self, status: Status) -> tuple[Outcome, ...]:
        """The outcomes of this kind."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == status)

    def promises(self) -> tuple[Promise, ...]:
        """What holds, promise by promise, of those that were looked at."""
        found = []
        for name in (None, *PROMISES):
            kinds = [outcome.status for outcome in self.outcomes if outcome.promise == name]
            if kinds:
                worst: Status = "holds" if "holds" in kinds else kinds[0]
                worst = "broken" if "broken" in kinds else worst
                statement = PROMISES[name] if name else "files, commands and endings are as every sandbox's"
                means = self.means.get(name, "") if name else ""
                found.append(Promise(name, statement, worst, means, len(kinds), kinds.count("broken")))
        return tuple(found)


async def check(
    factory: ProviderFactory,
    *,
    cases: Sequence[Case] = CASES,
    image: str | None = None,
    tell: Callable[[Case, Outcome | None], None] = lambda case, outcome: None,
) -> Report:
    """Run cases, one after the other. On asyncio or trio.

    Args:
        factory: makes the provider; see `ProviderFactory`.
        cases: which ones.
        image: what the sandboxes are made from. It needs `sh`, the usual small programs and `python3`.
        tell: called before a case, without its outcome, and after it.

    Raises:
        SandboxUnavailableError: the provider cannot be used on this host, or is not as a provider should be.
        SandboxSpecError: it does not take the specs of the check.
    """
    outcomes = []
    async with Lab(factory, image) as lab:
        _refuse_unknown(lab, cases)
        await lab.begin()
        for case in cases:
            tell(case, None)
            outcomes.append(await lab.run(case))
            tell(case, outcomes[-1])
        return Report(name_of(lab.provider), dict(lab.means), tuple(outcomes))


def choose(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases with these names, of these topics and of these promises; all of them where there are no names.

    Raises:
        ConfigError: a name is none of a case, topic or promise.
    """
    known = {name for case in CASES for name in _names(case)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`moonmill sandbox check --list` names them"
            raise ConfigError(f"there is no case, topic or promise {name!r}: {hint}")
    return tuple(case for case in CASES if not names or {*names} & _names(case))


def _refuse_unknown(lab: Lab, cases: Sequence[Case]) -> None:
    """A promise that is not spelled right would never be looked at."""
    known = [*PROMISES, *(case.promise for case in cases if case.promise)]
    for name in lab.means:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PROMISES)}"
            raise fault(lab.provider, f"enforces() names {name!r}, which is no promise: {hint}")


def _names(case: Case) -> set[str]:
    """What a case may be chosen by."""
    return {case.name, case.name.partition("/")[2], case.topic} | ({case.promise} if case.promise else set())
