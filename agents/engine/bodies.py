"""Reading the bodies of requests: no more of one than can be of use, and not for ever."""

import anyio
from starlette.requests import Request

from moonmill.agents.engine.protocol import ApiError

_BYTES_PER_TOKEN = 64
"""Far more than a token takes, be it as its id or as escaped text."""
_BYTES_BESIDES = 2**20
"""For everything that is no prompt."""
_SECONDS = 60.0


async def read_body(request: Request, max_length: int) -> bytes:
    """The whole body of a request to a model with contexts of `max_length` tokens.

    Raises:
        ApiError: it is larger than any that fits the context, or takes too long to arrive.
    """
    limit = _BYTES_BESIDES + _BYTES_PER_TOKEN * max_length
    body = bytearray()
    told = int(request.headers.get("content-length", 0))
    try:
        with anyio.fail_after(_SECONDS):
            if told <= limit:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        break
    except TimeoutError as e:
        raise ApiError(f"the body did not arrive within {_SECONDS:g} s: {len(body)} bytes of it did", 408) from e
    if max(told, len(body)) > limit:
        size = f"{told} bytes" if told else f"more than {limit} bytes"
        raise ApiError(
            f"the body has {size}; the limit is {limit}, for this model's maximum context length is {max_length} "
            "tokens: send a shorter prompt",
            413,
        )
    return bytes(body)
