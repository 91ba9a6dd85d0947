"""An environment of verifiers as one of ours: its tasks, played by it, with our policy as its model."""

import importlib.util
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from moonmill.envs.adapters.verifiers.added import find
from moonmill.envs.adapters.verifiers.worker import HostWorker, ProcessWorker, Worker, WorkerEndedError
from moonmill.envs.elsewhere import wait_on_thread
from moonmill.envs.foreign import Endpoint, ForeignEnv, Outcome
from moonmill.errors import ConfigError
from moonmill.types import Message, StopReason, Task, ToolCall

_PAGE = 64
"""Tasks that are fetched at once."""
_workers: dict[tuple[str, str, str], Worker] = {}
_lock = threading.Lock()


class VerifiersEnv(ForeignEnv):
    """An environment of verifiers.

    Args:
        id: as verifiers knows it; `moonmill envs add verifiers:ID` makes it known here.
        args: of its `EnvConfig` (`taskset`, `agent` and so on), or, of the first API, of its `load_environment`. With
            several agents, `trained_agent` names the one to train; without it, it is each in its turn.

    Raises:
        ConfigError: it was not added, and verifiers is not installed beside Moonmill.
    """

    max_turns = 256
    max_seconds = 3600.0

    def __init__(self, id: str, **args: Any) -> None:
        self._id = id
        self._worker = _worker_for(id, args)

    def tasks(self, split: str) -> Iterator[Task]:
        """Those of its own split, or a share of the only one: every fifth, the first included, is for `eval`, the
        others for `train`, and a split of any other name has them all. A task that is alone is in every split."""
        start: int | None = 0
        while start is not None:
            page = self._ask_for_rows(split, start)
            yield from map(_task, page["rows"])
            start = page["next"]

    def play(self, task: Task, model: Endpoint, seed: int) -> Outcome:
        where = {"url": model.url, "key": model.key, "aside": model.unrecorded.key, "model": model.model}
        said = wait_on_thread(self._worker.asking({"do": "play", "task": task.info["task"], "model": where}))
        for fault in said["faults"]:
            self._moonmill.faults.count(**fault)
        stop = said["stop"]
        return Outcome(
            reward=said["reward"],
            rewards=said["rewards"],
            metrics=said["metrics"],
            truncated=said["truncated"],
            stop=None if stop is None else StopReason(stop),
        )

    def about(self) -> str:
        """What its taskset says of itself, or else its module."""
        said: str = self._ask({"do": "look"})["about"]
        return said or "An environment of verifiers."

    def _ask_for_rows(self, split: str, start: int) -> Mapping[str, Any]:
        return self._ask({"do": "rows", "split": split, "start": start, "count": _PAGE})

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = wait_on_thread(self._worker.asking(request))
        except WorkerEndedError:  # A killed process ends episodes, not the run.
            answer = wait_on_thread(self._worker.asking(request))
        return answer


def _worker_for(id: str, args: Mapping[str, Any]) -> Worker:
    """The worker that all episodes of the environment share."""
    added = find(id)
    python = added.python if added is not None else ""
    key = (python, id, json.dumps(args, sort_keys=True))
    with _lock:
        if key not in _workers:
            _workers[key] = ProcessWorker(python, id, args) if python else _worker_here(id, args)
        return _workers[key]


def _worker_here(id: str, args: Mapping[str, Any]) -> Worker:
    if importlib.util.find_spec("verifiers") is None:
        raise ConfigError(
            f"verifiers:{id} is not known here: run `moonmill envs add verifiers:{id} --from PACKAGE`, which installs "
            "verifiers and the package apart from Moonmill"
        )
    return HostWorker(id, args)


def _task(row: Mapping[str, Any]) -> Task:
    answer = row["data"].get("answer")
    return Task(
        prompt=tuple(map(_message, row["prompt"])),
        answer=answer,
        id=row["name"],
        info={"task": row["task"], "data": row["data"]},
    )


def _message(said: Mapping[str, Any]) -> Message:
    calls = tuple(map(_call, said.get("tool_calls") or ()))
    return Message(said["role"], _text(said.get("content")), calls, said.get("tool_call_id"))


def _text(content: Any) -> str:
    """The texts of a content that may have parts."""
    if isinstance(content, str) or not content:
        return content or ""
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", call)
    return ToolCall(call["id"], function["name"], function["arguments"])
