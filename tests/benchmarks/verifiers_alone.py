"""Run by bench_verifiers.py in verifiers' own Python environment: the same episodes without Moonmill.

    python tests/benchmarks/verifiers_alone.py INSIDE HARNESS EPISODES CONCURRENT

INSIDE is the folder of `moonmill_inside`, whose harness HARNESS may name as `moonmill_chat`; `null` is verifiers' own.
The model is a server in this process that calls the calculator once and answers with what it says.
"""

import asyncio
import copy
import importlib.util
import json
import resource
import sys
import time

import verifiers.v1 as vf
from aiohttp import web


def load_harnesses(folder: str) -> None:
    """Make `moonmill_chat` known."""
    spec = importlib.util.spec_from_file_location(
        "moonmill_inside", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    sys.modules["moonmill_inside"] = importlib.util.module_from_spec(spec)
    importlib.import_module("moonmill_inside.v1")


async def answer(request: web.Request) -> web.Response:
    """One call, then what it said; whole or as a stream of one piece, as is asked."""
    body = await request.json()
    last = body["messages"][-1]
    if last["role"] == "tool":
        message, reason = {"role": "assistant", "content": f"It is {last['content']}"}, "stop"
    else:
        function = {"name": "calculate", "arguments": json.dumps({"expression": last["content"]})}
        call = {"id": "call", "index": 0, "type": "function", "function": function}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    frame = {"id": "x", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response({**frame, "object": "chat.completion", "choices": [choice], "usage": usage})
    piece = {**frame, "object": "chat.completion.chunk"}
    choices = (
        [{"index": 0, "delta": message, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": reason}],
    )
    lines = [f"data: {json.dumps({**piece, 'choices': part})}\n\n" for part in choices]
    return web.Response(text="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")


async def main(harness: str, episodes: int, concurrent: int) -> None:
    """Play, and print seconds by the wall clock and of CPU."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    agent = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
    config = vf.resolve_env_config({"taskset": {"id": "moonmill-sums", "size": episodes}, "agent": agent})
    env = vf.load_environment(config)
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    context = vf.ModelContext(model="policy", client=client, sampling=vf.SamplingConfig())
    gate = asyncio.Semaphore(concurrent)

    in_process = sys.modules["moonmill_inside.tools"].in_process if harness == "moonmill_chat" else lambda task: task

    async def one(task: vf.Task) -> float:
        async with gate:
            episode = await env.run_episode(in_process(copy.copy(task)), context)
        assert episode.ok, episode.traces[0].errors
        return episode.traces[0].reward

    tasks = list(env.taskset.take(episodes))
    async with env.serving():
        await one(tasks[0])
        wall, cpu = time.perf_counter(), seconds()
        rewards = await asyncio.gather(*map(one, tasks))
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": seconds() - cpu}))
    assert set(rewards) == {1.0}


def seconds() -> float:
    """Of CPU, in this process and in those it has waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


if __name__ == "__main__":
    load_harnesses(sys.argv[1])
    asyncio.run(main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
