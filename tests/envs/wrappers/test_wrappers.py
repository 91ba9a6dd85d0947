"""What holds for every wrapper, and what each of them changes."""

import math
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from moonmill import Message, MultiTurnEnv, Rollout, Status, StopReason, Task, Taskset, metric, reward, stop, tool
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config_io import dump_config, load_config
from moonmill.envs.wrappers import (
    ClipReward,
    CutObservation,
    Limits,
    ObservationWrapper,
    Record,
    RewardWrapper,
    ScaleReward,
    Wrapper,
    factory_of,
    wrap,
)
from moonmill.errors import ConfigError, EnvCodeError, EpisodeOverError
from moonmill.jsonl import read_jsonl
from moonmill.wrapper_config import ClipRewardConfig, LimitsConfig, ScaleRewardConfig
from tests.envs.parts import call, says


class Shop(MultiTurnEnv):
    """Has turn rewards, weights, a metric, a `@stop`, and async code."""

    max_turns = 4

    def __init__(self) -> None:
        self.bought: list[int] = []

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            yield Task(f"buy {rng.randint(1, 10**6)}")

    @tool
    async def buy(self, number: int) -> str:
        """Buy something."""
        self.bought.append(number)
        self.add_reward(number)
        return "x" * number

    @stop
    def broke(self) -> bool:
        return sum(self.bought) > 150

    @reward(weight=2.0)
    def thrift(self, rollout: Rollout) -> float | None:
        return {"unscored": None, "wrong": 1000.0}.get(rollout.final_text(), 5.0)

    @metric
    async def things(self, rollout: Rollout) -> float:
        return float(len(self.bought))


def buys(*numbers: int) -> list[Message]:
    return [says(call("buy", number=n)) for n in numbers]


def play(factory: Callable[[], MultiTurnEnv], *said: Message | str, id: str = "0", seed: int = 0) -> Rollout:
    def script(messages: Any) -> Message | str:
        return said[sum(m.role == "assistant" for m in messages)]

    runner = EpisodeRunner("shop", factory, ScriptedAgent(script))
    task = Taskset(factory, "train", seed).task(0)
    return anyio.run(lambda: runner.run(task, id=id, seed=seed))


def shaped(wrapper: Any, **arguments: Any) -> Callable[[], MultiTurnEnv]:
    return lambda: wrapper(Shop(), **arguments)


def essence(rollout: Rollout) -> tuple[Any, ...]:
    return rollout.messages, rollout.reward, rollout.rewards, rollout.turn_rewards, rollout.metrics, rollout.stop_reason


def test_a_wrapper_that_changes_nothing_changes_nothing() -> None:
    said = *buys(2, 3), "done"
    assert essence(play(lambda: Wrapper(Wrapper(Shop())), *said)) == essence(play(Shop, *said))


def test_a_wrapper_is_an_environment_with_what_it_wraps_inside() -> None:
    env = Wrapper(Shop())
    assert isinstance(env, MultiTurnEnv)
    assert (env.max_turns, [t.name for t in env.tool_specs]) == (4, ["buy"])
    with pytest.raises(AttributeError, match="'Shop' object has no attribute 'nothing'"):
        _ = env.nothing
    not_one: Any = "shop"
    with pytest.raises(ConfigError, match="Wrapper wraps a MultiTurnEnv, and 'shop' is none"):
        Wrapper(not_one)


def test_the_environments_own_end_and_limits_hold_inside() -> None:
    assert play(shaped(Wrapper), *buys(80, 80)).stop_reason is StopReason.STOPPED
    assert play(shaped(Wrapper), *buys(1, 1, 1, 1)).stop_reason is StopReason.MAX_TURNS


