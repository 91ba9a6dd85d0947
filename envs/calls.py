"""Runs the tool calls of one turn: one answer to each, in their order.

Calls of sync tools run one after another; neighbours that are async run at the same time.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from moonmill.blame import own_error
from moonmill.envs.command_output import told_result
from moonmill.envs.tools import ToolArgumentsError, UnknownToolError
from moonmill.sandboxes import ExecResult
from moonmill.types import Message, ToolCall

if TYPE_CHECKING:
    from moonmill.envs.base import MultiTurnEnv


def answer(env: "MultiTurnEnv", calls: Sequence[ToolCall]) -> tuple[Message, ...]:
    """The answers to `calls`.

    Raises:
        MoonmillError: a tool raised it: the infrastructure failed, which is no answer.
    """
    answers: list[Message] = []
    for is_async, run in itertools.groupby(calls, lambda call: _is_async(env, call)):
        neighbours = list(run)
        if is_async:
            answers += env._moonmill.home.wait_for(partial(_gather, env, neighbours))
        else:
            answers += [_call(env, call) for call in neighbours]
    return tuple(answers)


def settled(env: "MultiTurnEnv", result: Any) -> Any:
    """`result`, awaited if it can be."""
    if not inspect.isawaitable(result):
        return result
    try:
        return env._moonmill.home.wait_for(lambda: result)
    finally:
        # Cancelled before it began: Python warns of a coroutine that was made for nothing.
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()


def _is_async(env: "MultiTurnEnv", call: ToolCall) -> bool:
    tool = env._moonmill_class.tools.get(call.name)
    return tool is not None and tool.is_async


def _call(env: "MultiTurnEnv", call: ToolCall) -> Message:
    with env._moonmill.faults.watch(call) as answer:
        method, arguments = _bind(env, call)
        answer.content = _as_text(settled(env, method(**arguments)))
    return answer.message(env.max_answer_chars)


async def _call_async(env: "MultiTurnEnv", call: ToolCall) -> Message:
    with env._moonmill.faults.watch(call) as answer:
        method, arguments = _bind(env, call)
        answer.content = _as_text(await method(**arguments))
    return answer.message(env.max_answer_chars)


async def _gather(env: "MultiTurnEnv", calls: Sequence[ToolCall]) -> list[Message]:
    if len(calls) == 1:
        return [await _call_async(env, calls[0])]
    answers: dict[int, Message] = {}

    async def one(index: int, call: ToolCall) -> None:
        answers[index] = await _call_async(env, call)

    try:
        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(one, index, call)
    except BaseExceptionGroup as errors:
        raise own_error(errors) or errors from errors
    return [answers[index] for index in range(len(calls))]


def _bind(env: "MultiTurnEnv", call: ToolCall) -> tuple[Callable[..., Any], dict[str, Any]]:
    if call.error is not None:
        raise ToolArgumentsError(f"error: the call could not be read: {call.error}")
    tool = env._moonmill_class.tools.get(call.name)
    if tool is None:
        names = ", ".join(env._moonmill_class.tools) or "none"
        raise UnknownToolError(f"error: there is no tool {call.name!r}; the tools are: {names}")
    return getattr(env, tool.method), tool.parse(call.arguments)


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return str.__str__(result)  # of a class of its own it may fail at anything
    if isinstance(result, bytes | bytearray):
        return result.decode("utf-8", "replace")
    if isinstance(result, ExecResult):
        return told_result(result)
    return "" if result is None else msgspec.json.encode(result, enc_hook=str).decode()
