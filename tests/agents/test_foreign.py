"""Episodes that a program plays, through the recording proxy: what is told, what is recorded, and every way to end."""

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError

from moonmill import Action, Message, Observation, Rollout, Sampling, Status, StopReason, Task, ToolCall, reward
from moonmill.agents.client import InferenceClient
from moonmill.agents.human import HumanAgent
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.processes import ServerProcess
from moonmill.agents.rendering import load_renderer
from moonmill.agents.runner import EpisodeRunner
from moonmill.agents.scripted import ScriptedAgent
from moonmill.envs import Endpoint, ForeignEnv, Outcome, run_program
from moonmill.errors import EngineError

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

    @reward
    def right(self, rollout: Rollout) -> float:
        return float(rollout.final_text() == "1155")


class Brief(Scored):
    """Has little time."""

    max_seconds = 3.0


class Patient(Played):
    """Answers much."""

    max_turns = 100


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


async def test_what_is_asked_aside_leaves_no_tokens_in_the_rollout(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        aside = client.with_options(api_key=model.unrecorded.key)
        await converse(aside, asking("99-1"), turns=2)
        await converse(client, asking())
        return Outcome(reward=1.0)

    async def only_aside(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        await converse(client.with_options(api_key=model.unrecorded.key), asking())
        return Outcome(reward=1.0)

    rollout = await run(program, policy)
    assert (len(rollout.actions), rollout.branches, rollout.turns) == (1, (), 1)
    assert rollout.messages[0].content == "(48+7)*21"
    assert (await run(only_aside, policy)).status is Status.FAILED


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


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("c", "calculat", {"expression": "1"}),
        ToolCall("c", "calculate", "48+7"),
        ToolCall("c", "calculate", error="no"),
    ],
)
async def test_a_call_that_no_client_could_make_is_told_as_text_whoever_makes_it(call: ToolCall) -> None:
    heard: list[Message] = []

    def script(messages: Sequence[Message]) -> Message | str:
        heard[:] = messages
        return Message("assistant", "So.", tool_calls=(call,)) if len(messages) == 1 else "1155"

    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        await converse(client, asking(), turns=2)
        return Outcome(reward=1.0)

    rollout = await run(program, ScriptedAgent(script))
    assert (rollout.status, rollout.turns, rollout.final_text()) == (Status.FINISHED, 2, "1155")
    assert rollout.messages[1].content.startswith('So.\n{"name": "calcul')
    assert heard == list(rollout.messages[:3])


async def test_tokens_behind_a_stop_text_are_not_recorded(policy: PolicyAgent) -> None:
    told: list[str | None] = []

    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        said = await client.chat.completions.create(
            model="policy", messages=asking(), tools=[CALCULATE], stop=["never", "+"], max_tokens=30
        )
        told.append(said.choices[0].message.content)
        assert said.choices[0].finish_reason == "stop"
        return Outcome(reward=1.0)

    rollout = await run(program, policy)
    assert rollout.error is None
    [action] = rollout.actions
    assert told[0] is not None
    assert told[0].startswith("<call>")
    assert policy.renderer.decode(action.tokens) == told[0] + "+"
    assert len(action.logprobs) == len(action.versions) == len(action.tokens)


