"""The engines of a run: kept alive, and given each new version.

While one is down, its requests go on at the others, or wait in the client, from the tokens they have. What always
holds: a version is sampled from only when every engine that is up has it; nothing waits for an engine that is down; a
version's weights are kept while an engine may have to load them again.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from moonmill.agents.client import InferenceClient
from moonmill.agents.control import GoneError
from moonmill.agents.engine.folder import vocabulary_of
from moonmill.config import Config
from moonmill.errors import EngineError, WorkerDiedError
from moonmill.rundir import RunDirectory
from moonmill.trainer.endpoints import Endpoint, Note
from moonmill.trainer.engine_commands import engine_places, versions_in_use
from moonmill.trainer.handover import Taken, Weights, WrongWeightsError, remove_weights
from moonmill.trainer.presence import Presence
from moonmill.trainer.sleeping import Sleeping

_PUBLISH_ATTEMPTS = 3
_BACKOFF_SECONDS = 0.5
"""Wait before the first restart; it doubles with each further one."""


class EngineHost:
    """The supervised engines of a run and the client that talks to them.

    Args:
        config: the run's.
        logs: the folder where the engines' output goes.
        note: told of restarts and versions.
        probe: tokens of a prompt; after each hand-over it is sampled from, to see that the new weights answer.
        run: its weights are deleted once their version is out of use; weights elsewhere are left alone. None where
            nothing is published.
    """

    def __init__(self, config: Config, logs: Path, note: Note, probe: list[int], run: RunDirectory | None) -> None:
        self._config = config
        self._run = run
        self._vocabulary = vocabulary_of(Path(config.model.path))
        self._note = note
        self._probe_value: float | None = None
        self._warned = False
        self._restarts = 0
        self._versions: dict[int, Weights] = {}
        self._pinned: Counter[int] = Counter()
        self._clients: set[InferenceClient] = set()
        self._presence = Presence()
        self._begun = False
        self._endpoints: list[Endpoint] = []
        places = engine_places(config, logs, self._tell_progress)
        for name, place in places.items():
            own = partial(note, engine=name) if len(places) > 1 else note
            died = partial(self._allow_restart, own)
            self._endpoints.append(Endpoint(place, config, probe, self._versions, own, self._changed, died))
        self._living = set(self._endpoints)
        self._sleeping = Sleeping(self._living, self._clients, note)
        self.client: InferenceClient

    def _tell_progress(self, name: str, text: str) -> None:
        """How far a start is; of a restart the events tell enough."""
        if not self._begun:
            self._note("engine_starting", text=f"{name}: {text}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["EngineHost"]:
        """Start the engines, all at once, and keep them alive; they are stopped at the end.

        Restarts are `engine.max_restarts` in all. A run goes on while one engine is left.

        Raises:
            WorkerDiedError: one did not start, or later none is left.
            ConfigError: one cannot serve this run.
        """
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as starting:
                for endpoint in self._endpoints:
                    starting.start_soon(group.start, self._keep, endpoint)
            self._begun = True
            if self._config.engine.urls:
                group.start_soon(self._presence.refuse_to_wait_for_ever, self._config.engine)
            async with self._connect(0, self._config.async_.on_new_version) as self.client:
                yield self
            group.cancel_scope.cancel()

    def asleep(self) -> AbstractAsyncContextManager[None]:
        """Within it the engines sleep, where the run has them do so while the learner computes."""
        return self._sleeping.asleep() if self._config.engine.sleep_while_learning else nullcontext()

    async def compare(self, probe: float) -> None:
        """See that what the engines were started with is the learner's model, which answers the probe so.

        Raises:
            WrongWeightsError: that of all is another one.
            EngineError: none answers.
        """
        async with self._sleeping.handing_over:
            await self._insist(0, Weights(Path(self._config.model.path), probe))

    async def publish(self, version: int, weights: Path, *, changed: bool, probe: float | None) -> None:
        """Hand a version over: load it, see that it answers as the learner does, sample from it, forget old ones.

        An engine that does not take what others take is brought up anew, and gets it then.

        Args:
            version: the version.
            weights: its folder.
            changed: whether its weights are others than the last version's, so that it must answer otherwise.
            probe: what the learner answers to the probe.

        Raises:
            EngineError: no engine would take it, also after a restart.
        """
        async with self._sleeping.handing_over:
            await self._publish(version, weights, changed, probe)

    async def _publish(self, version: int, weights: Path, changed: bool, probe: float | None) -> None:
        begin = time.monotonic()
        taken, switch = await self._insist(version, Weights(weights, probe))
        slowest = max(taken, key=lambda t: t.seconds_load + t.seconds_probe, default=None)
        differences = [t.difference for t in taken if t.difference is not None]
        self._note(
            "version_published",
            version=version,
            seconds=time.monotonic() - begin,
            seconds_load=slowest.seconds_load if slowest else 0.0,
            seconds_probe=slowest.seconds_probe if slowest else 0.0,
            seconds_switch=switch,
            **({"probe_difference": max(differences)} if differences else {}),
        )
        self._warn_if_unchanged(version, [t.value for t in taken], changed)
        await self._forget_old(version)

    async def _insist(self, version: int, weights: Weights) -> tuple[list[Taken], float]:
        """Hand a version over, in several attempts."""
        attempt = 1
        while True:
            await self._presence.wait()
            try:
                return await self._hand_over(version, weights)
            except EngineError as e:
                wrong = isinstance(e, WrongWeightsError)
                if wrong and not version:  # it will have no other
                    raise
                self._note("publish_failed", version=version, attempt=attempt, error=str(e))
                await anyio.sleep(_BACKOFF_SECONDS * 2**attempt)  # Long enough to see that it has died, if it has.
                if isinstance(e, GoneError) and not self._presence.there:
                    continue
                if attempt == _PUBLISH_ATTEMPTS:
                    raise EngineError(f"the engine did not take version {version} in {attempt} attempts: {e}") from e
                if wrong and attempt == _PUBLISH_ATTEMPTS - 1:
                    for endpoint in self._endpoints:
                        endpoint.distrust(str(e))
                attempt += 1

    async def _hand_over(self, version: int, weights: Weights) -> tuple[list[Taken], float]:
        """Have the engines that are up take a version, and use it; returns how they took it, and seconds to use it."""
        if self._run:
            self._run.require_held()
        taken: list[Taken] = []
        refusals: dict[Endpoint, EngineError] = {}

        async def give(endpoint: Endpoint) -> None:
            try:
                taken.append(await endpoint.take(version, weights))
            except EngineError as e:
                refusals[endpoint] = e

        # Again for those that have come up meanwhile.
        while without := [e for e in self._endpoints if e.up and version not in e.loaded and e not in refusals]:
            async with anyio.create_task_group() as group:
                for endpoint in without:
                    group.start_soon(give, endpoint)
        if not any(e.up and version in e.loaded for e in self._endpoints):
            raise next(iter(refusals.values()), None) or GoneError("no engine is up")
        begin = time.monotonic()
        self._versions[version] = weights
        for endpoint, error in refusals.items():
            endpoint.distrust(str(error))
        await self.client.use_version(version)
        return taken, time.monotonic() - begin

    def in_flight(self) -> tuple[int, ...]:
        """How many completions each engine is at work on, those of evaluations among them."""
        return tuple(map(sum, zip(*(client.in_flight() for client in self._clients), strict=True)))

    def queued(self) -> float:
        """Seconds that requests of training have waited for their first tokens so far, all together."""
        return self.client.queued

    def _warn_if_unchanged(self, version: int, values: list[float], changed: bool) -> None:
        """Say once if a version answers as the one before: closer than the learner's number needs to be."""
        if changed and not self._warned and values and all(value == self._probe_value for value in values):
            self._warned = True
            self._note(
                "warning",
                text=f"version {version} answers a fixed prompt exactly as the version before: its weights may not "
                "have arrived, or the learning rate is too small to change anything",
            )
        self._probe_value = values[0] if values else None

    async def _forget_old(self, newest: int) -> None:
        """Unload versions that nobody samples from any more, and delete their weights."""
        oldest = newest - versions_in_use(self._config) + 1
        used = frozenset({*(+self._pinned), *range(oldest, newest + 1)})
        for version in [v for v in self._versions if v not in used]:
            del self._versions[version]
        async with anyio.create_task_group() as group:
            for endpoint in self._endpoints:
                if endpoint.up:
                    group.start_soon(endpoint.forget, used)
        # Versions that were never handed over, because a newer one was there first, leave their weights as well.
        if self._run:
            await anyio.to_thread.run_sync(remove_weights, self._run.weights, newest, used)

    async def _keep(self, endpoint: Endpoint, *, task_status: TaskStatus[None]) -> None:
        """Keep an engine alive; one that is beyond help ends the run only where it is the last."""
        try:
            await endpoint.live(task_status=task_status)
        except WorkerDiedError as e:
            self._living.discard(endpoint)
            self._sleeping.notify()
            if not self._begun or not self._living:
                raise
            endpoint.note("engine_given_up", error=str(e))

    async def _allow_restart(self, note: Note, **how: object) -> bool:
        """Note a death and wait before the next start; returns whether there may be one."""
        restarts = self._restarts
        note("engine_died", restarts=restarts, **how)
        if restarts >= self._config.engine.max_restarts:
            return False
        self._restarts += 1
        await anyio.sleep(_BACKOFF_SECONDS * 2**restarts)
        await self._sleeping.hold_start()
        if self._run:
            self._run.require_held()
        return True

    def _changed(self, endpoint: Endpoint) -> None:
        """Tell the clients where an engine is, or that it is not."""
        self._sleeping.notify()
        place = self._endpoints.index(endpoint)
        for client in self._clients:
            if endpoint.up:
                client.set_base_url(endpoint.base_url, place)
            else:
                client.set_away(place)
        self._presence.tell(there=any(e.up for e in self._endpoints))

    @asynccontextmanager
    async def pinned_client(self) -> AsyncIterator[InferenceClient]:
        """A client that stays with the current version, which is kept on the engines meanwhile: for evaluation."""
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
            [e.base_url for e in self._endpoints],
            version=version,
            on_new_version=on_new_version,
            request_timeout=engine.request_timeout,
            recover_timeout=engine.start_timeout + engine.request_timeout,
            on_unknown_version=lambda place, unknown: self._endpoints[place].has_not(unknown),
            vocabulary=self._vocabulary,
        ) as client:
            for place, endpoint in enumerate(self._endpoints):
                if not endpoint.up:
                    client.set_away(place)
            self._clients.add(client)
            try:
                yield client
            finally:
                self._clients.discard(client)