def test_by_hand_an_episode_that_is_over_raises_and_a_second_one_begins_as_new() -> None:
    env = CutObservation(Shop(), characters=4)
    first, _ = env.reset(seed=0)
    env.step(buys(10)[0])
    *_, terminated, _, _ = env.step("done")
    assert terminated
    with pytest.raises(EpisodeOverError):
        env.step("more")
    second, _ = env.reset(seed=0)
    assert second != first
    assert env.bought == []
    assert env.scored(Rollout("0", "shop", env.task, Status.FINISHED, StopReason.ANSWERED)).metrics == {
        "observation_characters_cut": 0.0
    }


def test_a_turn_that_was_cut_off_is_told_to_the_environment() -> None:
    env = Wrapper(Shop())
    env.reset(seed=0)
    env.finish_reason = "length"
    assert env.env.finish_reason == "length"
    assert env.step("I would")[3]


@pytest.mark.parametrize(
    ("limits", "reason"), [({"turns": 2}, StopReason.MAX_TURNS), ({"turns": 6}, StopReason.ANSWERED)]
)
def test_limits_take_the_place_of_the_environments_own(limits: dict[str, Any], reason: StopReason) -> None:
    assert play(shaped(Limits, **limits), *buys(1, 1, 1, 1), "done").stop_reason is reason


def test_limits_hold_by_hand_too_and_in_every_episode() -> None:
    env = Limits(Shop(), turns=1, tokens=10, seconds=2.5)
    for _ in range(2):
        env.reset(seed=0)
        assert (env.max_turns, env.max_tokens, env.max_seconds) == (1, 10, 2.5)
        assert env.step(buys(1)[0])[3]


def test_time_runs_out_where_a_limit_says_so() -> None:
    class Slow(Shop):
        async def step(self, action: Any) -> Any:
            await anyio.sleep(30)

    rollout = play(lambda: Limits(Slow(), seconds=0.05), "done")
    assert (rollout.status, rollout.stop_reason) == (Status.TRUNCATED, StopReason.TIME_LIMIT)


def test_an_episode_that_is_left_behind_is_closed_inside_its_wrappers() -> None:
    free, blocked, closed = threading.Event(), threading.Event(), []

    class Stuck(Shop):
        def step(self, action: Any) -> Any:
            blocked.set()
            free.wait(20)
            return super().step(action)

        async def close(self) -> None:
            closed.append(True)

    rollout = play(lambda: Limits(Wrapper(Stuck()), seconds=0.5), "done")
    assert blocked.is_set()
    assert (rollout.stop_reason, closed) == (StopReason.TIME_LIMIT, [True])
    free.set()


def test_a_limit_that_cannot_be_is_told() -> None:
    class Fixed(Shop):
        @property
        def max_turns(self) -> int:  # type: ignore[override]
            return 3

    with pytest.raises(ConfigError, match=r"Fixed\.max_turns is a property: limits cannot set it"):
        Limits(Fixed(), turns=2)
    with pytest.raises(EnvCodeError, match="max_turns is 0, but should be a whole number of at least 1"):
        Limits(Shop(), turns=0)


def test_a_long_observation_is_cut_and_counted_and_the_prompt_is_not() -> None:
    rollout = play(shaped(CutObservation, characters=6), *buys(10, 6), "done")
    answers = [m.content for m in rollout.messages if m.role == "tool"]
    assert answers == ["xxx\n[4 characters left out]\nxxx", "xxxxxx"]
    assert len(rollout.messages[0].content) > 6
    assert rollout.metrics == {"things": 2.0, "observation_characters_cut": 4.0}


def test_two_cuts_are_counted_together() -> None:
    rollout = play(lambda: CutObservation(CutObservation(Shop(), characters=50), characters=4), *buys(60), "done")
    assert rollout.metrics["observation_characters_cut"] == 10 + len("x" * 50 + "\n[10 characters left out]\n") - 4


def test_scaling_multiplies_every_reward_and_the_bounds() -> None:
    rollout = play(shaped(ScaleReward, factor=0.5), *buys(2, 3), "done")
    assert rollout.turn_rewards == (1.0, 1.5, 0.0)
    assert rollout.rewards == {"thrift": 2.5}
    assert rollout.reward == 1.0 + 1.5 + 2 * 2.5
    assert ScaleReward(Shop(), factor=0.5).reward_bounds == (-50.0, 50.0)


