"""Servers of ours as child processes. The server here is a tiny one on the same helper as the engine's."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import pytest

from moonmill.agents import serving
from moonmill.agents.processes import ServerProcess
from moonmill.errors import ConfigError, WorkerDiedError

pytestmark = pytest.mark.anyio

SERVER = """
import sys
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from moonmill.agents.serving import serve

async def hello(request):
    print("asked for", request.url.path, flush=True)
    return PlainTextResponse("hello")

print("starting", flush=True)
serve(Starlette(routes=[Route("/", hello)]), "127.0.0.1", int(sys.argv[1]), exit_with_stdin=True, ready={"who": "test"})
"""


def server(
    tmp_path: Path, *argv: str, timeout: float = 30, on_progress: Callable[[str], None] | None = None
) -> ServerProcess:
    command, log = argv or (sys.executable, "-c", SERVER, "0"), tmp_path / "logs" / "tester.log"
    return ServerProcess("tester", command, log_path=log, start_timeout=timeout, on_progress=on_progress)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def gone(pid: int, seconds: float = 5) -> None:
    """Wait until a process is no more."""
    with anyio.fail_after(seconds):
        while exists(pid):  # noqa: ASYNC110  # no child of ours, so nobody tells us
            await anyio.sleep(0.02)


async def test_a_server_is_there_inside_the_context_and_gone_after(tmp_path: Path) -> None:
    async with server(tmp_path) as process:
        assert process.alive
        assert process.ready["who"] == "test"
        async with httpx.AsyncClient() as http:
            assert (await http.get(process.base_url)).text == "hello"
    assert not process.alive
    assert process.returncode == 0, "SIGTERM ends it cleanly"


async def test_what_it_prints_is_in_the_log(tmp_path: Path) -> None:
    async with server(tmp_path) as process, httpx.AsyncClient() as http:
        await http.get(process.base_url)
    assert process.last_words().splitlines() == ["starting", "asked for /"]


async def test_how_far_its_start_is_is_passed_on_and_not_into_the_log(tmp_path: Path) -> None:
    code = """
import sys, time
print('{"progress": "loading (1 s)"}', flush=True)
print('{"some": "json"}', flush=True)
print('{"progress": "warming up (2 s)"}', flush=True)
print('{"ready": {"port": 1}}', flush=True)
time.sleep(60)
"""
    said: list[str] = []
    async with server(tmp_path, *python(code), on_progress=said.append) as process:
        assert said == ["loading (1 s)", "warming up (2 s)"]
    assert process.last_words() == '{"some": "json"}'


async def test_its_death_is_noticed_and_a_restart_serves_again(tmp_path: Path) -> None:
    async with server(tmp_path) as process:
        first = process.pid
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(5):
            await process.wait_dead()
        assert process.returncode == -signal.SIGKILL
        await process.restart()
        assert process.alive
        assert process.pid != first
        async with httpx.AsyncClient() as http:
            assert (await http.get(process.base_url)).text == "hello"


async def test_refusing_its_arguments_is_told_in_its_own_words(tmp_path: Path) -> None:
    code = "from moonmill.agents.serving import refuse; refuse('no such model')"
    with pytest.raises(ConfigError, match=r"^the tester refused to start: no such model$"):
        await server(tmp_path, *python(code)).__aenter__()


async def test_dying_at_the_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('first line', file=sys.stderr); raise SystemExit('out of memory')"
    with pytest.raises(WorkerDiedError) as raised:
        await server(tmp_path, *python(code)).__aenter__()
    assert str(raised.value) == (
        "the tester ended with 1 at once; it said:\n  first line\n  out of memory\n"
        f"(the whole log: {tmp_path / 'logs' / 'tester.log'})"
    )


async def test_not_being_ready_in_time_ends_it(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = server(tmp_path, *python(code), timeout=1)
    start = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"was not ready in 1 s \(its start_timeout\)"):
        await process.__aenter__()
    assert time.monotonic() - start < 5
    assert not process.alive


async def test_cancelling_the_start_ends_it(tmp_path: Path) -> None:
    process = server(tmp_path, *python("import time; time.sleep(60)"))
    with anyio.move_on_after(0.5):
        await process.__aenter__()
    assert not process.alive


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonmill.agents.processes._TERMINATE_SECONDS", 0.2)
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"ready": {"port": 1}}', flush=True)
time.sleep(60)
"""
    async with server(tmp_path, *python(code)) as process:
        pass
    assert process.returncode == -signal.SIGKILL


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="cannot be started: /no/such/program: No such file"):
        await server(tmp_path, "/no/such/program").__aenter__()


async def stop_of(pid: int) -> None:
    """Wait until a process has stopped."""
    with anyio.fail_after(5):
        while " T " not in await anyio.Path(f"/proc/{pid}/stat").read_text():  # noqa: ASYNC110  # as above
            await anyio.sleep(0.02)


def test_a_client_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_UNREAD_SECONDS", 0.5)
    with serving.listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        connection.settimeout(10)
        with connection, pytest.raises(OSError, match="Connection timed out"):
            connection.sendall(b"x" * 50_000_000)


PARENT = """
import os, sys, anyio
from pathlib import Path
from moonmill.agents import serving
from moonmill.agents.processes import ServerProcess

async def main():
    argv = [sys.executable, "-c", {server!r}, "0"]
    async with ServerProcess("tester", argv, log_path=Path({log!r}), start_timeout=30) as process:
        held = os.fork() if {forks} else 0
        if {forks} and not held:
            os.read(int(sys.argv[1]), 1)
            os._exit(0)
        print(process.pid, flush=True)
        await anyio.sleep(60)

anyio.run(main)
"""


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "its pipes are held by a fork of it"])
async def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path, stopped: bool, forks: bool) -> None:
    parent = PARENT.format(server=SERVER, log=str(tmp_path / "log"), forks=forks)
    end, held = os.pipe()
    try:
        process = await anyio.open_process([*python(parent), str(end)], pass_fds=[end])
        async with process:
            assert process.stdout is not None
            child = int(await process.stdout.receive())
            assert exists(child)
            if stopped:
                os.kill(child, signal.SIGSTOP)
                await stop_of(child)
            process.kill()
            try:
                await gone(child)
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                raise
    finally:
        os.close(held)
        os.close(end)


async def test_small_packets_are_sent_at_once() -> None:
    """Else the end of every short answer waits 40 ms for the client's acknowledgement."""
    set_to: list[int] = []

    class Peek(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            set_to.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    listener = serving.listen("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(Peek, sock=listener):
        stream = await anyio.connect_tcp(*listener.getsockname())
        await stream.aclose()
        with anyio.fail_after(5):
            while not set_to:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    assert set_to[0] != 0


def test_the_collector_rests_while_a_server_starts_and_passes_over_what_was_loaded() -> None:
    code = """
import gc
from moonmill.agents.serving import starting

before = gc.get_freeze_count()
with starting():
    assert not gc.isenabled()
    loaded = [[] for _ in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() >= before + 1000
try:
    with starting():
        raise SystemExit(0)
finally:
    assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