async def test_an_answer_can_be_streamed(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        stream = await client.chat.completions.create(
            model="policy",
            messages=asking(),
            tools=[CALCULATE],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        calls = [c for chunk in chunks[:-1] for c in chunk.choices[0].delta.tool_calls or ()]
        assert [c.function.name for c in calls if c.function] == ["calculate"]
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage is not None
        return Outcome(reward=float(chunks[-1].usage.completion_tokens))

    rollout = await run(program, policy)
    assert rollout.reward == rollout.action_tokens > 0


async def test_requests_at_the_same_time_draw_as_they_would_in_any_order(policy: PolicyAgent) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(converse, client, asking(f"{number}0+7"))
        return Outcome(reward=1.0)

    one, other = [await run(program, policy) for _ in range(2)]
    assert len(one.contexts) == 4
    assert sorted(tokens(one.contexts)) == sorted(tokens(other.contexts))


async def test_a_context_that_is_full_is_told_as_openai_tells_it_and_truncates(policy: PolicyAgent) -> None:
    async def fills(client: AsyncOpenAI, model: Endpoint) -> None:
        messages = await converse(client, asking())
        with pytest.raises(BadRequestError) as refused:
            await converse(client, [*messages, *asking("7" * 200)])
        assert refused.value.code == "context_length_exceeded"
        raise refused.value

    async def begins_too_long(client: AsyncOpenAI, model: Endpoint) -> None:
        await converse(client, asking("7" * 200))

    rollout = await run(fills, policy)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.TRUNCATED, StopReason.MAX_TOKENS, None)
    assert len(rollout.actions) == 1
    rollout = await run(begins_too_long, policy)
    assert (rollout.status, rollout.stop_reason) == (Status.FAILED, StopReason.PROMPT_TOO_LONG)
    assert "raise model.max_length" in (rollout.error or "")


def slow(messages: Sequence[Message]) -> str:
    return "1155"


class Slow(ScriptedAgent):
    """Answers once it is let."""

    let = threading.Event()

    def session(self, tools: Any, seed: int) -> Any:
        session = super().session(tools, seed)
        act = session.act

        async def late(new: Sequence[Message]) -> Any:
            await anyio.to_thread.run_sync(self.let.wait, 30)
            return await act(new)

        session.act = late  # type: ignore[method-assign]
        return session


class Broken(ScriptedAgent):
    """Has lost its engine."""

    def session(self, tools: Any, seed: int) -> Any:
        raise EngineError("no engine was up")


async def test_a_program_that_hangs_is_cancelled_and_what_it_reached_is_scored() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> None:
        await converse(client, asking())
        await anyio.sleep(60)

    rollout = await run(program, ScriptedAgent(slow), Brief)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.TRUNCATED, StopReason.TIME_LIMIT, 1.0)


async def test_a_program_that_never_stops_asking_is_cancelled() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> None:
        while True:
            with anyio.move_on_after(1):
                await converse(client, asking())

    rollout = await run(program, ScriptedAgent(slow), Scored)
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.TRUNCATED, StopReason.MAX_TURNS, 1.0)


async def test_a_flood_of_requests_is_told_to_wait() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        statuses: list[int] = []

        async def one() -> None:
            body = {"model": "policy", "messages": asking()}
            answer = await http.post(f"{model.url}/chat/completions", json=body)
            statuses.append(answer.status_code)
            if len(statuses) == 26:
                Slow.let.set()

        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {model.key}"}, timeout=20) as http,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(90):
                tasks.start_soon(one)
        return Outcome(reward=1.0, metrics={str(s): statuses.count(s) for s in {*statuses}})

    rollout = await run(program, Slow(slow), Patient)
    assert rollout.metrics == {"200": 64.0, "429": 26.0}


async def test_a_program_that_raises_or_never_asks_fails() -> None:
    async def raises(client: AsyncOpenAI, model: Endpoint) -> None:
        await converse(client, asking())
        raise ValueError("no such file")

    async def never(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        return Outcome(reward=1.0)

    rollout = await run(raises, ScriptedAgent(slow))
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FAILED, StopReason.ENV_ERROR, None)
    assert rollout.error is not None
    assert "play raised ValueError: no such file" in rollout.error
    rollout = await run(never, ScriptedAgent(slow))
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)


async def test_an_engine_that_is_gone_fails_the_rollout_whatever_the_program_makes_of_it() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        with pytest.raises(APIStatusError):
            await converse(client, asking())
        return Outcome(reward=0.0)

    rollout = await run(program, Broken(slow))
    assert (rollout.status, rollout.stop_reason, rollout.reward) == (Status.FAILED, StopReason.ENGINE_ERROR, None)
    assert rollout.error == "no engine was up"


async def test_a_player_who_leaves_is_no_failure_of_the_engine() -> None:
    def leave() -> str:
        raise EOFError

    async def program(client: AsyncOpenAI, model: Endpoint) -> None:
        await converse(client, asking())

    with pytest.raises(EOFError):
        await run(program, HumanAgent(leave, print, print))


