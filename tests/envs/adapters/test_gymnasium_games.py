"""Gymnasium's environments in Moonmill."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import anyio
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from moonmill import Message, Rollout, Status, StopReason, Task, Taskset, ToolCall, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs.adapters.gymnasium import from_gymnasium
from moonmill.envs.adapters.spaces import ActionSpace, check_observations, told
from moonmill.envs.tools import ToolArgumentsError
from moonmill.errors import ConfigError, EnvCodeError

DRY = {"is_slippery": False}


def play(factory: Callable[[], Any], *moves: Message | str, seed: int = 1) -> Rollout:
    def script(messages: Any) -> Message | str:
        return moves[sum(m.role == "assistant" for m in messages)]

    runner = EpisodeRunner("game", factory, ScriptedAgent(script))
    return anyio.run(lambda: runner.run(factory_task(factory, seed), id="0", seed=0))


def factory_task(factory: Callable[[], Any], seed: int) -> Task:
    return Taskset(factory, "train", seed).task(0)


def lake(interface: str = "text") -> Any:
    return make("gymnasium:FrozenLake-v1", interface=interface, kwargs=DRY)


def act(action: Any, id: str = "1") -> ToolCall:
    return ToolCall(id, "act", {"action": action})


def test_the_first_observation_stands_in_the_prompt_with_the_rules_and_the_actions() -> None:
    (message,) = lake().reset(options={"task": factory_task(lake, 0)})[0]
    assert message.role == "user"
    assert "An action is one of: left, down, right, up." in message.content
    assert message.content.endswith("\n\n[S]FFF\nFHFH\nFFFH\nHFFG")


def test_a_game_is_won_in_words_and_pays_the_turn_that_won_it() -> None:
    rollout = play(lake, "down", "I go on.\nDown", "2", "right", "down", "right")
    assert (rollout.status, rollout.stop_reason) == (Status.FINISHED, StopReason.STOPPED)
    assert rollout.turn_rewards == (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert rollout.reward == 1.0
    assert rollout.messages[-1].content.splitlines()[-1] == "HFF[G]"


def test_a_game_is_won_through_the_tool() -> None:
    moves = ["down", 1, "right", "right", "down", "right"]
    rollout = play(lambda: lake("tool"), *(Message("assistant", tool_calls=(act(m),)) for m in moves))
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FINISHED, StopReason.STOPPED, 1.0)


def test_calls_behind_the_end_of_a_game_are_answered_with_that_it_is_over() -> None:
    env = lake("tool")
    env.reset(options={"task": Task("go", seed=1)})
    calls = (act("right", "1"), act("down", "2"), act("down", "3"))
    answers, reward, terminated, *_ = env.step(Message("assistant", tool_calls=calls))
    assert [a.content.splitlines()[-1] for a in answers[1:]] == ["HFFG", "error: the game is over"]
    assert (reward, terminated) == (0.0, True)


@pytest.mark.parametrize("interface", ["text", "tool"])
def test_an_answer_that_is_no_action_is_told_costs_a_turn_and_is_counted(interface: str) -> None:
    moves: list[Message | str] = ["jump", "down", "7"]
    if interface == "tool":
        moves = [Message("assistant", tool_calls=(act(m),)) for m in moves]
    env = make("gymnasium:FrozenLake-v1", interface=interface, kwargs=DRY, max_turns=3)
    said = "error: 'jump' is no action; an action is one of: left, down, right, up"
    rollout = play(lambda: make("gymnasium:FrozenLake-v1", interface=interface, kwargs=DRY, max_turns=3), *moves)
    assert rollout.messages[2].content == said
    assert (rollout.status, rollout.stop_reason) == (Status.TRUNCATED, StopReason.MAX_TURNS)
    assert rollout.metrics == {"invalid_actions": 2.0}
    assert env.max_turns == 3


def test_a_call_in_a_game_of_text_is_answered_and_no_move() -> None:
    env = lake()
    env.reset(options={"task": Task("go", seed=1)})
    answers, _, terminated, *_ = env.step(Message("assistant", tool_calls=(act("down"),)))
    assert "there is no tool 'act'" in answers[0].content
    assert not terminated


def test_a_turn_that_was_cut_off_is_no_move() -> None:
    env = lake()
    env.reset(options={"task": Task("go", seed=1)})
    env.finish_reason = "length"
    assert env.step("down")[3]


def test_the_games_own_limit_truncates() -> None:
    def short() -> Any:
        return make("gymnasium:FrozenLake-v1", kwargs={**DRY, "max_episode_steps": 2}, max_turns=9)

    rollout = play(short, "left", "left")
    assert (rollout.status, rollout.stop_reason, rollout.turns) == (Status.TRUNCATED, StopReason.STOPPED, 2)
    assert make("gymnasium:CartPole-v1").max_turns == 500


def test_taxi_is_told_in_words() -> None:
    def taxi() -> Any:
        return make("gymnasium:Taxi-v4")

    rollout = play(taxi, "pickup", "dropoff", *["south"] * 198)
    row, column, passenger, goal = taxi().game.unwrapped.decode(_first_state(taxi()))
    where = ["is at R", "is at G", "is at Y", "is at B"][passenger]
    assert rollout.messages[0].content.endswith(
        f"The taxi is in row {row}, column {column}. The passenger {where} and wants to go to {'RGYB'[goal]}."
    )
    assert rollout.turn_rewards[:2] == (-10.0, -10.0)
    assert rollout.reward == -20.0 - 198


def _first_state(env: Any) -> int:
    state: int = env.game.reset(seed=factory_task(lambda: env, 1).seed)[0]
    return state


def test_the_cliff_sends_back() -> None:
    rollout = play(lambda: make("gymnasium:CliffWalking-v1", max_turns=2), "right", "up")
    assert rollout.messages[0].content.splitlines()[-1].split() == ["x", *"C" * 10, "T"]
    assert rollout.messages[2].content.splitlines()[-1].split() == ["x", *"C" * 10, "T"]
    assert rollout.turn_rewards == (-100.0, -1.0)


def test_a_hand_of_blackjack_is_played() -> None:
    rollout = play(lambda: make("gymnasium:Blackjack-v1"), "stick")
    assert rollout.status is Status.FINISHED
    assert rollout.reward in (-1.0, 0.0, 1.0, 1.5)
    assert "You have " in rollout.messages[0].content
    assert "The dealer shows " in rollout.messages[0].content


def test_the_cart_is_pushed_by_words() -> None:
    rollout = play(lambda: make("gymnasium:CartPole-v1"), *["left"] * 30)
    assert rollout.status is Status.FINISHED
    assert rollout.reward == rollout.turns
    assert "pole angle in radians " in rollout.messages[1 + 1].content


def test_the_splits_share_no_seed_and_a_seed_gives_the_same_tasks() -> None:
    env = lake()
    train, again, held_out = (
        {task.seed for task in islice(env.tasks(split), 500)} for split in ("train", "train", "eval")
    )
    assert train == again
    assert not train & held_out
    with pytest.raises(ConfigError, match="has no split 'test'"):
        next(env.tasks("test"))


def test_chance_comes_from_the_tasks_seed_also_where_episodes_take_turns() -> None:
    """On slippery ice."""

    def walk(env: Any) -> list[str]:
        return [env.step("right")[0][0].content for _ in range(4)]

    def begun(seed: int) -> Any:
        env = make("gymnasium:FrozenLake8x8-v1")
        env.reset(seed=99, options={"task": Task("go", seed=seed)})
        return env

    alone = [walk(begun(seed)) for seed in (1, 2, 3)]
    together = [begun(seed) for seed in (1, 2, 3)]
    steps = [[env.step("right")[0][0].content for env in together] for _ in range(4)]
    assert [list(walked) for walked in zip(*steps, strict=True)] == alone
    assert len({tuple(walked) for walked in alone}) > 1


class Knobs(gymnasium.Env[Any, Any]):
    """Observes what was done last."""

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.observation_space = spaces.Tuple((spaces.Discrete(9), spaces.Dict({"last": action_space})))
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed = seed
        return (0, {"last": self.action_space.sample()}), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return (1, {"last": action}), 0.5, False, False, {}


@pytest.mark.parametrize(
    ("space", "answer", "shown"),
    [
        (spaces.MultiDiscrete([3, 4]), "2, 3", "[2,3]"),
        (spaces.MultiBinary(3), "[1 0 1]", "[1,0,1]"),
        (spaces.Box(-1, 1, (2,)), "0.5, -0.25", "[0.5,-0.25]"),
        (spaces.Box(-1, 1, (2, 1)), [[0.5], [1 / 3]], "[[0.5],[0.3333]]"),
        (spaces.Text(8), "push\nit", '"push\\nit"'),
        (spaces.Discrete(3, start=4), "6", "6"),
    ],
)
def test_every_kind_of_action_is_read_and_shown(space: Any, answer: Any, shown: str) -> None:
    if isinstance(space, spaces.Text):
        space = spaces.Text(8, charset="push\nit")
    env: Any = from_gymnasium(lambda: Knobs(space), interface="tool", rules="Turn the knobs.")
    messages, _ = env.reset(options={"task": next(iter(env.tasks("train")))})
    assert messages[-1].content.startswith("Turn the knobs.\nCall `act` with your action. An action is a")
    answers, reward, *_ = env.step(Message("assistant", tool_calls=(act(answer),)))
    assert answers[0].content == f'[1,{{"last":{shown}}}]'
    assert reward == 0.5
    assert env.game.seed == env.task.seed


@pytest.mark.parametrize(
    ("space", "answer"),
    [
        (spaces.MultiDiscrete([3, 4]), "2, 4"),
        (spaces.MultiDiscrete([3, 4]), "2"),
        (spaces.MultiDiscrete([3, 4]), "1.5, 1"),
        (spaces.MultiBinary(2), [2, 0]),
        (spaces.MultiBinary(2), ["x", None]),
        (spaces.MultiBinary(2), "256, 257"),
        (spaces.Box(0, 255, (2,), np.uint8), "-1, 300"),
        (spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64), "1e300"),
        (spaces.Box(-1, 1, (2,)), "nan, 0"),
        (spaces.Box(-1, 1, (2,)), "1e999 0"),
        (spaces.Box(-1, 1, (2,)), [[0.5], [0.1, 0.2]]),
        (spaces.Discrete(3), "3"),
        (spaces.Discrete(3), ""),
        (spaces.Discrete(3), "9" * 5000),
        (spaces.Text(3), "long!"),
    ],
)
def test_what_is_no_action_is_refused_in_words(space: Any, answer: Any) -> None:
    with pytest.raises(ToolArgumentsError, match="is no action; an action is a"):
        ActionSpace(space).read(answer)


def test_numbers_are_shown_with_four_digits_and_texts_as_they_are() -> None:
    assert (
        told((np.float32(1 / 3), np.array([[1, 2]]), "so", {"a": np.bool_(True)})) == '[0.3333,[[1,2]],"so",{"a":true}]'
    )
    assert told("so") == "so"


def test_what_a_model_cannot_read_or_answer_is_refused_when_it_is_made() -> None:
    image = spaces.Box(0, 255, (8, 9), np.uint8)
    with pytest.raises(ConfigError, match=r"observation space .* give `kwargs: {render_mode: ansi}`"):
        check_observations(spaces.Dict({"image": image}))
    with pytest.raises(ConfigError, match=r"the action space .* cannot be answered in words"):
        ActionSpace(image)
    with pytest.raises(ConfigError, match=r"actions has 2 names, but the action space is Discrete\(4\)"):
        make("gymnasium:FrozenLake-v1", actions=["a", "b"])


@pytest.mark.parametrize(
    ("id", "arguments", "words"),
    [
        ("gymnasium:FrozenLak-v1", {}, "gymnasium:FrozenLak-v1: .*FrozenLake"),
        ("gymnasium:no_such_module:Game-v0", {}, "gymnasium:no_such_module:Game-v0: "),
        ("gymnasium:FrozenLake-v1", {"kwargs": {"ice": 1}}, "cannot be made: .*ice"),
        ("gymnasium:FrozenLake-v1", {"interface": "speech"}, "interface is 'speech'"),
        ("gymnasium:FrozenLake-v1", {"speed": 2}, "it takes: interface, kwargs, actions, rules, max_turns"),
        ("gymnasium:FrozenLake-v1", {"id": "Taxi-v3"}, "id is said by the environment's id; it takes: interface,"),
    ],
)
def test_a_wrong_id_or_argument_is_told(id: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(id, **arguments)


def test_a_function_that_makes_no_game_is_told() -> None:
    not_one: Any = dict
    with pytest.raises(EnvCodeError, match=r"should make a gymnasium\.Env"):
        from_gymnasium(not_one)


def test_what_a_function_makes_has_its_games_name_and_nothing_else_that_is_known_of_it() -> None:
    env = from_gymnasium(lambda: gymnasium.make("Taxi-v4"))
    env.reset(seed=0)
    assert env.messages[0].content.startswith("Play Taxi.\n")
