"""The engine of a run: started, kept alive, and given each new version.

While it is down, requests wait in the client and go on from the tokens they have. A restarted engine gets the current
version before it is used again.
"""

import itertools
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from moonmill.agents.client import InferenceClient
from moonmill.agents.processes import ServerProcess
from moonmill.config import Config
from moonmill.errors import EngineError, WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer.engine_commands import engine_argv
from moonmill.types import Sampling

_PUBLISH_ATTEMPTS = 3
_BACKOFF_SECONDS = 0.5
"""Wait before the first restart; it doubles with each further one."""
_PROBE = Sampling(temperature=0.0, max_tokens=1)

Note = Callable[..., None]
"""Takes the kind of an event and its data."""


class EngineHost:
    """One supervised engine process and the client that talks to it.

    Args:
        config: the run's.
        log: where the engine's output goes.
        note: told of restarts and versions.
        probe: tokens of a prompt; after each hand-over it is sampled from, to see that the new weights answer.
        run: its weights are deleted once their version is out of use; weights elsewhere are left alone. None where
            nothing is published.
    """

    def __init__(self, config: Config, log: Path, note: Note, probe: list[int], run: RunDirectory | None) -> None:
        self._config = config
        self._run = run
        self._note = note
        self._probe_prompt = probe
        self._probe_value: float | None = None
        self._warned = False
        self._restarts = 0
        self.server = ServerProcess(
            "engine", engine_argv(config), log_path=log, start_timeout=config.engine.start_timeout
        )
        self._weights: dict[int, Path] = {}
        self._pinned: Counter[int] = Counter()
        self._clients: set[InferenceClient] = set()
        self._swap = anyio.Lock()
        self._up = anyio.Event()
        self.client: InferenceClient

    @asynccontextmanager
    async def running(self) -> AsyncIterator["EngineHost"]:
        """Start the engine; it is stopped at the end."""
        async with AsyncExitStack() as stack:
            while not self.server.alive:
                try:
                    await stack.enter_async_context(self.server)
                except WorkerDiedError as e:
                    if self._restarts == self._config.engine.max_restarts:
                        raise
                    self._note("engine_died", restarts=self._restarts, error=str(e))
                    await self._back_off()
            connection = self._connect(0, self._config.async_.on_new_version)
            self.client = await stack.enter_async_context(connection)
            self._up.set()
            self._note("engine_started", pid=self.server.pid)
            yield self

    async def supervise(self) -> None:
        """Restart the engine whenever it ends, at most `engine.max_restarts` times in all. Runs until cancelled.

        Raises:
            WorkerDiedError: it has ended once too often.
        """
        while True:
            await self.server.wait_dead()
            self._up = anyio.Event()
            self._note("engine_died", restarts=self._restarts, returncode=self.server.returncode)
            if self._restarts == self._config.engine.max_restarts:
                break
            await self._back_off()
            try:
                async with self._swap:
                    await self._restart()
            except (EngineError, WorkerDiedError) as e:
                self._note("restart_failed", error=str(e))
                self.server.kill()
                continue
            self._up.set()
            self._note("engine_restarted", pid=self.server.pid)
        raise WorkerDiedError(
            f"the engine ended {self._config.engine.max_restarts + 1} times (engine.max_restarts); its last words are "
            f"in {self.server.log_path}"
        )

    async def _back_off(self) -> None:
        """Count a restart, and wait before it."""
        await anyio.sleep(_BACKOFF_SECONDS * 2**self._restarts)
        self._restarts += 1

    async def publish(self, version: int, weights: Path, *, changed: bool) -> None:
        """Hand a version over: load it, see that it answers, sample from it, and forget old ones.

        Args:
            version: the version.
            weights: its folder.
            changed: whether its weights are others than the last version's, so that it must answer otherwise.

        Raises:
            EngineError: the engine would not take it, also after a restart.
        """
        start = time.monotonic()
        for attempt in itertools.count(1):
            await self._wait_up()
            try:
                with anyio.fail_after(self._config.engine.request_timeout):
                    value = await self._hand_over(version, weights)
                break
            except (EngineError, TimeoutError) as e:
                self._note("publish_failed", version=version, attempt=attempt, error=str(e))
                if attempt == _PUBLISH_ATTEMPTS:
                    raise EngineError(f"the engine did not take version {version} in {attempt} attempts: {e}") from e
                await anyio.sleep(_BACKOFF_SECONDS * 2**attempt)  # Long enough to see that it has died, if it has.
        if changed and value == self._probe_value and not self._warned:
            self._warned = True
            self._note(
                "warning",
                text=f"version {version} answers a fixed prompt exactly as the version before: its weights may not "
                "have arrived, or the learning rate is too small to change anything",
            )
        self._probe_value = value
        self._note("version_published", version=version, seconds=time.monotonic() - start)

    async def _hand_over(self, version: int, weights: Path) -> float:
        """Load a version and use it; returns what it answers to the probe."""
        async with self._swap:
            self._require_held()
            await self.client.load_version(version, weights)
            self._weights[version] = weights
            value = await self.client.probe(self._probe_prompt, _PROBE, version)
            await self.client.use_version(version)
            await self._forget_old(version)
            return value

    async def _restart(self) -> None:
        """Start the engine anew with the versions it had."""
        self._require_held()
        await self.server.restart()
        for client in self._clients:
            client.set_base_url(self.server.base_url)
        for version, path in self._weights.items():
            await self.client.load_version(version, path)

    async def _wait_up(self) -> None:
        """Wait for an engine that is being restarted. How often that is tried is `supervise`'s affair."""
        with anyio.move_on_after(self._config.engine.max_restarts * self._config.engine.start_timeout):
            await self._up.wait()

    @asynccontextmanager
    async def pinned_client(self) -> AsyncIterator[InferenceClient]:
        """A client that stays with the current version, which is kept on the engine meanwhile: for evaluation."""
        version = self.client.version
        self._pinned[version] += 1
        try:
            async with self._connect(version, "finish") as client:
                yield client
        finally:
            self._pinned[version] -= 1

    @asynccontextmanager
    async def _connect(
        self, version: int, on_new_version: Literal["interrupt", "finish"]
    ) -> AsyncIterator[InferenceClient]:
        engine = self._config.engine
        async with InferenceClient(
            self.server.base_url,
            version=version,
            on_new_version=on_new_version,
            request_timeout=engine.request_timeout,
            recover_timeout=engine.start_timeout + engine.request_timeout,
        ) as client:
            self._clients.add(client)
            try:
                yield client
            finally:
                self._clients.discard(client)

    async def _forget_old(self, newest: int) -> None:
        """Unload versions that nobody samples from any more, and delete their weights."""
        # Interrupted requests have left a version as soon as the next is in use; requests that finish under theirs can
        # be as old as the staleness bound.
        keep = 1 if self._config.async_.on_new_version == "interrupt" else self._config.async_.max_staleness + 1
        used = {newest, *(+self._pinned), *range(newest - keep + 1, newest)}
        for version in [v for v in self._weights if v not in used]:
            await self.client.unload_version(version)
            del self._weights[version]
        # Versions that were never handed over, because a newer one was there first, leave their weights as well.
        if self._run:
            await anyio.to_thread.run_sync(remove_weights, self._run.weights, newest, used)

    def _require_held(self) -> None:
        if self._run:
            self._run.require_held()


def remove_weights(folder: Path, newest: int, used: Collection[int]) -> None:
    """Delete the weights in `folder` of versions before `newest` that are not in `used`."""
    for path in folder.glob("v[0-9]*"):
        digits = path.name[1:]
        if digits.isdecimal() and int(digits) < newest and int(digits) not in used:
            shutil.rmtree(path, ignore_errors=True)
