"""What an evaluation plays, and what it makes of its rollouts."""

from collections.abc import Iterator, Sequence

import anyio
import msgspec
import pytest

from moonmill import Message, MultiTurnEnv, reward
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config import Config, EnvConfig, EvalConfig, ModelConfig
from moonmill.errors import RunError
from moonmill.reporting import EvalResult, Failure
from moonmill.trainer.evaluate import _Said, play
from moonmill.trainer.outcomes import Outcome, Prices, outcome_of, result_of
from moonmill.types import Action, Observation, Rollout, Status, StopReason, Task, Usage


def rollout(status: Status = Status.FINISHED, **fields: object) -> Rollout:
    return Rollout("r", "e-v0", Task("?"), status, StopReason.ANSWERED, **{"reward": 1.0, **fields})  # type: ignore[arg-type]


def summed_up(rollouts: Sequence[Rollout], success: float = 1.0, prices: Prices | None = None) -> EvalResult:
    numbered = (msgspec.structs.replace(r, index=index) for index, r in enumerate(rollouts))
    return result_of(map(outcome_of, numbered), "eval", 0, 1.0, success, prices)


def sampled(task: str, *rewards: float | None, level: str = "") -> list[Rollout]:
    problem = Task(task, id=task, level=level)
    return [msgspec.structs.replace(rollout(reward=reward), task=problem) for reward in rewards]


def test_the_share_that_a_limit_ended_is_of_the_scored_rollouts() -> None:
    result = summed_up([rollout(), rollout(Status.TRUNCATED), rollout(Status.TRUNCATED), rollout(Status.FAILED)])
    assert (result.samples, result.failed, result.truncated) == (3, 1, 2 / 3)


def test_a_metric_is_averaged_over_the_rollouts_that_have_it() -> None:
    rollouts = [rollout(metrics={"calls": 2.0, "depth": 5.0}), rollout(metrics={"calls": 3.0}), rollout()]
    assert summed_up(rollouts).metrics == {"calls": 2.5, "depth": 5.0}


def test_why_rollouts_failed_is_told_with_the_last_error_of_each_reason() -> None:
    failed = (rollout(Status.FAILED, error=f"error {number}") for number in range(2))
    result = summed_up([rollout(), rollout(reward=None, error="took too long"), *failed])
    assert result.failed == 3
    assert result.failures == (Failure("answered", 2, "error 1"), Failure("unscored", 1, "took too long"))


def test_a_success_is_told_by_the_reward_before_wrappers_changed_it() -> None:
    clipped = [rollout(reward=0.5, unshaped=unshaped) for unshaped in (1.0, 1.0, 0.6, 0.7)]
    result = summed_up([*clipped, rollout(Status.FAILED, reward=None, unshaped=1.0)])
    assert (result.success, result.mean_reward, result.samples) == (0.5, 0.5, 4)


class Lines:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, text: str) -> None:
        self.said.append(text)


def test_how_far_it_is_is_told_for_each_tenth_and_not_more_often_than_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("moonmill.trainer.evaluate.time.monotonic", lambda: now)
    quick, slow, long = Lines(), Lines(), Lines()
    for lines, seconds, total in ((quick, 0.1, 8), (slow, 60.0, 8), (long, 6.0, 100)):
        said = _Said(lines, "e-v0", 0, total)  # type: ignore[arg-type]
        for _ in range(total):
            now += seconds
            said.one_more()
    assert quick.said == ["evaluating e-v0: 0 of 8"]
    assert slow.said == [f"evaluating e-v0: {done} of 8" for done in range(9)]
    assert long.said == [f"evaluating e-v0: {done} of 100" for done in range(0, 101, 10)]


def test_nothing_scored_is_no_result() -> None:
    with pytest.raises(RunError, match="none of 2 evaluation rollouts could be scored; the last one: no key"):
        summed_up([rollout(Status.FAILED, error="no key")] * 2)


def test_tasks_weigh_alike_however_many_samples_they_have() -> None:
    result = summed_up([*sampled("a", 1.0, 1.0, 1.0, 1.0), *sampled("b", 0.0, None, None, None)])
    assert (result.samples, result.failed) == (5, 3)
    assert (result.success, result.mean_reward) == (0.5, 0.5)
    assert result.reward is not None
    assert result.reward.tasks == 2


def test_pass_at_k_is_over_the_tasks_that_have_k_scored_samples() -> None:
    result = summed_up([*sampled("a", 1.0, 0.0, 0.0, 0.0), *sampled("b", 1.0, 0.0, None, None), *sampled("c", 1.0)])
    assert list(result.pass_at) == ["pass@2", "pass@4"]
    assert (result.pass_at["pass@2"].value, result.pass_at["pass@2"].tasks) == (0.75, 2)  # 1/2 of a, 1 of b
    assert (result.pass_at["pass@4"].value, result.pass_at["pass@4"].tasks) == (1.0, 1)


