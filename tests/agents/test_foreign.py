"""Episodes that a program plays, through the recording proxy: what is told, what is recorded, and every way to end."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from openai import AsyncOpenAI

from moonmill import Action, Message, Observation, Rollout, Sampling, Status, StopReason, Task, ToolCall, reward
from moonmill.agents.client import InferenceClient
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.processes import ServerProcess
from moonmill.agents.rendering import load_renderer
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Endpoint, ForeignEnv, Outcome

pytestmark = pytest.mark.anyio

POLICY = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
MAX_LENGTH = 128
TASK = Task("(48+7)*21", id="t")
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Work out one operation.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
Play = Callable[[AsyncOpenAI, Endpoint], Any]


class Played(ForeignEnv):
    """Is played by what the test gives it."""

    max_seconds = 20.0

    def __init__(self, program: Play) -> None:
        self.program = program

    def tasks(self, split: str) -> Iterator[Task]:
        yield TASK

    async def play(self, task: Task, model: Endpoint, seed: int) -> Outcome | None:
        async with AsyncOpenAI(base_url=model.url, api_key=model.key, max_retries=0) as client:
            outcome: Outcome | None = await self.program(client, model)
            return outcome


class Scored(Played):
    """Has a reward of its own."""

    max_turns = 3
    max_seconds = 1.0

    @reward
    def right(self, rollout: Rollout) -> float:
        return float(rollout.final_text() == "1155")


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    argv = [sys.executable, "-m", "moonmill.agents.engine", "--model", str(POLICY), "--served-name", "policy-v0"]
    argv += ["--max-length", str(MAX_LENGTH), "--port", "0", "--exit-with-stdin"]
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ServerProcess("engine", argv, log_path=log, start_timeout=120)) as process,
    ):
        yield process.base_url


@pytest.fixture
async def policy(engine_url: str) -> AsyncIterator[PolicyAgent]:
    async with InferenceClient(engine_url) as client:
        yield PolicyAgent(client, load_renderer(POLICY), Sampling(temperature=1.0, max_tokens=32), MAX_LENGTH)


async def run(program: Play, agent: Any, kind: type[Played] = Played) -> Rollout:
    return await EpisodeRunner("played", lambda: kind(program), agent).run(TASK, id="r", seed=3)


async def converse(client: AsyncOpenAI, messages: list[Any], turns: int = 1) -> list[Any]:
    """Some turns with the calculator; every call is answered with 55."""
    for _ in range(turns):
        said = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATE])
        message = said.choices[0].message
        messages = [*messages, message.model_dump(exclude_none=True)]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "55"} for c in message.tool_calls or ()]
        messages += results or [{"role": "user", "content": "7+7"}]
    return messages


def asking(text: str = "(48+7)*21") -> list[Any]:
    return [{"role": "user", "content": text}]


def tokens(contexts: Sequence[Sequence[Action | Observation]]) -> list[list[int]]:
    return [[t for segment in context for t in segment.tokens] for context in contexts]


async def test_a_conversation_that_goes_on_is_one_context(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        await converse(client, asking(), turns=3)
        return Outcome(reward=0.5, rewards={"style": 1.0}, metrics={"tools": 2.0})

    rollout = await run(program, policy)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FINISHED, StopReason.ANSWERED, 0.5)
    assert (rollout.rewards, rollout.metrics, rollout.turns) == ({"style": 1.0}, {"tools": 2.0}, 3)
    assert rollout.branches == ()
    assert [type(s) for s in rollout.segments] == [Observation, Action] * 3
    assert {v for a in rollout.actions for v in a.versions} == {0}
    text = policy.renderer.decode(tokens([rollout.segments])[0])
    assert text.count("55") >= 1
    assert rollout.messages[0].content == "(48+7)*21"
    assert 0 < rollout.timings.generation <= rollout.timings.total


async def test_an_edited_history_forks_a_branch_and_shared_tokens_are_sampled_once(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        first = await converse(client, asking())
        await converse(client, first)
        other = [*first[:-1], {**first[-1], "content": "99"}]
        await converse(client, other)
        await converse(client, asking("12+5"))
        return Outcome(reward=1.0)

    rollout = await run(program, policy)
    assert len(rollout.branches) == 2
    assert [type(s) for s in rollout.segments] == [Observation, Action] * 2
    assert [type(s) for s in rollout.branches[0]] == [Observation, Action]
    assert rollout.branches[0][0].tokens[: len(rollout.segments[0].tokens)] == rollout.segments[0].tokens
    whole = tokens(rollout.contexts)
    shared = len(rollout.segments[0].tokens) + len(rollout.segments[1].tokens)
    assert whole[0][:shared] == whole[1][:shared]
    assert whole[0][shared:] != whole[1][shared:]
    assert len(rollout.actions) == 4  # one for each answer


async def test_tokens_in_and_out_are_recorded_as_they_are(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        ids = policy.renderer.prompt([Message("user", "48+7")])
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {model.key}"}) as http:
            for _ in range(2):
                body = {"model": "policy", "token_ids": ids, "sampling_params": {"max_tokens": 16, "logprobs": 1}}
                answer = (await http.post(f"{model.root}/inference/v1/generate", json=body)).raise_for_status().json()
                choice = answer["choices"][0]
                assert [f"token_id:{t}" for t in choice["token_ids"]] == [
                    e["token"] for e in choice["logprobs"]["content"]
                ]
                ids = [*ids, *choice["token_ids"], *policy.renderer.encode("55")]
        return Outcome(reward=1.0)

    rollout = await run(program, policy)
    assert rollout.branches == ()
    assert len(rollout.actions) == 2
    assert all(len(a.tokens) == len(a.logprobs) == len(a.versions) <= 16 for a in rollout.actions)


async def test_an_agent_without_tokens_plays_too() -> None:
    def script(messages: Sequence[Message]) -> Message | str:
        if len(messages) == 1:
            return Message("assistant", tool_calls=(ToolCall("c1", "calculate", {"expression": "48+7"}),))
        return f"it is {messages[-1].content}"

    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        messages = await converse(client, asking(), turns=2)
        return Outcome(reward=float(messages[-2]["content"] == "it is 55"))

    rollout = await run(program, ScriptedAgent(script))
    assert (rollout.status, rollout.reward, rollout.segments, rollout.turns) == (Status.FINISHED, 1.0, (), 2)
