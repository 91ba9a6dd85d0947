"""Whether any engine of a run is up, to be waited for."""

import anyio

from moonmill.config import EngineConfig
from moonmill.errors import EngineError

_STARTS_WITHOUT = 2
"""How many times `engine.start_timeout` a run waits for attached engines when all of them are gone."""


class Presence:
    """One of two events is set: that an engine is up, or that none is. Neither is before it was first told."""

    def __init__(self) -> None:
        self._any = anyio.Event()
        self._none = anyio.Event()

    @property
    def there(self) -> bool:
        """Whether one is up."""
        return self._any.is_set()

    def tell(self, *, there: bool) -> None:
        """Whether one is up now."""
        if there:
            self._any.set()
            self._none = anyio.Event() if self._none.is_set() else self._none
        else:
            self._none.set()
            self._any = anyio.Event() if self._any.is_set() else self._any

    async def wait(self) -> None:
        """Return once one is up. How often and how long it is tried to bring one up is bounded elsewhere."""
        await self._any.wait()

    async def refuse_to_wait_for_ever(self, engine: EngineConfig) -> None:
        """End a run whose engines are all gone, where it is not ours to start them."""
        seconds = _STARTS_WITHOUT * engine.start_timeout
        while True:
            await self._none.wait()
            with anyio.move_on_after(seconds) as scope:
                await self._any.wait()
            if scope.cancelled_caught:
                raise EngineError(
                    f"engine.urls: none of {', '.join(engine.urls)} could be used for {seconds:g} s "
                    "(twice engine.start_timeout): see that they run, then --resume"
                )
