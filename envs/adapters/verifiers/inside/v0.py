"""The first API of verifiers: `load_environment`, datasets, rubrics. Last shipped in 0.3.1."""

import logging
from contextvars import ContextVar
from typing import Any

import verifiers as vf
from openai import AsyncOpenAI
from verifiers.clients import OpenAIChatCompletionsClient

from .carrier import client
from .main import Unfit, is_of

_STOPS = {"max_turns_reached": "max_turns", "timeout_reached": "time_limit", "prompt_too_long": "max_tokens"}
_STOPS["max_total_completion_tokens_reached"] = "max_tokens"
_ANSWERED = ("no_tools_called", "max_turns_reached")
"""The second ends an environment of a single turn."""
_faults: ContextVar[list[str]] = ContextVar("faults")


class _Overhear(logging.Handler):
    """What a rubric says of a reward function that raised: it gives a 0 then, which is none."""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if (faults := _faults.get(None)) is not None and said.startswith("Error calling"):
            faults.append(said)


logging.getLogger("verifiers.legacy.rubrics").addHandler(_Overhear())


class V0:
    """An environment of this API.

    Args:
        id: as verifiers knows it.
        args: of its `load_environment`.
    """

    api = "v0"
    about: str | None = None

    def __init__(self, id: str, args: dict[str, Any]) -> None:
        self._env = vf.load_environment(id, **args)
        if self._env.requires_group_rollouts:
            raise Unfit(f"{id} scores several rollouts of a task together, and here each is scored by itself")
        self._http = client()
        self._data: dict[str, Any] = {"train": self._env.build_dataset(), "eval": self._env.build_eval_dataset()}

    async def open(self) -> None:
        """Nothing is shared."""

    async def close(self) -> None:
        await self._http.aclose()

    def rows(self, split: str, start: int, count: int) -> dict[str, Any]:
        there = [name for name, data in self._data.items() if data is not None]
        source = split if split in there else there[0]
        data = self._data[source]
        # One dataset for both is divided between them.
        shared = len(there) == 1
        found: list[dict[str, Any]] = []
        for index in range(start, len(data)):
            if len(found) == count:
                return {"rows": found, "next": index}
            if not shared or is_of(split, index, alone=len(data) == 1):
                found.append(_row(source, index, data[index]))
        return {"rows": found, "next": None}

    async def play(self, task: dict[str, Any], model: dict[str, str]) -> dict[str, Any]:
        client = AsyncOpenAI(base_url=model["url"], api_key=model["key"], http_client=self._http, max_retries=0)
        row = dict(self._data[task["dataset"]][task["index"]])
        faults: list[str] = []
        _faults.set(faults)
        done = await self._env.run_rollout(
            row, OpenAIChatCompletionsClient(client), model["model"], {}, state_columns=["trajectory"]
        )
        if (error := done.get("error")) is not None:
            raise Unfit(_said(error))
        if faults:
            raise Unfit(faults[0])
        turns = {f"turn_{i}_reward": step["reward"] for i, step in enumerate(done.get("trajectory") or ())}
        stop = done.get("stop_condition")
        limit = None if isinstance(self._env, vf.SingleTurnEnv) else _STOPS.get(stop)
        return {
            "reward": done["reward"],
            "rewards": {},
            "metrics": {**done["metrics"], **{name: value for name, value in turns.items() if value is not None}},
            "truncated": done["is_truncated"] or limit is not None,
            "faults": [],
            "stop": limit if limit or stop in _ANSWERED else "stopped",
        }


def _row(source: str, index: int, row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name != "prompt" and value is not None}
    prompt = row["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    messages = [{name: value for name, value in m.items() if value is not None} for m in messages]
    reference = {"dataset": source, "index": index}
    return {"name": f"{source}-{index}", "prompt": messages, "task": reference, "data": shown}


def _said(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return str(error.get("error_chain_str") or error.get("error_chain_repr") or error.get("error") or error)
