"""An episode that a program plays: it asks, the agent answers, and what was said and sampled becomes the rollout.

What always holds: an answer that the engine could not give makes the rollout fail, whatever the program makes of it; a
rollout without an answer fails; a program that goes on asking after its limit, or beyond its time, is cancelled, and
its key is worth nothing afterwards.
"""

from moonmill.agents.agent import Agent
from moonmill.agents.episode import Episode
from moonmill.envs import EnvHost, Outcome
from moonmill.errors import EnvCodeError, MissingExtraError, MoonmillError
from moonmill.seeding import derive_seed
from moonmill.types import Rollout, Status, StopReason, Task


class ForeignEpisode(Episode):
    """What has happened so far in an episode that a program plays."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None

    async def play(self, host: EnvHost, agent: Agent, task: Task, seed: int) -> None:
        """Let the program ask until it, a limit or a failure ends the episode."""
        try:
            from moonmill.agents.desk import Desk
            from moonmill.agents.players import player_of
        except ImportError as e:
            raise MissingExtraError("an environment that is played by a program", "train") from e

        # Another seed: two conversations of the policy with itself are not to say the same.
        player, aside = player_of(agent, seed), player_of(agent, derive_seed(seed, "aside"))
        desk = Desk(player, aside, host.limits.max_turns, getattr(agent, "max_length", None))
        error: MoonmillError | None = None
        with host.time_limit(host.limits.max_seconds) as limit:
            await self.timed_env(host, host.reset, task, seed)
            async with desk.open() as endpoint:
                try:
                    self._outcome = await self.timed_env(host, host.play, endpoint, seed)
                except MoonmillError as e:
                    error = e
        if desk.left is not None:
            raise desk.left
        self.generation = desk.seconds
        self.environment = max(0.0, self.environment - desk.seconds)
        contexts = player.contexts
        used = [each.usage for each in (player, aside) if each.usage is not None]
        self.usage = sum(used[1:], used[0]) if used else None
        self.segments, self.branches = list(contexts[0]) if contexts else [], contexts[1:]
        told = (self._outcome and self._outcome.messages) or player.longest
        self.messages = list(told or task.messages())
        self.abridged = player.conversations > 1 or desk.aside > 0 or told != player.longest
        if not desk.answered and desk.refused is not None:
            error = desk.refused
        self._judge(desk.answered, desk.failure or error, desk.met, late=limit.cancelled_caught)
        self.faults = host.faults

    async def score(self, host: EnvHost, rollout: Rollout) -> Rollout:
        """The rollout with what the program and the environment say of it."""
        return await host.score(rollout, self._outcome)

    def _judge(self, answered: int, error: MoonmillError | None, met: StopReason | None, *, late: bool) -> None:
        """How it ended.

        Args:
            answered: answers of the model.
            error: what broke.
            met: the limit that the model's answers have met.
            late: its time was up.
        """
        theirs = isinstance(error, EnvCodeError)
        if error is not None and not (theirs and met and answered):
            self.fail(error)
        elif not answered:
            self.fail(EnvCodeError("the program never got an answer of the model, so there is nothing to train on"))
        elif late:
            self.truncate(StopReason.TIME_LIMIT)
        elif error is not None or self._outcome is None:
            self.truncate(met or StopReason.STOPPED)
        elif self._outcome.truncated:
            self.truncate(self._outcome.stop or met or StopReason.STOPPED)
        elif self._outcome.stop is not None:
            self.status, self.stop_reason = Status.FINISHED, self._outcome.stop
