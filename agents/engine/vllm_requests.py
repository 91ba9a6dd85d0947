"""The few requests that tell whether vLLM's server works. Standard library alone, and each bounded."""

import json
from http.client import HTTPConnection, HTTPException
from typing import Any

from moonmill.errors import EngineError

_HEALTH_SECONDS = 5.0
_FIRST_ANSWER_SECONDS = 900.0
"""A GPU may compile for minutes. Whoever started us waits no longer than it was told to."""
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class BadAnswerError(EngineError):
    """vLLM serves, but did not answer the simplest request."""


def healthy(host: str, port: int) -> bool | None:
    """Whether it can be used: False where its engine process has died, None where nobody answers."""
    try:
        status, _ = _request("GET", "/health", host, port, _HEALTH_SECONDS)
    except (OSError, HTTPException):
        return None
    return status == 200


def answer_one(host: str, port: int, model: str) -> int | None:
    """Have it sample one token; returns the longest context it takes.

    Raises:
        BadAnswerError: it did not.
    """
    body = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0, "logprobs": 0, "return_token_ids": True}
    try:
        status, answer = _request("POST", "/v1/completions", host, port, _FIRST_ANSWER_SECONDS, body)
        if status != 200:
            raise BadAnswerError(_message(answer) or f"it answered with status {status}")
        _, models = _request("GET", "/v1/models", host, port, _HEALTH_SECONDS)
    except (OSError, HTTPException) as e:
        raise BadAnswerError(f"it did not answer a first request: {type(e).__name__}: {e}") from e
    lengths = [m.get("max_model_len") for m in models.get("data", []) if m.get("max_model_len")]
    return lengths[0] if lengths else None


def _request(
    method: str, path: str, host: str, port: int, seconds: float, body: Any = None
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(_ANYWHERE.get(host, host), port, timeout=seconds)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    return response.status, answer if isinstance(answer, dict) else {}


def _message(answer: dict[str, Any]) -> str:
    error = answer.get("error", answer)
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
