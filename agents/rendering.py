"""Messages to tokens and back, for one model.

`load_renderer` finds how a model writes its conversations; `TurnRenderer` is the one surface the rest of the package
uses for it, over the `renderers` package. What always holds:

- `prompt` renders a conversation once, at its start. `extend` gives the tokens that come behind what was sampled, and
  never touches those: where a model's format cannot do that, it answers None instead of other tokens.
- `parse` never raises: an attempt at a call that cannot be read is a `ToolCall` with its `error`; the episode goes on.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import renderers
from renderers.base import MODEL_RENDERER_MAP, load_tokenizer
from renderers.configs import CustomRendererConfig

from moonmill.envs import ToolSpec
from moonmill.errors import RenderError
from moonmill.types import Message, ToolCall

MODEL_FILE = "moonmill.json"
"""In a model folder, names the renderer that `auto` takes: `{"renderer": "package.module:Class"}`."""


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_PLAIN_FAST = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that add nothing to a `tokenizer.json`; the second is what transformers 5 calls the first."""


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a model folder's `moonmill.json`."""

    renderer: str
    """A name the `renderers` package knows, or the import path of a renderer class."""


_CALL_ERRORS = {
    renderers.ToolCallParseStatus.INVALID_JSON: "the arguments are not valid JSON",
    renderers.ToolCallParseStatus.UNCLOSED_BLOCK: "the call is not closed",
    renderers.ToolCallParseStatus.MISSING_NAME: "the call names no tool",
    renderers.ToolCallParseStatus.MALFORMED_STRUCTURE: "the call is not in the format for calls",
}
"""What is told to the model. An unknown tool is no error here: the environment answers it with the known ones."""


class TurnRenderer:
    """The conversation format of one model.

    Args:
        renderer: an object with the `renderers.Renderer` protocol.
        tokenizer: the tokenizer it was made with.
        name: how the renderer is called in errors.
    """

    def __init__(self, renderer: Any, tokenizer: Any, name: str) -> None:
        self.name = name
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        """Sampling one of these ends the turn."""
        self._renderer = renderer
        self._tokenizer = tokenizer

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The tokens of a conversation, up to where the assistant's next turn begins.

        Raises:
            RenderError: the messages cannot be rendered, or the format has no way to call tools.
        """
        if tools and not getattr(self._renderer, "supports_tools", True):
            raise RenderError(
                f"the {self.name!r} renderer cannot read tool calls, and the environment has tools "
                f"({', '.join(tool.name for tool in tools)}): set model.renderer to the model's family, one of "
                f"{', '.join(known_renderers())}, or to the import path of a renderer class"
            )
        try:
            ids: list[int] = self._renderer.render_ids(
                [_to_dict(m) for m in messages], tools=_tools(tools), add_generation_prompt=True
            )
        except Exception as e:  # the package's renderers and chat templates raise whatever they like
            roles = ", ".join(m.role for m in messages) or "none"
            raise RenderError(f"the {self.name!r} renderer cannot render these messages (roles: {roles}): {e}") from e
        return list(ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
    ) -> list[int] | None:
        """The tokens to append behind `prompt_ids` and `completion_ids`, up to where the next turn begins.

        They close the turn first where the completion was cut before its end. None where the format cannot be
        extended without changing tokens that are there already.
        """
        bridged = self._renderer.bridge_to_next_turn(
            list(prompt_ids), list(completion_ids), [_to_dict(m) for m in new_messages], tools=_tools(tools)
        )
        if bridged is None:
            return None
        context = [*prompt_ids, *completion_ids]
        ids = bridged.token_ids
        return list(ids[len(context) :]) if ids[: len(context)] == context else None

    def parse(
        self, completion_ids: Sequence[int], prompt_ids: Sequence[int] = (), tools: Sequence[ToolSpec] = ()
    ) -> Message:
        """The assistant's message that a completion says.

        Ids of its calls are unique within the conversation and the same every time: they are made from the length of
        the prompt, which every turn grows.
        """
        turn = f"call-{len(prompt_ids)}"
        try:
            parsed = self._renderer.parse_response(
                list(completion_ids), tools=_tools(tools), prompt_ids=list(prompt_ids) or None
            )
        except Exception as e:  # nesting too deep, a number of 5,000 digits: what a policy may well write
            text = self.decode(completion_ids)
            return Message("assistant", tool_calls=(ToolCall(f"{turn}-0", "", text, f"the turn cannot be read: {e}"),))
        calls = tuple(_to_call(attempt, f"{turn}-{index}") for index, attempt in enumerate(parsed.tool_calls))
        return Message("assistant", parsed.content, calls, reasoning=parsed.reasoning_content or None)

    def transcript(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[list[int], list[bool]]:
        """The tokens of a finished conversation, and which of them the assistant says: a demonstration to learn from.

        Raises:
            RenderError: the format does not tell the assistant's tokens from the others.
        """
        rendered = self._renderer.render([_to_dict(m) for m in messages], tools=_tools(tools))
        if len(rendered.sampled_mask) != len(rendered.token_ids):
            raise RenderError(f"the {self.name!r} renderer does not tell which tokens the assistant says")
        return list(rendered.token_ids), list(rendered.sampled_mask)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, tags included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def load_renderer(model_dir: str | Path, renderer: str = "auto") -> TurnRenderer:
    """The renderer of a model.

    Args:
        model_dir: a folder with a tokenizer, or a hub id.
        renderer: `auto` takes what the folder's `moonmill.json` names, else what the `renderers` package knows for the
            model, else the tokenizer's own chat template. Otherwise a name the package knows (`qwen3`) or the import
            path of a renderer class (`package.module:Class`, `path/to/file.py:Class`).

    Raises:
        RenderError: no such model, tokenizer or renderer, or the tokenizer does not fit it.
    """
    name = _named_in(Path(model_dir)) if renderer == "auto" else renderer
    if name == "auto":
        name = MODEL_RENDERER_MAP.get(str(model_dir), "auto")
    tokenizer = _load_tokenizer(model_dir)
    try:
        made = renderers.create_renderer(tokenizer, _config(name))
    except Exception as e:  # renderers raise assertions, import errors, anything, on a tokenizer that does not fit
        reason = str(e) or type(e).__name__
        raise RenderError(f"the renderer {name!r} cannot be used with the model {str(model_dir)!r}: {reason}") from e
    return TurnRenderer(made, tokenizer, made.config.name if name == "auto" else name)


def known_renderers() -> tuple[str, ...]:
    """The names `load_renderer` takes, import paths aside."""
    configs = get_args(get_args(renderers.RendererConfig)[0])
    return tuple(config.model_fields["name"].default for config in configs if config is not CustomRendererConfig)


def _config(name: str) -> Any:
    """The package's config for a renderer, made so that no turn is ever rendered again to drop its reasoning."""
    if ":" in name:
        return CustomRendererConfig(import_path=name)
    config = renderers.config_from_name(name)
    if config is None or isinstance(config, renderers.DefaultRendererConfig):
        return config
    return type(config)(thinking_retention="all")


