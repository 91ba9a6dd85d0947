"""One engine of a run: brought up, watched, brought up again, with the versions in use loaded before it is used.

What always holds: an engine is up only while it has exactly the versions that are in use, as far as is known; one that
says nothing for a while is used no more, and started anew if that lasts, where it is ours to start; every wait has a
bound.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from moonmill.agents.control import EngineControl, GoneError
from moonmill.agents.processes import ServerProcess
from moonmill.config import Config
from moonmill.errors import ConfigError, EngineError, WorkerDiedError
from moonmill.trainer.engine_starts import await_answer, how_it_ended
from moonmill.trainer.handover import Taken, Weights, forget_all, refuse_other_runs, take_over

_HEALTH_SECONDS = 3.0
"""Between two looks at `/health`, and as long as one may take."""
_PASSED_OVER_SECONDS = 15.0
"""Without an answer for so long, it gets no more requests: far more than a busy engine needs."""
_STUCK_SECONDS = 60.0
"""Without an answer for so long, a process is ended and started anew."""

Note = Callable[..., None]
"""Takes the kind of an event and its data."""


class Endpoint:
    """One engine, ours to start or attached.

    Args:
        place: the process to start, or the URL of an engine that runs already.
        config: the run's.
        prompt: the probe: tokens that the engine is to go on from after each version it has loaded.
        versions: those in use, with their weights. Looked at again whenever the engine is brought up.
        note: told of what becomes of it.
        changed: called when it has come up, and when it is up no more.
        died: told of a death in the words of an event; waits before a restart, and returns whether there may be one.
    """

    def __init__(
        self,
        place: ServerProcess | str,
        config: Config,
        prompt: Sequence[int],
        versions: Mapping[int, Weights],
        note: Note,
        changed: Callable[["Endpoint"], None],
        died: Callable[..., Awaitable[bool]],
    ) -> None:
        self._server = place if isinstance(place, ServerProcess) else None
        self._url = "" if isinstance(place, ServerProcess) else place.rstrip("/")
        self._config = config
        self._prompt = prompt
        self._versions = versions
        self.note = note
        self._changed = changed
        self._died = died
        self._control = EngineControl(self._url, request_timeout=config.engine.request_timeout)
        self._work: set[anyio.CancelScope] = set()
        self._distrusted = anyio.Event()
        self._trouble: dict[str, object] = {}
        self._asleep = False
        self.up = False
        self.loaded: set[int] = set()
        """Versions it has; of the one it was started with, whether it was seen to be the right one."""

    @property
    def base_url(self) -> str:
        """Where it is; another after a restart."""
        return self._server.base_url if self._server else self._url

    async def live(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Bring it up and keep it up, until cancelled.

        Raises:
            WorkerDiedError: it did not come up, or has died more often than it may be started again.
            ConfigError: it cannot serve this run.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._control)
            if self._server:
                await self._start(self._server, stack)
                self.note("engine_started", pid=self._server.pid, url=self.base_url)
                if not await self._could_open():
                    await self._restart(self._server)
            else:
                await await_answer(self._control, self._config.engine.start_timeout, self.note)
                self.note("engine_started", url=self._url)
                await self._open()
            task_status.started()
            while True:
                await self._watch()
                self._close()
                await (self._restart(self._server) if self._server else self._reattach())

    def distrust(self, error: str) -> None:
        """It does not do what it should: it is used no more before it was brought up anew."""
        if self.up:
            self._trouble = {"error": error}
            self._distrusted.set()
            self._close()

    def has_not(self, version: int) -> None:
        """It has answered that it has not got a version: where it should have, it is brought up anew."""
        if self.up and version in self.loaded:
            self.distrust(f"{self.base_url} has lost version {version}: it was restarted, or somebody else unloaded it")

    async def take(self, version: int, weights: Weights) -> Taken:
        """Load a version, if it was not started with it, and see that it answers as the learner does.

        Raises:
            GoneError: it is not there, or was not until the end.
            EngineError: it would not, or answers otherwise.
        """
        timeout = self._config.engine.request_timeout
        scope = anyio.CancelScope(deadline=anyio.current_time() + timeout)
        self._work.add(scope)
        try:
            with scope:
                await self._refuse_other_runs()
                taken = await take_over(self._control, version, weights, self._prompt, self._config)
                self.loaded.add(version)
                return taken
        except GoneError as e:
            if not self._server:  # of our own we hear when it has ended
                self.distrust(str(e))
            raise
        finally:
            self._work.discard(scope)
        if anyio.current_time() >= scope.deadline:
            raise EngineError(f"{self.base_url} took over {timeout:g} s for v{version}")
        raise GoneError(f"{self.base_url} has gone with v{version}")

    async def forget(self, used: frozenset[int]) -> None:
        """Unload the versions that are not in `used`. What cannot be unloaded now is tried again the next time."""
        for version in sorted(self.loaded - used):
            self.loaded.discard(version)
            if not version:  # the one it was started with
                continue
            try:
                await self._control.unload_version(version)
            except EngineError as e:
                self.loaded.add(version)
                self.note("unload_failed", version=version, error=str(e))

    async def sleep(self) -> None:
        """Have it give its memory free. Where it does not, it is ended, and brought up anew."""
        self._asleep = True
        await self._change(self._control.sleep)

    async def wake_up(self) -> None:
        """Have it serve again. Where it does not, it is brought up anew."""
        await self._change(self._control.wake_up)
        self._asleep = False

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        try:
            await change()
        except GoneError:
            return  # it is ours: we hear when it has ended
        except EngineError as e:
            self.distrust(str(e))

    async def _start(self, server: ServerProcess, stack: AsyncExitStack) -> None:
        while not server.alive:
            try:
                await stack.enter_async_context(server)
            except WorkerDiedError as e:
                if not await self._died(error=str(e)):
                    raise

    async def _open(self) -> None:
        """Give it the versions in use, and take it into use."""
        self._control.base_url = self.base_url
        seconds = self._config.engine.start_timeout + self._config.engine.request_timeout
        with anyio.move_on_after(seconds) as scope:
            await self._refuse_other_runs()
            await forget_all(self._control, self._config.model)
            self.loaded.clear()
            while missing := sorted(self._versions.keys() - self.loaded):
                await self._catch_up(missing[0])
            # Nothing awaited from here on, so that what it has is what is in use.
        if scope.cancelled_caught:
            raise EngineError(
                f"{self.base_url} answers, but did not take the versions in use in {seconds:g} s (engine.start_timeout "
                "and engine.request_timeout together)"
            )
        if self._distrusted.is_set():
            self._distrusted = anyio.Event()
        self.up = True
        self._changed(self)

    async def _refuse_other_runs(self) -> None:
        if not self._server:  # nobody else knows of one that we have started
            await refuse_other_runs(self._control, Path(self._config.run_dir))

    async def _catch_up(self, version: int) -> None:
        try:
            await self.take(version, self._versions[version])
        except EngineError:
            if version in self._versions:  # else its weights may be gone, and nobody wants them
                raise

    def _close(self) -> None:
        """Use it no more; what is being done to it is given up."""
        if not self.up:
            return
        self.up = self._asleep = False
        self._changed(self)
        for scope in self._work:
            scope.cancel()

    async def _watch(self) -> None:
        """Return once it has to be brought up anew: it has ended, says nothing, or is not to be trusted."""

        async def until(trouble: Callable[[], Awaitable[object]]) -> None:
            await trouble()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(until, self._distrusted.wait)
            group.start_soon(until, self._until_silent)
            if self._server:
                group.start_soon(until, self._server.wait_dead)

    async def _until_silent(self) -> None:
        """Look at its health; pass it over while it says nothing for some time, and return when that lasts."""
        answered = anyio.current_time()
        longest = _STUCK_SECONDS if self._server else _PASSED_OVER_SECONDS
        while True:
            await anyio.sleep(_HEALTH_SECONDS)
            ailment = "" if self._asleep else await self._control.ailment(_HEALTH_SECONDS)
            silent = anyio.current_time() - answered
            if not ailment:
                answered = anyio.current_time()
                if not self.up:
                    if not await self._could_open():
                        return
                    self.note("engine_back")
                continue
            if self.up and silent >= _PASSED_OVER_SECONDS:
                self._close()
                self.note("engine_passed_over", error=f"no answer for {silent:.0f} s: {ailment}")
            if silent >= longest:
                self._trouble = {"error": f"it runs, but did not answer for {silent:.0f} s: {ailment}"}
                return

    async def _could_open(self) -> bool:
        """Take it into use, if it does what is needed for that."""
        try:
            await self._open()
        except (ConfigError, EngineError) as e:
            self._trouble = {"error": str(e)}
            return False
        return True

    async def _restart(self, server: ServerProcess) -> None:
        """Start it anew, as often as it takes and is allowed."""
        while True:
            how = self._trouble or how_it_ended(server)
            self._trouble = {}
            server.kill()
            if not await self._died(**how):
                raise WorkerDiedError(
                    f"no engine may be started again (engine.max_restarts: {self._config.engine.max_restarts}); the "
                    f"last words of the one that ended are in {server.log_path}"
                )
            try:
                await server.restart()
            except (ConfigError, WorkerDiedError) as e:  # the first where its port is taken, or its model gone
                self._trouble = {"error": str(e)}
            else:
                if await self._could_open():
                    self.note("engine_restarted", pid=server.pid, url=self.base_url)
                    return
            self.note("restart_failed", **self._trouble)

    async def _reattach(self) -> None:
        """Wait until it answers again, and takes what is in use."""
        told: dict[str, object] = {}
        if self._trouble and self._distrusted.is_set():
            self.note("engine_passed_over", **self._trouble)
        while True:
            await anyio.sleep(_HEALTH_SECONDS)
            if await self._control.ailment(_HEALTH_SECONDS):
                continue
            if await self._could_open():
                self.note("engine_back")
                return
            if self._trouble != told:
                told = self._trouble
                self.note("restart_failed", **told)
