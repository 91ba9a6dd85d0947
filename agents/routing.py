"""Which of several engines a request goes to. No I/O, and no clock of its own.

What always holds: a request goes to an engine that is open, where there is one; choosing looks at each engine once and
at no request. An engine is closed while whoever supervises it says so. It is passed over for a moment after a request
did not reach it, and then tried with a single request before others follow.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

from moonmill.agents.pending import Run

_PASSED_OVER_SECONDS = 2.0
_MOST_AHEAD = 4
"""A conversation stays on its engine, where its prefix is cached, while that has at most so many requests more than the
least busy one, and a quarter of its requests. Going elsewhere costs one computation of the prefix; staying costs all
further tokens the difference in speed, which is small while the difference in requests is."""
_SESSIONS = 8192
"""Conversations whose engine is remembered: many times those in flight. One that is forgotten finds another."""


class Route:
    """One engine where it is now. One that was started again gets a new route: old failures are not held against it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.runs: set[Run] = set()
        """Those with a request there."""
        self.closed = False
        self.sent = 0
        """Requests so far."""
        self._missed_at: float | None = None

    def is_open(self, now: float) -> bool:
        """Whether requests should go there."""
        if self.closed:
            return False
        missed = self._missed_at
        return missed is None or (now - missed >= _PASSED_OVER_SECONDS and not self.runs)

    def miss(self, now: float) -> None:
        """A request did not get there."""
        self._missed_at = now

    def answered(self) -> None:
        """It is there."""
        self._missed_at = None


class Router:
    """Chooses among engines, which are numbered from 0."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.routes = [Route(url) for url in urls]
        self._homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, session: str, tried: Collection[Route], now: float) -> Route | None:
        """Where the next request goes: to the session's engine unless that is much busier, else to the least busy.

        Args:
            session: the conversation; empty where it is none.
            tried: engines to pass over if there are others.
            now: seconds of a monotonic clock.

        Returns:
            None where all engines are closed.
        """
        candidates = [r for r in self.routes if r not in tried and r.is_open(now)]
        candidates = candidates or [r for r in self.routes if not r.closed]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda r: (len(r.runs), r.sent))
        if session and len(self.routes) > 1:
            home = self.routes[self._homes[session]] if session in self._homes else chosen
            least = len(chosen.runs)
            if home in candidates and len(home.runs) <= least + least // 4 + _MOST_AHEAD:
                chosen = home
            self._remember(session, self.routes.index(chosen))
        chosen.sent += 1
        return chosen

    def has_other(self, tried: Collection[Route], now: float) -> bool:
        """Whether an engine is open that was not tried."""
        return any(r not in tried and r.is_open(now) for r in self.routes)

    def move(self, engine: int, url: str) -> None:
        """An engine is at `url` now, and open."""
        self.routes[engine] = Route(url)

    def close(self, engine: int) -> tuple[Run, ...]:
        """An engine is out of use until it is moved; returns the runs with a request there."""
        route = self.routes[engine]
        route.closed = True
        return tuple(route.runs)

    def in_flight(self) -> tuple[int, ...]:
        """How many requests each engine has now."""
        return tuple(len(route.runs) for route in self.routes)

    def _remember(self, session: str, engine: int) -> None:
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _SESSIONS:
            self._homes.popitem(last=False)
