"""Environments of verifiers, of both APIs and versions, played by a script: what comes of them, and what goes wrong."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from moonmill import Message, Rollout, Status, StopReason, Task, make
from moonmill.agents.replaying import replay
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.cli.envs import describe
from moonmill.config import EnvConfig
from moonmill.envs.adapters.verifiers.added import Added, find
from moonmill.errors import ConfigError
from tests.verifiers.playing import calculating, known_as, play, tasks_of

SUMS, SUMS_V0 = "verifiers:moonmill-sums", "verifiers:moonmill-sums-v0"
SLOW, BROKEN = 40, 41
"""Tasks whose scorer outlasts its time-out, or raises."""


@pytest.fixture(scope="module")
def everything() -> list[Task]:
    return tasks_of(SUMS, "all", 42)


@pytest.fixture(scope="module")
def played(everything: list[Task]) -> list[Rollout]:
    return play(SUMS, [*everything[:8], everything[SLOW], everything[BROKEN]])


def test_every_task_is_scored_by_the_environment_itself(played: list[Rollout]) -> None:
    for rollout in played[:8]:
        assert (rollout.status, rollout.stop_reason) == (Status.FINISHED, StopReason.ANSWERED)
        assert (rollout.reward, rollout.rewards, rollout.metrics) == (1.0, {"exact": 0.5}, {"calls": 1.0})
        assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
        assert rollout.final_text() == "It is 100"


def test_a_scorer_that_ran_into_its_time_out_leaves_no_reward(played: list[Rollout]) -> None:
    assert (played[8].status, played[8].reward, played[8].rewards) == (Status.FINISHED, None, {})


def test_a_scorer_that_raised_makes_the_rollout_fail_in_its_words(played: list[Rollout]) -> None:
    assert (played[9].status, played[9].reward) == (Status.FAILED, None)
    assert "ValueError: the scorer is broken" in str(played[9].error)


def test_the_splits_have_no_task_in_common(everything: list[Task]) -> None:
    train, evaluation = (tasks_of(SUMS, split, 8) for split in ("train", "eval"))
    assert [t.id for t in evaluation] == [f"sum-{5 * i}" for i in range(8)]
    assert not {t.id for t in train} & {t.id for t in evaluation}
    assert [t.id for t in everything[-2:]] == ["slow", "broken"]
    assert train[0].messages() == (Message("user", "11+89"),)
    assert (train[0].answer, train[0].info["task"]) == (100, {"index": 1})
    assert msgspec.json.decode(msgspec.json.encode(train[0]), type=Task) == train[0]


def test_a_tool_that_blocks_or_raises_holds_up_nobody_else(everything: list[Task]) -> None:
    def script(messages: Sequence[Message]) -> Message | str:
        wrong = {"11+89": "sleep", "12+88": "nonsense"}.get(messages[0].content)
        return calculating([Message("user", wrong)]) if wrong and len(messages) == 1 else calculating(messages)

    blocked, broken, good = play(SUMS, everything[1:4], script)
    assert "NoneType" in broken.messages[2].content
    assert broken.metrics == {"calls": 1.0}
    [fault] = broken.tool_faults
    assert (fault.tool, fault.kind, fault.count) == ("calculate", "AttributeError", 1)
    assert "NoneType" in fault.example
    assert good.tool_faults == ()
    assert good.timings.total < blocked.timings.total - 0.5
    assert good.reward == 1.0


def test_the_first_api_is_played_with_its_rewards_by_turn() -> None:
    train, evaluation = (tasks_of(SUMS_V0, split, 2) for split in ("train", "eval"))
    assert [t.id for t in train + evaluation] == ["train-1", "train-2", "train-0", "train-5"]
    for rollout in play(SUMS_V0, train + evaluation):
        assert (rollout.status, rollout.reward, rollout.metrics["calculate_calls"]) == (Status.FINISHED, 1.0, 1.0)
        assert (rollout.metrics["turn_0_reward"], rollout.metrics["turn_1_reward"]) == (0.25, 0.25)


def test_an_episode_is_replayed_byte_for_byte(played: list[Rollout]) -> None:
    [first_api] = play(SUMS_V0, tasks_of(SUMS_V0, "train", 1))
    for rollout in (played[1], first_api):
        done = anyio.run(replay, rollout, partial(make, rollout.env))
        assert (done.turns, done.difference, done.skipped, done.refused) == (2, None, "", "")
        other = replace(rollout, messages=(Message("user", "1+1"), *rollout.messages[1:]))
        done = anyio.run(replay, other, partial(make, rollout.env))
        assert done.difference is not None
        assert (done.difference.where, done.difference.second) == ("the prompt", '{"role":"user","content":"11+89"}')


def test_it_is_described_by_its_taskset_or_its_module() -> None:
    for env, api in ((SUMS, "second"), (SUMS_V0, "first")):
        assert str(describe(EnvConfig(env), 0)["description"]).startswith(
            f"Arithmetic with a calculator, in the {api} API"
        )


@pytest.fixture
def duel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment for three agents, in the Python environment of `SUMS`."""
    added = find("moonmill-sums")
    assert added is not None, "run `make test-verifiers`, which adds it"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known_as(replace(added, id="moonmill-duel"))
    return "verifiers:moonmill-duel"


