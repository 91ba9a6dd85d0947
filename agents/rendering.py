"""Messages to tokens and back, for one model.

`load_renderer` finds how a model writes its conversations; `TurnRenderer` is the one surface the rest of the package
uses for it, over the `renderers` package. What always holds:

- `prompt` renders a conversation once, at its start. `extend` gives the tokens that come behind what was sampled, and
  never touches those: where a model's format cannot do that, it answers None instead of other tokens.
- `parse` never raises: an attempt at a call that cannot be read is a `ToolCall` with its `error`; the episode goes on.
"""

import codecs
import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import msgspec
import renderers
from renderers.base import MODEL_RENDERER_MAP, load_tokenizer
from renderers.configs import CustomRendererConfig

from moonmill.agents.capabilities import PROBE, Capabilities, capabilities_of, say
from moonmill.agents.extending import Extender
from moonmill.agents.shapes import message_dicts, to_calls, tool_dicts
from moonmill.agents.telling import tell_tools
from moonmill.agents.template import TOOL_FORMATS, TemplateRenderer
from moonmill.envs import ToolSpec
from moonmill.errors import RenderError
from moonmill.types import Message, ToolCall

MODEL_FILE = "moonmill.json"
"""In a model folder, names the renderer that `auto` takes: `{"renderer": "package.module:Class"}`."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_PLAIN_FAST = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that add nothing to a `tokenizer.json`; the second is what transformers 5 calls the first."""
_BARE_CALLS = ("llama-3",)
"""Formats without a tag for calls: a turn that reads as a call in JSON is one, and any other a text."""
_BARE_CALL = re.compile(r'\s*\{\s*"name"\s*:')
_NOT_ONE_CALL = (
    'a call is a turn of its own that reads {"name": tool, "parameters": {argument: value}}, and nothing else'
)
_ADVICE = {
    "gpt-oss": ". Its vocabulary, o200k_base.tiktoken, is loaded from openaipublic.blob.core.windows.net; without a "
    "network, put the file into a folder and name that folder in TIKTOKEN_ENCODINGS_BASE"
}


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What stands in a model folder's `moonmill.json`."""

    renderer: str
    """A name the `renderers` package knows, or the import path of a renderer class."""
    tool_format: str = ""
    """As `model.tool_format` of a config."""
    knows_tools: dict[str, tuple[str, ...]] = {}
    """Tools that the model knows from training, and need not be told: the arguments of each."""


