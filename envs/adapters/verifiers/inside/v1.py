"""The second API of verifiers: tasksets, harnesses, traces."""

import copy
import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.interception import server

from . import harness
from .carrier import client
from .main import Unfit, is_of
from .tools import faults, in_process

_KEPT = 1024
"""Tasks; another is found by going through the taskset again."""
_HARNESS = "moonmill_chat"
_STOPS = {"max_turns": "max_turns", "agent_timeout": "time_limit", "agent_completed": None}
_STOPS |= dict.fromkeys(("user_closed", "scoring_timeout"))
_STOPS |= dict.fromkeys(("max_input_tokens", "max_output_tokens", "max_total_tokens"), "max_tokens")
_NO_KEY = "MOONMILL_NO_KEY"
# Where verifiers looks for a harness: a module of this name.
sys.modules[_HARNESS] = harness
_resolve_client = server.resolve_client


class _Client(EvalClient):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.client = client()


def _client_for(config: Any) -> Any:
    """What verifiers asks a model through. It has no place to say that it is to be another class."""
    return _Client(config) if config.api_key_var == _NO_KEY else _resolve_client(config)


server.resolve_client = _client_for


def has_taskset(module: ModuleType) -> bool:
    """Whether a package is written for this API."""
    exported = (getattr(module, name, None) for name in getattr(module, "__all__", ()))
    return any(isinstance(found, type) and issubclass(found, vf.Taskset) for found in exported)


class V1:
    """An environment of this API.

    Args:
        id: as verifiers knows it.
        args: of its `EnvConfig`: `taskset`, the agents by their names, `timeout` and so on; and `trained_agent`, the
            name of the one to train, for which there is each in its turn.
    """

    api = "v1"

    def __init__(self, id: str, args: dict[str, Any]) -> None:
        args = dict(args)
        wanted = args.pop("trained_agent", None)
        kind = vf.env_config_type(id)
        roles = {n: f.default for n, f in kind.model_fields.items() if isinstance(f.default, vf.AgentConfig)}
        if wanted is not None and wanted not in roles:
            raise Unfit(f"trained_agent is {wanted!r}, and its agents are: {', '.join(roles)}")
        bundled = vf.default_harness_id(id) != "bash"
        agents = {name: _agent(role, args.get(name) or {}, bundled) for name, role in roles.items()}
        taskset = {**(args.get("taskset") or {}), "id": id}
        self._env = vf.load_environment(vf.resolve_env_config({**args, **agents, "taskset": taskset}))
        self.about = vars(type(self._env.taskset)).get("__doc__")
        self._rows = _Rows(self._env.taskset)
        configs = [getattr(self._env.config, name) for name in roles]
        self._tools_here = all(c.harness is not None and c.harness.id == _HARNESS for c in configs)
        self._agents = [*roles] if wanted is None else [wanted]
        """Those to train."""
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        await self._stack.enter_async_context(self._env.serving())
        if len(self._agents) > 1:
            self._agents = await self._trainable(self._agents)

    async def close(self) -> None:
        await self._stack.aclose()

    def rows(self, split: str, start: int, count: int) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        index = start
        while len(found) < count:
            task = self._rows.at(index)
            if task is None:
                return {"rows": found, "next": None}
            if is_of(split, index, alone=self._has_one_task):
                found.append(_row(index, task.data))
            index += 1
        return {"rows": found, "next": index}

    @cached_property
    def _has_one_task(self) -> bool:
        return self._rows.at(1) is None

    async def play(self, task: dict[str, Any], model: dict[str, str]) -> dict[str, Any]:
        row = self._rows.at(task["index"])
        if row is None:
            raise Unfit(f"the taskset has no task {task['index']} any more")
        if self._tools_here:
            row = in_process(copy.copy(row))
        agent = self._agents[task["index"] % len(self._agents)]
        # One client serves all episodes: whose a request is stands in its header X-Session-ID, which is the trace's id.
        endpoint = vf.EvalClientConfig(base_url=model["url"], api_key_var=_NO_KEY)
        context = vf.ModelContext(model=model["model"], client=endpoint, sampling=vf.SamplingConfig())
        numbers = itertools.count()
        trained: list[Any] = []

        def name(trace: Any) -> None:
            """At the begin of each agent's run. The first of the agent to train is recorded."""
            if is_its := not trained and (trace.agent is None or trace.agent.name == agent):
                trained.append(trace)
            trace.id = f"{model['key'] if is_its else model['aside']}.{next(numbers)}"

        found: dict[str, list[dict[str, str]]] = {}
        faults.set(found)
        episode = await self._env.run_episode(row, context, on_trace=name)
        outcome = _outcome(episode, agent, trained)
        return {**outcome, "faults": found.get(trained[0].id, [])}

    async def _trainable(self, agents: list[str]) -> list[str]:
        """Those that the environment lets be trained: its `setup` says of an agent where it does not."""
        stand_ins = {name: SimpleNamespace(trainable=True) for name in agents}
        with suppress(AttributeError):  # it looks for more than that in an agent
            await self._env.setup(SimpleNamespace(**stand_ins))
        return [name for name, stand_in in stand_ins.items() if stand_in.trainable] or agents