async def test_a_key_is_worth_nothing_after_its_episode() -> None:
    endpoints: list[Endpoint] = []

    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        endpoints.append(model)
        assert [m.id async for m in client.models.list()] == ["policy"]
        await converse(client, asking())
        return Outcome(reward=1.0)

    await run(program, ScriptedAgent(slow))
    async with AsyncOpenAI(base_url=endpoints[0].url, api_key=endpoints[0].key, max_retries=0) as client:
        with pytest.raises(AuthenticationError) as refused:
            await converse(client, asking())
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"model": "policy", "messages": []}, "messages is empty"),
        ({"model": "policy"}, "missing required field `messages`"),
        ({"model": "policy", "messages": [{"role": "user", "content": "1"}], "n": 2}, "n=2 is not supported"),
        ({"model": "policy", "messages": [{"role": "user", "content": "1"}], "logprobs": True}, "log-probabilities"),
        ({"model": "policy", "messages": [{"role": "user", "content": "1"}], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_what_cannot_be_served_is_explained(body: dict[str, Any], named: str) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        await converse(client, asking())
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {model.key}"}) as http:
            answer = await http.post(f"{model.url}/chat/completions", json=body)
        assert answer.status_code == 400
        assert named in answer.json()["error"]["message"]
        return Outcome(reward=1.0)

    assert (await run(program, ScriptedAgent(slow))).error is None


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(reward=float("nan")), "the outcome's reward"),
        (Outcome(reward=1.0, rewards={"style": 1e9}), "the outcome's 'style'"),
        ("1.0", "play returned '1.0', but should return an Outcome"),
        (Outcome(reward=1.0, stop="bored"), "Invalid enum value 'bored' - at `$.stop`"),  # type: ignore[arg-type]
        (Outcome(reward=1.0, messages=({"role": "bot"},)), "'bot' - at `$.messages[0].role`"),  # type: ignore[arg-type]
    ],
)
async def test_an_outcome_that_is_none_fails(outcome: Any, said: str) -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Any:
        await converse(client, asking())
        return outcome

    rollout = await run(program, ScriptedAgent(slow))
    assert (rollout.status, rollout.reward) == (Status.FAILED, None)
    assert said in (rollout.error or "")


async def test_the_messages_of_an_outcome_may_be_plain_data() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        await converse(client, asking())
        return Outcome(reward=1.0, messages=({"role": "assistant", "content": "done"},))  # type: ignore[arg-type]

    assert (await run(program, ScriptedAgent(slow))).messages == (Message("assistant", "done"),)


PROGRAM = """
import json, os, subprocess, sys, urllib.request
child = subprocess.Popen(["sleep", "300"])
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.stdin.read()}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as answer:
    print(child.pid, json.load(answer)["choices"][0]["message"]["content"])
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


async def test_a_program_of_its_own_plays_and_leaves_nothing_behind() -> None:
    pids: list[int] = []

    async def program(client: AsyncOpenAI, model: Endpoint) -> Outcome:
        done = await run_program([sys.executable, "-c", PROGRAM], model, input="(48+7)*21")
        assert done.returncode == 0, done.stderr
        pid, answer = done.stdout.split()
        pids.append(int(pid))
        return Outcome(reward=float(answer == "1155"))

    rollout = await run(program, ScriptedAgent(slow))
    assert (rollout.reward, rollout.messages[0].content) == (1.0, "(48+7)*21")
    assert not is_running(pids[0])


async def test_a_program_is_ended_with_its_episode() -> None:
    async def program(client: AsyncOpenAI, model: Endpoint) -> None:
        await converse(client, asking())
        await run_program(["sh", "-c", "sleep 300 & sleep 300"], model)

    begun = anyio.current_time()
    rollout = await run(program, ScriptedAgent(slow), Brief)
    assert anyio.current_time() - begun < 60
    assert rollout.stop_reason is StopReason.TIME_LIMIT