def _named_in(folder: Path) -> str:
    """The renderer that a model folder names, `auto` where it names none."""
    path = folder / MODEL_FILE
    if not path.is_file():
        return "auto"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelFile).renderer
    except msgspec.MsgspecError as e:
        raise RenderError(f'{path} should read {{"renderer": "package.module:Class"}}, but: {e}') from e


def _load_tokenizer(model_dir: str | Path) -> Any:
    folder = Path(model_dir)
    if folder.is_dir() and not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise RenderError(f"{folder} has no tokenizer: it should hold one of {', '.join(_TOKENIZER_FILES)}")
    try:
        if _is_plain_fast(folder):
            # AutoTokenizer imports every model's configuration first, which takes seconds.
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(folder)
        return load_tokenizer(str(model_dir))
    except Exception as e:  # OSError, ValueError, and what tokenizers' Rust code raises
        raise RenderError(f"no tokenizer can be loaded from {str(model_dir)!r}: {e}") from e


def _is_plain_fast(folder: Path) -> bool:
    """Whether a folder's `tokenizer.json` says everything there is to know about its tokenizer."""
    config = folder / "tokenizer_config.json"
    if not (folder / "tokenizer.json").is_file() or not config.is_file():
        return False
    try:
        return msgspec.json.decode(config.read_bytes()).get("tokenizer_class") in _PLAIN_FAST
    except (msgspec.MsgspecError, AttributeError):
        return False


def _tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Tools as the package takes them; None where there are none, which templates tell from an empty list."""
    return [tool.to_openai() for tool in tools] or None


def _to_dict(message: Message) -> dict[str, Any]:
    """A message in the shape of chat APIs, which is the package's."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    return out


def _to_call(attempt: renderers.ParsedToolCall, default_id: str) -> ToolCall:
    """A call the parser read, or the error that the environment is to answer it with."""
    call_id = attempt.id or default_id
    name = attempt.name if isinstance(attempt.name, str) else ""
    problem = _CALL_ERRORS.get(attempt.status)
    if problem is not None:
        return ToolCall(call_id, name, attempt.raw, problem)
    arguments = attempt.arguments
    if arguments is None:
        return ToolCall(call_id, name)
    # Parsers take any JSON for arguments; what is no object goes to the environment as the text it was.
    return ToolCall(call_id, name, arguments if isinstance(arguments, dict | str) else json.dumps(arguments))