def test_clipping_clips_every_reward_by_itself() -> None:
    rollout = play(shaped(ClipReward, low=-1, high=2.5), *buys(2, 3, -4), "done")
    assert rollout.turn_rewards == (2.0, 2.5, -1.0, 0.0)
    assert rollout.reward == 3.5 + 2 * 2.5


def test_a_turn_that_earns_nothing_is_within_bounds_without_0() -> None:
    rollout = play(shaped(ClipReward, low=1, high=4), *buys(2, 6, -4), "done")
    assert rollout.turn_rewards == (2.0, 4.0, 1.0, 0.0)
    assert rollout.reward == 7 + 2 * 4.0


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda rollout: replace(rollout, reward=math.nan), "scored, as the reward, returned nan"),
        (lambda rollout: replace(rollout, reward=1e300), r"as the reward, returned 1e\+300"),
        (lambda rollout: replace(rollout, metrics={"cost": "much"}), "for 'cost', returned 'much'"),
        (lambda rollout: None, r"Odd\.scored returned None, but should return the rollout"),
    ],
)
def test_what_a_wrapper_makes_of_a_rollout_is_looked_at(made: Callable[[Rollout], Any], told: str) -> None:
    class Odd(Wrapper):
        def scored(self, rollout: Rollout) -> Any:
            return made(rollout)

    rollout = play(shaped(Odd), "done")
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert re.search(told, rollout.error or "")


def test_shaping_takes_place_from_the_inside_out() -> None:
    inner_first = wrap(Shop(), [ScaleRewardConfig(0.5), ClipRewardConfig(-1, 2)])
    outer_first = wrap(Shop(), [ClipRewardConfig(-1, 2), ScaleRewardConfig(0.5)])
    rollouts = [play(lambda env=env: env, *buys(3), "done") for env in (inner_first, outer_first)]  # type: ignore[misc]
    assert [(r.turn_rewards[0], r.rewards["thrift"], r.reward) for r in rollouts] == [(1.5, 2.0, 5.5), (1.0, 1.0, 3.0)]


def test_a_success_is_told_by_what_rewards_were_before() -> None:
    once = play(shaped(ClipReward, low=-1, high=0.5), *buys(2, 3), "done")
    assert (once.reward, once.unshaped, once.judged) == (1.0 + 2 * 0.5, 5 + 2 * 5.0, 15.0)
    twice = play(lambda: ScaleReward(ClipReward(Shop(), low=-1, high=0.5), factor=0.1), *buys(2, 3), "done")
    assert (twice.reward, twice.judged) == (pytest.approx(0.2), 15.0)
    never = play(shaped(Limits), *buys(2, 3), "done")
    assert (never.reward, never.unshaped, never.judged) == (15.0, None, 15.0)


def test_a_second_episode_of_one_instance_is_judged_by_its_own_turns() -> None:
    env = ClipReward(Shop(), low=-1, high=0.5)
    assert [play(lambda: env, *buys(3), "done").judged for _ in range(2)] == [13.0, 13.0]


@pytest.mark.parametrize("wrapper", [partial(ClipReward, low=-1, high=1), partial(ScaleReward, factor=0.01)])
def test_a_wrong_reward_stays_wrong_and_none_stays_none(wrapper: Any) -> None:
    wrong = play(shaped(wrapper), "wrong")
    assert (wrong.status, wrong.reward, wrong.stop_reason) == (Status.FAILED, None, StopReason.SCORING_ERROR)
    unscored = play(shaped(wrapper), "unscored")
    assert (unscored.status, unscored.reward) == (Status.FINISHED, None)
    dear = play(shaped(wrapper), *buys(101))
    assert (dear.status, dear.reward, dear.stop_reason) == (Status.FAILED, None, StopReason.SCORING_ERROR)
    assert dear.error is not None
    assert "Shop.step, as the turn's reward, returned 101" in dear.error