def test_one_of_several_agents_is_trained_in_its_turn(duel: str) -> None:
    numbers = {"first: a number": "2", "second: a number": "1", "judge: 2 or 1": "the first"}
    asked: list[str] = []

    def script(messages: Sequence[Message]) -> str:
        asked.append(messages[-1].content)
        return numbers[asked[-1]]

    rollouts = play(duel, tasks_of(duel, "all", 3), script)
    assert [(r.messages[0].content, r.reward, r.rewards) for r in rollouts] == [
        ("first: a number", 1.0, {"won": 1.0}),
        ("second: a number", 0.0, {"won": 0.0}),
        ("first: a number", 1.0, {"won": 1.0}),
    ]
    assert sorted(asked) == sorted([*numbers] * 3)
    done = anyio.run(replay, rollouts[0], partial(make, duel))
    assert "its program asked more of the model than its messages tell" in done.refused


def test_an_episode_that_ends_before_the_turn_of_the_agent_to_train_says_so(duel: str) -> None:
    first, second = play(duel, tasks_of(duel, "all", 2), lambda _: "I give up")
    assert (first.status, first.reward) == (Status.FINISHED, 0.0)
    assert (second.status, second.reward) == (Status.FAILED, None)
    assert "the agent to train, second, had no turn: the episode ended before it" in str(second.error)


def test_the_agent_to_train_can_be_named(duel: str) -> None:
    [task] = tasks_of(duel, "all", 1)

    async def run(agent: str) -> Rollout:
        runner = EpisodeRunner(duel, partial(make, duel, trained_agent=agent), ScriptedAgent(lambda _: "3"))
        return await runner.run(task, id="0", seed=0)

    second = anyio.run(run, "second")
    assert (second.messages[0].content, second.reward) == ("second: a number", 1.0)
    assert "trained_agent is 'third', and its agents are: first, second, judge" in str(anyio.run(run, "third").error)


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment of the second API, in the Python environment of 0.3.1."""
    added = find("moonmill-sums-v0")
    assert added is not None, "run `make test-verifiers`, which adds it"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known_as(Added("moonmill-sums", added.python, "0.3.1", "v1"))
    return SUMS


def test_the_older_version_plays_the_second_api_as_well(older: str) -> None:
    rollouts = play(older, tasks_of(older, "train", 2))
    assert [(r.reward, r.metrics) for r in rollouts] == [(1.0, {"calls": 1.0})] * 2


def test_what_is_not_known_is_told_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"^verifiers:nothing is not known here: run `moonmill envs add verifiers:no"):
        make("verifiers:nothing")
