"""Who plays an evaluation: a model behind an engine, one behind a chat API, or a script."""

import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from moonmill.agents.agent import Agent
from moonmill.agents.chat import ChatAgent
from moonmill.agents.scripted import ScriptedAgent
from moonmill.config import Config, EnvConfig
from moonmill.config_io import plain
from moonmill.envs.wrappers import factory_of
from moonmill.errors import ConfigError
from moonmill.reporting import Reporter

_ATTEMPTS = 8
"""Tries per answer of an API: with doubling waits about a minute, besides what it asks for itself."""

AgentAt = Callable[[float], Agent]
"""The player at a temperature."""


class Api(Struct, frozen=True):
    """A model behind an OpenAI-compatible API. The key itself is kept nowhere."""

    url: str
    model: str
    key_from: str | None = None
    """The environment variable that holds the key."""

    def key(self) -> str | None:
        """The key.

        Raises:
            ConfigError: there is none where it should be.
        """
        if self.key_from is None:
            return None
        if not (key := os.environ.get(self.key_from)):
            raise ConfigError(f"--api-key-env: the environment variable {self.key_from} is empty or not set")
        return key


class Scripted(Struct, frozen=True):
    """A script, or what else needs no model."""

    agent: Agent
    name: str
    """As `--agent` names it; a file by its whole path."""


Other = Api | Scripted
"""What plays in place of a model of the config."""


def describe_player(config: Config, other: Other | None) -> dict[str, Any]:
    """What tells a player from another. Of a script, the file it stands in: one that was changed is another."""
    if isinstance(other, Api):
        return {"api": other.url, "model": other.model}
    if isinstance(other, Scripted):
        code = {"code": _digest(other.name)} if isinstance(other.agent, ScriptedAgent) else {}
        return {"agent": other.name, **code}
    names = ("path", "max_length", "dtype", "renderer", "tool_format")
    return {"engine": config.engine.type, **{name: plain(config.model)[name] for name in names}}


@asynccontextmanager
async def playing(
    config: Config, envs: Sequence[EnvConfig], other: Other | None, reporter: Reporter, log_dir: Path
) -> AsyncIterator[AgentAt]:
    """The player of some environments, ready; an engine of ours is started and stopped.

    Raises:
        ConfigError: the API cannot be asked as it is named.
        WorkerDiedError: the engine did not start.
    """
    if other is None:
        async with _policy(config, envs, reporter, log_dir) as agent_at:
            yield agent_at
        return
    if isinstance(other, Scripted):
        yield lambda temperature: other.agent
        return
    async with AsyncExitStack() as stack:
        agents: dict[float, Agent] = {}
        for temperature in config.eval.temperatures:
            sampling = replace(config.sampling, temperature=temperature)
            timeout = config.engine.request_timeout
            agent = ChatAgent(
                other.url, other.model, sampling, api_key=other.key(), timeout=timeout, max_attempts=_ATTEMPTS
            )
            agents[temperature] = await stack.enter_async_context(agent)
        yield agents.__getitem__


@asynccontextmanager
async def _policy(
    config: Config, envs: Sequence[EnvConfig], reporter: Reporter, log_dir: Path
) -> AsyncIterator[AgentAt]:
    from moonmill.agents.engine.folder import text_of  # transformers with them, which an API does without
    from moonmill.agents.policy import PolicyAgent
    from moonmill.agents.rendering import load_renderer
    from moonmill.agents.telling import warning_of_untold
    from moonmill.trainer.engine_host import EngineHost
    from moonmill.trainer.handover import other_models

    model = config.model
    renderer = await anyio.to_thread.run_sync(load_renderer, text_of(model.path), model.renderer, model.tool_format)
    for env in envs:
        tools = (await anyio.to_thread.run_sync(factory_of(env))).tool_specs
        if warning := warning_of_untold(renderer, tools, env.id):
            reporter.warn(warning)

    def note(kind: str, **data: object) -> None:
        if kind == "engine_starting":
            reporter.phase(str(data["text"]))
        elif kind != "engine_started":
            reporter.warn(f"{kind.replace('_', ' ')}: " + ", ".join(f"{k} {v}" for k, v in data.items()))

    # Not the run's own folder: of engines that run already, those of a run that goes on are refused.
    host = EngineHost(replace(config, run_dir=str(log_dir)), log_dir, note, probe=[], run=None)
    async with host.running():
        for text in await other_models(config):
            reporter.warn(text)
        yield lambda temperature: PolicyAgent(
            host.client, renderer, replace(config.sampling, temperature=temperature), model.max_length
        )


def _digest(place: str) -> str:
    """Of the file that `file.py:function` or `module:function` names; empty where a module has none.

    What the function itself says of its module would be wrong where it is decorated.
    """
    name = place.rpartition(":")[0]
    file = Path(name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None) or "")
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file.is_file() else ""
