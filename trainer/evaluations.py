"""Evaluations of a run that trains: before it, beside it, after it.

Beside training an evaluation has slots of its own (`eval.max_concurrent`), on the engine as well: it neither takes
training's places nor waits for them.
"""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from moonmill.agents.client import InferenceClient
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.runner import EnvFactory, EpisodeRunner
from moonmill.blame import own_error
from moonmill.config import Config
from moonmill.errors import EnvCodeError, RunError
from moonmill.reporting import Reporter
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.evaluate import play
from moonmill.trainer.ledger import Ledger
from moonmill.trainer.outcomes import result_of


class Evaluations:
    """Plays the evaluation's tasks with versions of a run.

    One at a time, for each keeps its version on the engines. One that has waited takes the version that is in use by
    then, and has nothing to do where the one before it took the same.

    Args:
        config: the run's.
        ledger: gets the results.
        factory: makes the environment.
        agent: the policy behind a client, at a temperature.
        reporter: told of the results.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        factory: EnvFactory,
        agent: Callable[[InferenceClient, float], PolicyAgent],
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._factory = factory
        self._agent = agent
        self._reporter = reporter
        self._turn = anyio.Lock()
        self._evaluated = -1

    async def alone(self, engine: EngineHost, label: str) -> None:
        """Evaluate the version in use while nothing else goes on."""
        await self._evaluate(engine, label, self._config.async_.max_concurrent)

    async def meanwhile(self, engine: EngineHost) -> None:
        """Evaluate the version in use while training goes on, whatever comes of it."""
        try:
            await self._evaluate(engine, "", self._config.eval.max_concurrent)
        except Exception as e:
            error = own_error(e)
            if not isinstance(error, RunError | EnvCodeError):
                raise
            text = f"an evaluation came to nothing: {error}"
            self._ledger.event("warning", text=text)
            self._reporter.warn(text)

    async def _evaluate(self, engine: EngineHost, label: str, concurrent: int) -> None:
        """Evaluate the version in use at each temperature; it stays the same throughout."""
        config = self._config
        if not config.eval.tasks:
            return
        async with self._turn, engine.pinned_client() as client:
            if not label and client.version == self._evaluated:
                return
            self._evaluated = client.version
            label = label or f"step {client.version}"
            self._reporter.phase(f"evaluating ({label})")
            for temperature in config.eval.temperatures:
                runner = EpisodeRunner(config.env.id, self._factory, self._agent(client, temperature))
                outcomes = await play(config, runner, concurrent=concurrent)
                summed_up = partial(result_of, outcomes, label, client.version, temperature, config.eval.success)
                result = await anyio.to_thread.run_sync(summed_up)
                self._ledger.event("eval", result=result)
                self._reporter.eval(result)