def test_an_odd_number_of_samples_is_the_last_k() -> None:
    assert list(summed_up(sampled("a", *[1.0] * 6)).pass_at) == ["pass@2", "pass@4", "pass@6"]
    assert summed_up(sampled("a", 1.0)).pass_at == {}


def test_several_samples_of_a_task_make_the_interval_no_narrower_than_their_tasks_do() -> None:
    once = summed_up([r for task in range(20) for r in sampled(f"{task}", task % 2)])
    often = summed_up([r for task in range(20) for r in sampled(f"{task}", *[task % 2] * 16)])
    assert once.success == often.success == 0.5
    assert often.high - often.low > 0.9 * (once.high - once.low)


def test_an_answer_whose_set_has_another_order_in_each_process_is_one_task() -> None:
    orders = (["ja", "yes"], ["yes", "ja"], {"yes", "ja"})
    rollouts = [
        msgspec.structs.replace(rollout(reward=0.0), task=Task("?", {"any": order}, id="a")) for order in orders
    ]
    result = summed_up([*rollouts, *sampled("b", 1.0)])
    assert (result.success, len({outcome_of(r).problem for r in rollouts})) == (1 / 2, 1)
    assert outcome_of(rollouts[0]).problem != outcome_of(sampled("b", 1.0)[0]).problem


def test_levels_have_the_same_figures() -> None:
    result = summed_up([*sampled("a", 1.0, 0.0, level="easy"), *sampled("b", 0.0, 0.0, level="hard")])
    assert {level: (f.samples, f.success) for level, f in result.by_level.items()} == {
        "easy": (2, 0.5),
        "hard": (2, 0.0),
    }
    assert result.by_level["easy"].pass_at["pass@2"].value == 1.0


def test_the_order_in_which_rollouts_finish_changes_nothing() -> None:
    rollouts = [r for task in range(9) for r in sampled(f"{task}", 0.1 * task, 0.7)]
    outcomes = [outcome_of(msgspec.structs.replace(r, index=i)) for i, r in enumerate(rollouts)]
    assert result_of(outcomes, "", 0, 1.0, 0.5) == result_of(reversed(outcomes), "", 0, 1.0, 0.5)


def test_each_action_is_paid_with_all_that_was_sent_for_it() -> None:
    turns = (Observation((1, 2, 3)), Action((4, 5), (0.0, 0.0), (0, 0)), Observation((6,)), Action((7,), (0.0,), (0,)))
    failed = rollout(Status.FAILED, reward=None, usage=Usage(10, 100))  # of an API, and paid all the same
    result = summed_up([rollout(segments=turns), failed], prices=(1e6, 2e6))
    assert result.usage == Usage(3 + 6 + 10, 3 + 100)
    assert result.cost == 19 + 2 * 103
    assert summed_up([rollout()]).usage is None


class Coin(MultiTurnEnv):
    """Ten tasks, and chance."""

    def tasks(self, split: str) -> Iterator[Task]:
        for number in range(10):
            yield Task(f"{number}", level=f"{number % 2}")

    @reward
    def tossed(self, rollout: Rollout) -> float:
        return float(self.rng.random() < 0.5)


def toss(concurrent: int, tasks: int = 10, samples: int = 3, **given: object) -> list[Outcome]:
    config = Config(EnvConfig("coin"), ModelConfig("none"), eval=EvalConfig(tasks=tasks, samples=samples))
    runner = EpisodeRunner("coin", Coin, ScriptedAgent(lambda messages: Message("assistant", "tails")))

    async def main() -> list[Outcome]:
        return await play(config, runner, concurrent=concurrent, **given)  # type: ignore[arg-type]

    return sorted(anyio.run(main), key=lambda outcome: outcome.index)


def test_each_sample_of_a_task_has_chance_of_its_own_and_always_the_same() -> None:
    outcomes = toss(1)
    assert [o.index for o in outcomes] == list(range(30))
    assert [o.task for o in outcomes] == [f"eval-{number}" for number in range(10) for _ in range(3)]
    assert len({tuple(o.reward for o in outcomes[n : n + 3]) for n in range(0, 30, 3)}) > 2
    assert toss(16) == outcomes


def test_what_is_there_already_is_not_played_and_changes_nothing() -> None:
    played: list[Rollout] = []
    outcomes = toss(4, first=100, known=set(range(100, 125)), done=played.append)
    assert [o.index for o in outcomes] == [r.index for r in sorted(played, key=lambda r: r.index)] == [*range(125, 130)]
    assert [o.reward for o in outcomes] == [o.reward for o in toss(4)[25:]]


def test_a_problem_that_comes_again_is_the_same_task() -> None:
    result = result_of(toss(4, tasks=20, samples=1), "", None, 1.0, 1.0)
    assert result.reward is not None
    assert (result.samples, result.reward.tasks, list(result.pass_at)) == (20, 10, ["pass@2"])