@pytest.mark.parametrize(
    ("wrapper", "arguments"),
    [(ClipReward, {"low": 1, "high": 1}), (ClipReward, {"low": math.nan, "high": 1}), (ScaleReward, {"factor": 0})],
)
def test_shaping_that_makes_no_sense_is_refused(wrapper: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="but "):
        wrapper(Shop(), **arguments)


def test_every_scored_rollout_is_recorded_as_it_left_the_wrappers_inside(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"

    def factory() -> MultiTurnEnv:
        return Record(ScaleReward(Shop(), factor=0.5), path=str(path))

    async def several() -> list[Rollout]:
        runner = EpisodeRunner("shop", factory, ScriptedAgent(lambda messages: "done"))
        task, rollouts = Taskset(factory, "train", 0).task(0), []

        async def one(id: str) -> None:
            rollouts.append(await runner.run(task, id=id, seed=0))

        async with anyio.create_task_group() as group:
            for i in range(20):
                group.start_soon(one, str(i))
        return rollouts

    played = anyio.run(several)
    lines = list(read_jsonl(path, Rollout))
    assert {r.id: essence(r) for r in lines} == {r.id: essence(r) for r in played}
    assert len(lines) == 20
    assert lines[0].reward == 5.0


def test_a_rollout_that_cannot_be_recorded_has_failed(tmp_path: Path) -> None:
    rollout = play(shaped(Record, path=str(tmp_path / "no" / "folder.jsonl")), "done")
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert "cannot write" in str(rollout.error)


def test_wrappers_of_ones_own_change_what_they_override() -> None:
    class Loud(ObservationWrapper):
        def observation(self, messages: Any) -> Any:
            return tuple(Message(m.role, m.content.upper(), tool_call_id=m.tool_call_id) for m in messages)

    class Squared(RewardWrapper):
        def reward(self, reward: float) -> float:
            return math.copysign(reward**2, reward)

    rollout = play(lambda: Squared(Loud(Shop())), *buys(3), "done")
    assert (rollout.messages[2].content, rollout.turn_rewards, rollout.reward) == ("XXX", (9.0, 0.0), 59.0)


CONFIG = """
env:
  id: calculator-v0
  args: {levels: [1]}
  wrappers:
    - {type: limits, turns: 5, seconds: 30}
    - {type: cut_observation, characters: 2}
    - {type: scale_reward, factor: 0.5}
    - {type: clip_reward, low: -1, high: 0.25}
    - {type: record, path: rollouts.jsonl}
    - {type: curriculum, path: course.jsonl, levels: ["1"]}
model: {path: p}
"""


def test_a_config_lists_them_and_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "b.yaml").env == config.env
    assert config.env.wrappers[0] == LimitsConfig(turns=5, seconds=30)
    env: Any = factory_of(config.env)()
    assert (env.max_turns, env.max_seconds, env.reward_bounds, env.levels) == (5, 30, (0.0, 0.25), (1,))
    kinds = []
    while isinstance(env, Wrapper):
        kinds.append(type(env).__name__)
        env = env.env
    assert kinds == ["Curriculum", "Record", "ClipReward", "ScaleReward", "CutObservation", "Limits"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{type: clip_rewards, low: 1}", r"env\.wrappers\[1\]\.type.*did you mean `clip_reward`"),
        ("{type: scale_reward, factor: 0}", r"env\.wrappers\[1\]\.factor.*expected a number above 0"),
        ("{type: limits, turn: 3}", r"env\.wrappers\[1\]\.turn.*did you mean `turns`"),
        ("{type: cut_observation}", r"env\.wrappers\[1\]\.characters.*required, and missing"),
    ],
)
def test_a_wrong_entry_is_told_with_its_place(written: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        f"env: {{id: calculator-v0, wrappers: [{{type: limits, turns: 2}}, {written}]}}\nmodel: {{path: p}}\n"
    )
    with pytest.raises(ConfigError, match=told):
        load_config(tmp_path / "a.yaml")
