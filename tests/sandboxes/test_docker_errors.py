"""A Docker daemon that is not there, not ours to use, silent or out of reach is told with what to do about it."""

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from moonmill.sandboxes import SandboxSpec, SandboxUnavailableError
from moonmill.sandboxes.docker_client import DaemonError
from moonmill.sandboxes.docker_daemon import Daemon
from tests.sandboxes.containers import of, provider

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that others than its owner may enter."""
    path = Path(tempfile.mkdtemp(prefix="moonmill-docker-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


async def refusal(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    monkeypatch.setenv("DOCKER_HOST", url)
    with pytest.raises(SandboxUnavailableError) as raised:
        async with provider(timeout=1.0):
            pass
    return str(raised.value)


async def test_no_daemon(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    said = await refusal(monkeypatch, f"unix://{folder}/docker.sock")
    assert said.startswith(
        f"no Docker daemon answers at unix://{folder}/docker.sock (No such file or directory). Start it: "
    )
    assert "systemctl start docker" in said
    assert "DOCKER_HOST" in said


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{folder}/docker.sock")
    assert "(Connection refused)" in await refusal(monkeypatch, f"unix://{folder}/docker.sock")


async def test_a_socket_that_is_not_ours_to_use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(f"{folder}/docker.sock")
        theirs.listen()
        (folder / "docker.sock").chmod(0)
        root = os.geteuid() == 0
        if root:  # whom nothing is forbidden
            os.seteuid(65534)
        try:
            said = await refusal(monkeypatch, f"unix://{folder}/docker.sock")
        finally:
            if root:
                os.seteuid(0)
    assert said.startswith(f"you may not use the Docker daemon at unix://{folder}/docker.sock (Permission denied). ")
    assert "usermod -aG docker" in said
    assert "DOCKER_HOST" in said


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:99999", "tcp://[::1", "http://[::1]:x"])
async def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    said = await refusal(monkeypatch, url)
    assert said.startswith(f"DOCKER_HOST is {url!r}, which is no address (")


async def test_a_daemon_that_says_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/docker.sock")
        silent.listen()
        begin = time.monotonic()
        assert "timed out" in await refusal(monkeypatch, f"unix://{folder}/docker.sock")
        assert time.monotonic() - begin < 10


async def test_something_else_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "no Docker daemon answers" in await refusal(monkeypatch, f"tcp://127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize("url", ["ssh://me@far", "https://far:2376", "npipe://x"])
async def test_ways_that_are_not_supported(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert "ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock" in await refusal(monkeypatch, url)


async def test_a_daemon_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = door.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(path)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{door.getsockname()[1]}")
        async with provider() as docker:
            async with docker.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["cat"], input=b"x" * (1 << 20))
                assert result.stdout_bytes == b"x" * (1 << 20)
            assert of(docker) == {}
        door.shutdown(socket.SHUT_RDWR)


async def test_a_daemon_that_goes_away_hides_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(self: Daemon, doing: str, *args: object, **kwargs: object) -> None:
        raise DaemonError(doing, "Connection refused")

    async def use() -> None:
        async with provider():
            monkeypatch.setattr(Daemon, "call", nobody)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()


async def test_no_docker_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(SandboxUnavailableError, match=r"pip install 'moonmill\[docker\]'"):
        async with provider():
            pass
