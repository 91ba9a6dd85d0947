"""What comes behind a turn that was sampled, in any chat format.

The `renderers` package extends a conversation where it can prove that rendering it at once would give the same tokens.
An episode has to go on behind whatever the policy wrote: behind a turn that ends within a thought, behind a damaged
call with the complaint about it. `Extender` finds tokens there too, and never touches those that were sampled.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from moonmill.agents.shapes import as_users, message_dicts, tool_dicts
from moonmill.envs import ToolSpec
from moonmill.types import Message, ToolCall


class Extender:
    """Extends conversations in one format.

    Args:
        renderer: an object with the `renderers.Renderer` protocol.
        encode: the tokens of a text, in which tags are tags.
    """

    def __init__(self, renderer: Any, encode: Callable[[str], list[int]]) -> None:
        self._renderer = renderer
        self._encode = encode
        self._stops: tuple[int, ...] = tuple(renderer.get_stop_token_ids())

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> list[int] | None:
        """The tokens to append behind prompt and completion; None where there are none without changing those."""
        added = self._bridge(prompt_ids, completion_ids, new_messages, tools)
        if added is not None or any(token in self._stops for token in completion_ids[:-1]):
            return added
        ended = bool(completion_ids) and completion_ids[-1] in self._stops
        for close, added in self._behind_another_turn(prompt_ids, new_messages, tools):
            return added if ended else [close, *added]
        return None

    def _behind_another_turn(
        self, prompt_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Iterator[tuple[int, list[int]]]:
        """What the format writes behind turns that raise no doubt, each time with the token that ends such a turn."""
        yield from self._rendered(new_messages, tools)
        for messages in (new_messages, as_users(new_messages)):
            for turn in self._plain_turns:
                added = self._bridge(prompt_ids, turn, messages, tools)
                if added is not None:
                    yield turn[-1], added

    def _bridge(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> list[int] | None:
        context = [*prompt_ids, *completion_ids]
        try:
            bridged = self._renderer.bridge_to_next_turn(
                list(prompt_ids), list(completion_ids), message_dicts(new_messages), tools=tool_dicts(tools)
            )
        except Exception:  # what the format cannot write; a prompt of it says why
            return None
        if bridged is None or bridged.token_ids[: len(context)] != context:
            return None
        return list(bridged.token_ids[len(context) :])

    def _rendered(self, new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[tuple[int, list[int]]]:
        """What is rendered behind a turn with a call for each of several results, which some formats bridge singly."""
        results = [message for message in new_messages if message.role == "tool"]
        if len(results) < 2:
            return
        calls = tuple(ToolCall(m.tool_call_id or str(i), m.name or "tool") for i, m in enumerate(results))
        turn = (Message("user", "?"), Message("assistant", tool_calls=calls))
        try:
            short = self._renderer.render_ids(message_dicts(turn), tools=tool_dicts(tools))
            whole = self._renderer.render_ids(
                message_dicts([*turn, *new_messages]), tools=tool_dicts(tools), add_generation_prompt=True
            )
        except Exception:  # likewise
            return
        if short[-1] in self._stops and whole[: len(short)] == short:
            yield short[-1], list(whole[len(short) :])

    @cached_property
    def _plain_turns(self) -> list[list[int]]:
        """Turns that a format can go on from."""
        thought = self._encode("</think>")
        return [turn for stop in self._stops for turn in ([stop], [*thought, stop])]
