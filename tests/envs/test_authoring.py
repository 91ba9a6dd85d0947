"""What it takes to write an environment."""

import doctest
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import anyio
import pytest

import moonmill
from moonmill import Message, Status, StopReason, Taskset, ToolCall, make
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent

UNITS = '''
    from typing import Literal

    from moonmill import MultiTurnEnv, Rollout, Task, reward, tool


    class Units(MultiTurnEnv):
        """Answer a question about lengths with the help of a converter and a notebook."""

        max_turns = 4

        def __init__(self, longest: int = 900):
            self.longest = longest

        def tasks(self, split):
            rng = self.task_rng(split)
            while True:
                km = rng.randint(2, self.longest)
                yield Task(f"How many miles are {km} km?", answer=km / 1.609344)

        @tool
        def convert(self, value: float, to: Literal["mi", "km"]) -> str:
            """Convert a length.

            Args:
                value: the length in the other unit
                to: the unit wanted
            """
            return f"{value / 1.609344 if to == 'mi' else value * 1.609344:.3f}"

        @tool
        def note(self, text: str) -> int:
            """Write something down; returns how many notes there are."""
            self.notes = [*getattr(self, "notes", []), text]
            return len(self.notes)

        @reward
        def correct(self, rollout: Rollout) -> float:
            return float(abs(rollout.final_number() - self.task.answer) < 0.01)
'''


def converter(messages: Sequence[Message]) -> Message | str:
    """A script that solves the tasks: note the question, convert, answer."""
    km = float(messages[0].content.split()[4])
    results = [m.content for m in messages if m.role == "tool"]
    if not results:
        return Message("assistant", tool_calls=(ToolCall("1", "note", {"text": messages[0].content}),))
    if len(results) == 1:
        return Message("assistant", tool_calls=(ToolCall("2", "convert", {"value": km, "to": "mi"}),))
    return f"It is {results[-1]} miles."


@pytest.fixture
def units(tmp_path: Path) -> str:
    path = tmp_path / "units.py"
    path.write_text(dedent(UNITS))
    return f"{path}:Units"


def test_two_tools_and_a_reward_take_less_than_forty_lines_and_no_asyncio() -> None:
    lines = [line for line in UNITS.splitlines() if line.strip()]
    assert len(lines) < 40
    assert "async" not in UNITS


def test_it_is_played_and_scored(units: str) -> None:
    task = Taskset(lambda: make(units), "train", 0).task(5)
    runner = EpisodeRunner("units-v0", lambda: make(units), ScriptedAgent(converter))
    rollout = anyio.run(lambda: runner.run(task, id="r", seed=1))
    assert (rollout.status, rollout.stop_reason, rollout.error) == (Status.FINISHED, StopReason.ANSWERED, None)
    assert (rollout.reward, rollout.rewards) == (1.0, {"correct": 1.0})
    assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert rollout.messages[2].content == "1"
    assert rollout.turn_rewards == (0.0, 0.0, 0.0)


def test_the_model_is_told_how_to_call_its_tools(units: str) -> None:
    convert, note = make(units).tool_specs
    assert (convert.name, convert.description) == ("convert", "Convert a length.")
    assert convert.parameters["properties"] == {
        "value": {"type": "number", "description": "the length in the other unit"},
        "to": {"enum": ["km", "mi"], "description": "the unit wanted"},
    }
    assert note.parameters["required"] == ["text"]


def test_it_can_be_tried_by_hand(units: str) -> None:
    env = make(units, longest=2)
    (question,), _ = env.reset(seed=0)
    assert question.content == "How many miles are 2 km?"
    observation, *_ = env.step(Message("assistant", tool_calls=(ToolCall("1", "convert", {"value": 2, "to": "mi"}),)))
    assert observation[0].content == "1.243"
    assert env.step("1.243")[2]


def test_importing_what_an_author_needs_imports_neither_torch_nor_an_http_client() -> None:
    modules = "moonmill.envs, moonmill.agents.runner"
    code = f"import sys, {modules}; print({{'torch', 'transformers', 'httpx'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_example_in_the_base_class_works() -> None:
    scope = {name: getattr(moonmill, name) for name in moonmill.__all__}
    [example] = doctest.DocTestFinder(recurse=False).find(moonmill.MultiTurnEnv, "MultiTurnEnv", globs=scope)
    assert doctest.DocTestRunner().run(example).failed == 0
