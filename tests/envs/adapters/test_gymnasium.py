"""Moonmill's environments in Gymnasium."""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import moonmill.envs.adapters.gymnasium as adapter
from moonmill import Message, MultiTurnEnv, Rollout, Task, metric, register, registry, reward, tool
from moonmill.envs.adapters.gymnasium import GymnasiumEnv, gymnasium_id
from moonmill.envs.library.calculator import demonstrate
from moonmill.errors import ConfigError, EnvCodeError, EpisodeOverError, MissingExtraError
from moonmill.registry import list_envs, make

CALL = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'


def call(name: str, **arguments: Any) -> str:
    return CALL.format(name, json.dumps(arguments))


class Odd(MultiTurnEnv):
    """Has what other environments have one at a time: async code, turn rewards, a weight, words beyond ASCII."""

    max_turns = 3

    def tasks(self, split: str) -> Iterator[Task]:
        rng = self.task_rng(split)
        while True:
            yield Task((Message("system", "→ be brief"), Message("user", f"{split} {rng.randint(0, 10**9)}")))

    @tool
    async def throw(self, faces: int) -> str:
        """Throw a die."""
        self.add_reward(0.25)
        return f"⚄ {self.rng.randint(1, faces)}"

    @reward(weight=2.0)
    def said(self, rollout: Rollout) -> float | None:
        return None if rollout.final_text() == "unscored" else float(rollout.final_text() == "done")

    @metric
    def turns(self, rollout: Rollout) -> float:
        return float(rollout.turns)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        register("odd-adapted-v0", Odd)
        adapter.register_envs()
        yield
    del gymnasium.registry["moonmill/OddAdapted-v0"]


def odd() -> Any:
    return gymnasium.make("moonmill/OddAdapted-v0")


def test_every_registered_environment_has_an_id_of_gymnasiums() -> None:
    ids = [gymnasium_id(spec.id) for spec in list_envs()]
    assert {"moonmill/Calculator-v0", "moonmill/PythonCode-v0", "moonmill/OddAdapted-v0"} <= set(ids)
    assert set(ids) <= gymnasium.registry.keys()


@pytest.mark.parametrize("id", ["moonmill/Calculator-v0", "moonmill/OddAdapted-v0"])
def test_gymnasiums_checker_finds_nothing_to_say(id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(id).unwrapped)


def test_a_spec_comes_back_from_json_with_its_arguments() -> None:
    env = gymnasium.make("moonmill/Calculator-v0", levels=[2])
    assert env.spec is not None
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    seen = [e.reset(seed=1)[0] for e in (env, again)]
    assert seen[0] == seen[1]
    assert sum(c in "+-*" for c in seen[0]) == 2


def test_an_episode_is_played_to_its_reward_through_calls_written_as_text() -> None:
    env = gymnasium.make("moonmill/Calculator-v0")
    observation, info = env.reset(seed=3)
    assert info["tools"] == [t.to_openai() for t in make("calculator-v0").tool_specs]
    messages = [Message("user", observation)]
    for _ in range(8):
        answer = demonstrate(messages)
        messages.append(answer)
        text = "".join(call(c.name, **c.arguments) for c in answer.tool_calls if isinstance(c.arguments, dict))
        observation, reward, terminated, truncated, info = env.step(text or answer.content)
        messages.append(Message("tool", observation, tool_call_id=answer.tool_calls[0].id if text else None))
        if terminated:
            break
        assert reward == 0.0
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["rewards"] == {"correct": 1.0}
    assert info["metrics"]["tool_calls"] == len(messages) // 2 - 1
    assert info["stop_reason"] == "answered"


def test_the_last_reward_has_what_the_episode_earned_besides_its_turns() -> None:
    env = odd()
    env.reset(seed=0)
    rewards = [env.step(text)[1] for text in (call("throw", faces=6), "done")]
    assert rewards == [0.25, 2.0]