class TurnRenderer:
    """The conversation format of one model.

    Args:
        renderer: an object with the `renderers.Renderer` protocol.
        tokenizer: the tokenizer it was made with.
        name: how the renderer is called in errors.
        tells: describe the tools in the system message where the format does not tell them.
        knows: tools that the model knows untold: the arguments of each.
    """

    def __init__(
        self, renderer: Any, tokenizer: Any, name: str, *, tells: bool = False, knows: Mapping[str, Sequence[str]] = {}
    ) -> None:
        self.name = name
        self.knows_tools = knows
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        """Sampling one of these ends the turn."""
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._tells = tells
        self._extender = Extender(renderer, self.encode)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the format can do; it is tried when it is first asked for, which takes milliseconds."""
        return capabilities_of(self)

    @property
    def tells_tools(self) -> bool:
        """Whether the model is told its tools: by its format, or in the system message."""
        return self._tells or self.capabilities.tells_tools

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The tokens of a conversation, up to where the assistant's next turn begins.

        Raises:
            RenderError: the messages cannot be rendered, or the format has no way to call tools.
        """
        if tools and not self.capabilities.tools:
            raise RenderError(
                f"the {self.name!r} renderer cannot read tool calls, and the environment has tools "
                f"({', '.join(tool.name for tool in tools)}): set model.renderer to the model's family, one of "
                f"{', '.join(known_renderers())}, or to the import path of a renderer class; or, for the model's own "
                f"chat template, set model.tool_format to how it writes calls, one of {', '.join(TOOL_FORMATS)}"
            )
        return self.render(self._told(messages, tools), tools, open_turn=True)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, open_turn: bool = False
    ) -> list[int]:
        """The tokens that the format itself has for a conversation, up to the end of its last message.

        Raises:
            RenderError: the messages cannot be rendered.
        """
        try:
            ids: list[int] = self._renderer.render_ids(
                message_dicts(messages), tools=tool_dicts(tools), add_generation_prompt=open_turn
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

        They close the turn first where the completion was cut before its end. A turn that the format has no sequel to,
        such as one that ends within a thought, is closed as it is; results that cannot stand there are told as a
        user's message. None where the format cannot be extended without changing tokens that are there already.
        """
        return self._extender.extend(prompt_ids, completion_ids, new_messages, tools)

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
                list(completion_ids), tools=tool_dicts(tools), prompt_ids=list(prompt_ids) or None
            )
        except Exception as e:  # nesting too deep, a number of 5,000 digits: what a policy may well write
            text = self.decode(completion_ids)
            return Message("assistant", tool_calls=(ToolCall(f"{turn}-0", "", text, f"the turn cannot be read: {e}"),))
        calls = tuple(to_calls(parsed.tool_calls, turn, tools))
        if tools and not calls and self.name in _BARE_CALLS and _BARE_CALL.match(parsed.content):
            return Message("assistant", tool_calls=(ToolCall(f"{turn}-0", "", parsed.content, _NOT_ONE_CALL),))
        reasoning = (parsed.reasoning_content or "").strip("\n")
        return Message("assistant", parsed.content.strip("\n"), calls, reasoning=reasoning or None)

    def transcript(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[list[int], list[bool]]:
        """The tokens of a finished conversation, and which of them the assistant says: a demonstration to learn from.

        Raises:
            RenderError: the format does not tell the assistant's tokens from the others.
        """
        try:
            rendered = self._renderer.render(message_dicts(self._told(messages, tools)), tools=tool_dicts(tools))
        except Exception as e:
            raise RenderError(f"the {self.name!r} renderer cannot render these messages: {e}") from e
        if len(rendered.sampled_mask) != len(rendered.token_ids):
            raise RenderError(f"the {self.name!r} renderer does not tell which tokens the assistant says")
        return list(rendered.token_ids), list(rendered.sampled_mask)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, tags included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, in which tags are tags."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _told(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[Message]:
        """The messages, with the tools described where the format does not tell them."""
        if not tools or not self._tells or self.capabilities.tells_tools:
            return messages
        return tell_tools(messages, tools, self._call_example, system=self.capabilities.system)

    @cached_property
    def _call_example(self) -> str:
        """How a call is written, with words where name and arguments go."""
        call = ToolCall("call00000", "name", {"argument": "value"})
        said = say(self, (Message("user", "?"),), Message("assistant", tool_calls=(call,)), PROBE)
        text = self.decode([token for token in said if token not in self.stop_token_ids])
        return text.rpartition("</think>")[2].strip()


def load_renderer(model_dir: str | Path, renderer: str = "auto", tool_format: str = "") -> TurnRenderer:
    """The renderer of a model.

    Args:
        model_dir: a folder with a tokenizer, or a hub id.
        renderer: `auto` takes what the folder's `moonmill.json` names, else what the `renderers` package knows for the
            model, else the tokenizer's own chat template (`default`). Otherwise a name the package knows (`qwen3`) or
            the import path of a renderer class (`package.module:Class`, `path/to/file.py:Class`).
        tool_format: how calls are written, for the `default` renderer: one of `TOOL_FORMATS`. Empty takes what the
            folder's `moonmill.json` names where `renderer` is `auto`.

    Raises:
        RenderError: no such model, tokenizer, renderer or tool format, or the tokenizer does not fit it.
    """
    file = _named_in(Path(model_dir))
    named = file if renderer == "auto" else ModelFile(renderer)
    name, tool_format = named.renderer, tool_format or named.tool_format
    if tool_format and tool_format not in TOOL_FORMATS:
        near = difflib.get_close_matches(tool_format, TOOL_FORMATS, n=1)
        known = f"; did you mean {near[0]!r}?" if near else f": known are {', '.join(TOOL_FORMATS)}"
        raise RenderError(f"model.tool_format: {tool_format!r} is unknown{known}")
    if name == "auto":
        name = MODEL_RENDERER_MAP.get(str(model_dir), "auto")
    tokenizer = _load_tokenizer(model_dir)
    try:
        made = renderers.create_renderer(tokenizer, _config(name))
        if is_default := isinstance(made, renderers.DefaultRenderer):
            made = TemplateRenderer(tokenizer, tool_format)
    except Exception as e:  # renderers raise assertions, import errors, anything, on a tokenizer that does not fit
        reason = f"{str(e) or type(e).__name__}{_ADVICE.get(name, '')}"
        raise RenderError(f"the renderer {name!r} cannot be used with the model {str(model_dir)!r}: {reason}") from e
    name = made.config.name if name == "auto" else name
    if tool_format and not is_default:
        raise RenderError(
            f"model.tool_format: the renderer {name!r} has a format for calls of its own: leave model.tool_format out, "
            "or take the model's chat template instead with model.renderer: default"
        )
    found = TurnRenderer(made, tokenizer, name, tells=":" not in name, knows=file.knows_tools)
    found.capabilities  # noqa: B018  tried here, on the caller's thread, and not within the first episode
    return found


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


def _named_in(folder: Path) -> ModelFile:
    """What a model folder says of itself; of the renderer `auto` where it says nothing."""
    path = folder / MODEL_FILE
    if not path.is_file():
        return ModelFile("auto")
    try:
        return msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8), type=ModelFile)
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