def _agent(role: Any, given: dict[str, Any], bundled: bool) -> dict[str, Any]:
    """An agent's config: what is given, and what needs neither an account nor a download for the rest."""
    config = dict(given)
    if "runtime" not in role.model_fields_set:
        config.setdefault("runtime", {"type": "subprocess"})
    wanted = None if role.harness is None else role.harness.id
    if wanted == "null" or (wanted is None and not bundled):
        config.setdefault("harness", {"id": _HARNESS})
    return config


class _Rows:
    """The tasks of a taskset by their index."""

    def __init__(self, taskset: Any) -> None:
        self._taskset = taskset
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._next = 0
        self._tasks: Iterator[Any] = iter(taskset)

    def at(self, index: int) -> Any | None:
        """The task; None where there are not so many."""
        if index not in self._kept and index < self._next:
            self._next, self._tasks = 0, iter(self._taskset)
        while self._next <= index:
            try:
                task = next(self._tasks)
            except StopIteration:
                self._next, self._tasks = 0, iter(self._taskset)
                return None
            self._kept[self._next] = task
            self._next += 1
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[index]


def _row(index: int, data: Any) -> dict[str, Any]:
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt is not None else []
    shown = data.model_dump(mode="json", exclude_defaults=True, exclude={"prompt", "system_prompt", "idx"})
    prompt = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else data.prompt or []
    messages = [m if isinstance(m, dict) else m.model_dump(mode="json") for m in prompt]
    name = getattr(data, "id", None) or data.name or f"task-{index}"
    return {"name": name, "prompt": [*system, *messages], "task": {"index": index}, "data": shown}


def _outcome(episode: Any, agent: str, trained: list[Any]) -> dict[str, Any]:
    """What an episode came to for the agent that is trained, by the trace of its run."""
    if not episode.ok:
        errors = [e for trace in episode.traces for e in trace.errors] + episode.errors
        raise Unfit(f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode failed, without an error")
    if not trained:
        played = ", ".join(dict.fromkeys(trace.agent.name for trace in episode.traces))
        raise Unfit(f"the agent to train, {agent}, has not played in the episode, but {played}")
    [trace] = trained
    if not trace.num_turns:
        raise Unfit(f"the agent to train, {agent}, had no turn: the episode ended before it")
    scores = trace.rewards
    # A scorer that ran into its time-out has left None: no reward at all, and not one of 0.
    scored = bool(scores) and all(score is not None for score in scores.values())
    return {
        "reward": trace.reward if scored else None,
        "rewards": {name: score.score for name, score in scores.items() if score is not None},
        "metrics": {name: value for name, value in trace.metrics.items() if value is not None},
        "truncated": trace.is_truncated or trace.stop_condition == "agent_timeout",
        "stop": _STOPS.get(trace.stop_condition, "stopped"),
    }