def test_two_calls_in_one_turn_are_both_answered_and_what_stands_beside_them_is_kept() -> None:
    env = odd()
    env.reset(seed=0)
    observation, reward, *_ = env.step("Two of them." + call("throw", faces=1) + call("throw", faces=1))
    assert (observation, reward) == ("⚄ 1\n\n⚄ 1", 0.5)
    assert env.unwrapped.env.messages[2].content == "Two of them."


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("<tool_call>{no</tool_call>", "could not be read: between the tags stands no JSON"),
        ('<tool_call>{"name": "throw", "arguments": {"faces"', "could not be read: between the tags stands no JSON"),
        ("<tool_call>[]</tool_call>", "could not be read: a call is"),
        (call("roll"), "there is no tool 'roll'; the tools are: throw"),
        (call("throw", faces="six"), "wrong arguments for throw"),
        ('<tool_call>{"name": "throw", "arguments": [6]}</tool_call>', "they are not a JSON object"),
        ('<tool_call>{"name": "throw", "arguments": "{\\"faces\\": 1}"}</tool_call>', "⚄ 1"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_and_the_episode_goes_on(written: str, told: str) -> None:
    env = odd()
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step(written)
    assert told in observation
    assert not terminated
    assert not truncated


def test_an_action_that_is_no_text_is_refused_with_what_one_is() -> None:
    env: Any = odd()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"step: the action is 5, but should be a text: .*<tool_call>"):
        env.step(5)


def test_the_limits_and_the_end_are_the_environments() -> None:
    env = odd()
    env.reset(seed=0)
    for _ in range(2):
        assert env.step(call("throw", faces=6))[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(call("throw", faces=6))
    assert (terminated, truncated, info["stop_reason"], info["metrics"]["turns"]) == (False, True, "max_turns", 3.0)
    with pytest.raises(EpisodeOverError):
        env.step("more")


def test_an_episode_without_a_reward_raises_and_is_never_worth_0() -> None:
    env = odd()
    env.reset(seed=0)
    with pytest.raises(EnvCodeError, match=r"the episode has no reward: .*'said' returned None"):
        env.step("unscored")


def played(env: Any, seed: int | None) -> list[Any]:
    return [env.reset(seed=seed)[0], *(env.step(call("throw", faces=10**9))[0] for _ in range(2))]


def test_a_seed_decides_the_task_and_all_chance_and_the_next_reset_goes_on() -> None:
    one, other = odd(), odd()
    first, second = played(one, 7), played(one, None)
    assert len({*first, *second}) == 6
    assert first[0].startswith("→ be brief\n\ntrain ")
    assert [played(other, 7), played(other, None), played(other, 7)] == [first, second, first]


def test_episodes_that_take_turns_reproduce_those_played_alone() -> None:
    alone = [played(odd(), seed) for seed in (1, 2)]
    envs = odd(), odd()
    begun = [[env.reset(seed=seed)[0]] for env, seed in zip(envs, (1, 2), strict=True)]
    for _ in range(2):
        for env, seen in zip(envs, begun, strict=True):
            seen.append(env.step(call("throw", faces=10**9))[0])
    assert begun == alone


def test_the_split_and_a_task_of_ones_own_can_be_chosen() -> None:
    env = gymnasium.make("moonmill/OddAdapted-v0", split="eval")
    assert "eval" in env.reset(seed=0)[0]
    assert env.reset(options={"task": Task("this one")})[0] == "this one"


def test_eight_at_once_in_a_vector_are_stepped_and_begin_anew() -> None:
    envs = gymnasium.make_vec("moonmill/OddAdapted-v0", num_envs=8, vectorization_mode="sync")
    observations, infos = envs.reset(seed=0)
    assert len(set(observations)) == 8
    assert infos["tools"][7][0]["function"]["name"] == "throw"
    observations, rewards, *_ = envs.step([call("throw", faces=6)] * 4 + ["done"] * 4)
    assert rewards.tolist() == [0.25] * 4 + [2.0] * 4
    observations, *_ = envs.step(["done"] * 8)
    assert all("train" in text for text in observations[4:])
    envs.close()


def test_the_conversation_can_be_drawn() -> None:
    env = gymnasium.make("moonmill/OddAdapted-v0", render_mode="ansi")
    env.reset(seed=0)
    env.step(call("throw", faces=1))
    drawn: Any = env.render()
    assert drawn.splitlines()[-2:] == [f"assistant: {call('throw', faces=1)}", "tool: ⚄ 1"]


def test_an_observation_is_cut_to_what_its_space_holds() -> None:
    env = GymnasiumEnv("odd-adapted-v0")
    observation, _ = env.reset(options={"task": Task("x" * 200_000)})
    assert env.observation_space.contains(observation)
    assert "characters left out" in observation


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in [n for n in sys.modules if n.startswith("moonmill.envs.adapters.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"pip install 'moonmill\[gymnasium\]'"):
        make("moonmill.envs.adapters.gymnasium:GymnasiumEnv")
