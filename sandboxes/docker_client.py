"""docker-py, and what it raises as errors of ours: what was wrong, where, and what to do about it."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from moonmill.sandboxes.errors import SandboxUnavailableError

T = TypeVar("T")
CONNECTIONS = 16
"""Calls at once. More only queue up inside the daemon."""


class DaemonError(SandboxUnavailableError):
    """A call that the daemon has refused, or has not answered.

    Args:
        doing: what was to be done.
        why: in the daemon's words.
        status: of its answer; None where there was none.
    """

    def __init__(self, doing: str, why: str, status: int | None = None) -> None:
        super().__init__(f"docker could not {doing}: {why}")
        self.why = why
        self.status = status


def connect(url: str, timeout: float) -> Any:
    """docker-py's client of the daemon at `url`, whose calls fail after `timeout` seconds without a byte.

    Raises:
        SandboxUnavailableError: there is none that can be used, or docker-py is not installed.
    """
    if not url.startswith(("unix://", "tcp://", "http://")) or os.environ.get("DOCKER_TLS_VERIFY"):
        raise SandboxUnavailableError(
            f"sandboxes cannot use a Docker daemon over {url.partition('://')[0]} or TLS (DOCKER_HOST, "
            "DOCKER_TLS_VERIFY): forward its socket, for example by\n"
            "  ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST\n"
            "and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    try:
        import docker
    except ImportError as e:
        raise SandboxUnavailableError(
            f"the docker provider needs the docker package ({e}): pip install 'moonmill[docker]'"
        ) from e

    class Client(docker.APIClient):  # type: ignore[misc]
        def request(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = kwargs.get("timeout") or timeout  # it asks for none where much may come
            return super().request(*args, **kwargs)

    try:
        return Client(base_url=url, version="auto", timeout=timeout, max_pool_size=CONNECTIONS)
    except docker.errors.DockerException as e:
        raise SandboxUnavailableError(_why_no_daemon(url, e)) from e
    except ValueError as e:
        raise SandboxUnavailableError(
            f"DOCKER_HOST is {url!r:.200}, which is no address ({e}): it should be like unix:///var/run/docker.sock or "
            "tcp://HOST:PORT"
        ) from e


def telling(doing: str, work: Callable[[], T]) -> T:
    """Do it; what docker-py and the libraries under it raise is told as ours."""
    import docker
    import requests
    import urllib3

    try:
        return work()
    except docker.errors.APIError as e:
        raise DaemonError(doing, str(e.explanation or e), e.status_code) from e
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as e:
        raise DaemonError(doing, str(e)) from e


def _why_no_daemon(url: str, error: Exception) -> str:
    """What keeps us from the daemon, and what to do about it."""
    cause = next((e for e in _causes(error) if isinstance(e, OSError) and e.errno), None)
    if cause and cause.errno in (errno.EACCES, errno.EPERM):
        return (
            f"you may not use the Docker daemon at {url} ({cause.strerror}). Join the group that may: "
            "sudo usermod -aG docker $USER, and log in anew. Or set DOCKER_HOST to a daemon that you may use, such as "
            "a rootless one: unix://$XDG_RUNTIME_DIR/docker.sock"
        )
    said = f"{cause.strerror}" if cause and cause.strerror else str(error)
    return (
        f"no Docker daemon answers at {url} ({said}). Start it: sudo systemctl start docker, or, without systemd, "
        "dockerd as root. Is it elsewhere, set DOCKER_HOST (`docker context ls` tells where)"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
