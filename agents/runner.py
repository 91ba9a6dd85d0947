"""One episode, from a task to a rollout.

`EpisodeRunner.run` always returns a rollout: what breaks on the way gives it the status `failed`, never an exception
and never a reward. Only cancellation passes through, and the `EOFError` of a player who leaves.
"""

import copy
import time
from collections.abc import Callable

import msgspec

from moonmill.agents.agent import Agent
from moonmill.agents.episode import Episode
from moonmill.agents.foreign import ForeignEpisode
from moonmill.blame import error_of
from moonmill.envs import EnvHost, MultiTurnEnv
from moonmill.errors import MoonmillError
from moonmill.types import Rollout, Status, Task, Timings

EnvFactory = Callable[[], MultiTurnEnv]


class EpisodeRunner:
    """Plays episodes of one environment with one agent; many may run at once.

    Args:
        env_id: what the environment is called in rollouts and errors.
        factory: makes an environment, for one episode.
        agent: plays.
    """

    def __init__(self, env_id: str, factory: EnvFactory, agent: Agent) -> None:
        self.env_id = env_id
        self.factory = factory
        self.agent = agent

    async def run(self, task: Task, *, id: str, seed: int, index: int = 0, group: str | None = None) -> Rollout:
        """Play `task` to its end and score it.

        Args:
            task: the problem.
            id: the rollout's id.
            seed: decides everything random in the episode, sampling included.
            index: the admission number.
            group: the group the rollout belongs to, in the group modes.
        """
        started_at, start = time.time(), time.monotonic()
        # Author's code may change what it is given: that is for its own episode, and not for the log.
        own = copy.deepcopy(task)
        episode = Episode()
        rollout: Rollout | None = None
        scoring = 0.0
        host = EnvHost(self.factory, self.env_id)
        try:
            async with host:
                if host.is_foreign:
                    episode = ForeignEpisode()
                await episode.play(host, self.agent, own, seed)
                rollout = episode.rollout(self.env_id, own, id, seed, index, group)
                scored_from, waited = time.monotonic(), host.sandbox_seconds
                if rollout.status is not Status.FAILED:
                    rollout = await episode.score(host, rollout)
                scoring = time.monotonic() - scored_from - (host.sandbox_seconds - waited)
        except MoonmillError as e:
            episode.fail(e)
            failed = episode.rollout(self.env_id, task, id, seed, index, group)
            # What has its reward keeps it: only `close` can have raised.
            rollout = msgspec.structs.replace(rollout, error=error_of(e)) if rollout and scoring else failed
        timings = Timings(
            started_at=started_at,
            total=time.monotonic() - start,
            generation=episode.generation,
            environment=episode.environment,
            scoring=scoring,
            sandbox=host.sandbox_seconds,
        )
        return msgspec.structs.replace(rollout, task=task, timings=timings)
