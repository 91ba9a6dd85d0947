"""What the tests of the docker provider share: the daemon, its containers, and the image that `make_image` makes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import docker

from moonmill.sandboxes import docker_owner
from moonmill.sandboxes.docker_provider import DockerProvider

IMAGE = "moonmill-sandbox-test:latest"


def provider(**settings: Any) -> DockerProvider:
    return DockerProvider(**{"image": IMAGE, "timeout": 60.0, **settings})


@contextmanager
def daemon() -> Iterator[Any]:
    """docker-py's own way to it."""
    client = docker.APIClient(version="auto", timeout=60)
    try:
        yield client
    finally:
        client.close()


def ours() -> dict[str, Mapping[str, Any]]:
    """All containers with our label that there are, by id."""
    with daemon() as client:
        found = client.containers(all=True, filters={"label": docker_owner.LABEL})
    return {container["Id"]: container for container in found}


def of(maker: DockerProvider) -> dict[str, Mapping[str, Any]]:
    """Those that a provider has made."""
    return {name: c for name, c in ours().items() if c["Labels"][docker_owner.LABEL] == maker.id}


def gone(names: set[str], seconds: float = 20.0) -> bool:
    """Wait until none of these containers is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not names & ours().keys():
            return True
        time.sleep(0.05)
    return False
