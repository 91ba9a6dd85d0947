"""The images of sandboxes: by name, built from a Dockerfile, or imported from a tar.

What is built or imported is tagged with the hash of what it was made from, so it is made once. A provider keeps to the
image it has found for a name, though the name may come to mean another one: all its sandboxes are alike.
"""

import hashlib
import tarfile
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import anyio
from anyio import CancelScope
from msgspec import Struct

from moonmill.sandboxes.docker_client import DaemonError
from moonmill.sandboxes.docker_daemon import Daemon
from moonmill.sandboxes.errors import SandboxSpecError

DOCKERFILE, TAR = "dockerfile:", "tar:"
_HASH_DIGITS = 20
_MODIFIED = 1_000_000_000
"""When all files of a build are said to be from (2001), so that the same files have the same hash."""


class Image(Struct, frozen=True):
    """An image that is there."""

    name: str
    """As it was asked for."""
    id: str
    env: dict[str, str]
    """Environment variables that it brings."""
    volumes: tuple[str, ...]
    """Folders that it wants kept apart from its files."""

    @property
    def is_imported(self) -> bool:
        """It was made of a tar."""
        return self.name.startswith(TAR)


class Images:
    """Finds images, and makes those that are to be made.

    Args:
        daemon: where they are.
        pull: get those that are missing from their registry.
    """

    def __init__(self, daemon: Daemon, *, pull: bool) -> None:
        self._daemon = daemon
        self._pull = pull
        self._found: dict[str, Image] = {}
        self._users: dict[str, dict[str, str]] = {}
        """By the id of an image: their numbers, by their names."""
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def find(self, name: str) -> Image:
        """The image of a name, of `dockerfile:FOLDER` or of `tar:FILE`.

        Raises:
            SandboxSpecError: there is none.
            SandboxUnavailableError: it cannot be built, imported or pulled.
        """
        async with self._locks[name]:
            if name not in self._found:
                self._found[name] = await self._look(name)
        return self._found[name]

    async def uid(self, image: Image, user: str, labels: Mapping[str, str]) -> str:
        """The number of a user of an image, who may be given by it.

        Args:
            image: whose user it is.
            user: a name or a number.
            labels: for the container that is made to look, and never run.

        Raises:
            SandboxSpecError: there is no such user.
            DaemonError: the image cannot be looked at.
        """
        if user.isdigit():
            return user
        async with self._locks[image.id]:
            if image.id not in self._users:
                self._users[image.id] = await self._read_users(image, labels)
        if user not in self._users[image.id]:
            raise SandboxSpecError(f"there is no user {user!r} (SandboxSpec.user) in the image {image.name!r}")
        return self._users[image.id][user]

    async def _read_users(self, image: Image, labels: Mapping[str, str]) -> dict[str, str]:
        name = f"moonmill-{uuid.uuid4().hex}"
        await self._daemon.create({"image": image.id, "name": name, "entrypoint": ["true"], "labels": {**labels}}, {})
        try:
            text = (await self._daemon.read_file(name, "/etc/passwd")).decode("utf-8", "replace")
        finally:
            with CancelScope(shield=True):
                await self._daemon.remove(name)
        lines = [line.split(":") for line in text.splitlines()]
        return {"root": "0", **{fields[0]: fields[2] for fields in lines if len(fields) > 3 and fields[2].isdigit()}}

    def forget(self, image: Image) -> None:
        """It is not there any more."""
        self._found.pop(image.name, None)

    async def _look(self, name: str) -> Image:
        if name.startswith(DOCKERFILE):
            tag = await self._build(Path(name.removeprefix(DOCKERFILE)))
        elif name.startswith(TAR):
            tag = await self._import(Path(name.removeprefix(TAR)))
        else:
            tag = name
            if self._pull and not await self._inspect(tag):
                # Without a tag, all there are would be pulled.
                has_tag = "@" in name or ":" in name.rpartition("/")[2]
                await self._daemon.follow(f"pull {name}", "pull", name, None if has_tag else "latest", stream=True)
        found = await self._inspect(tag)
        if not found:
            raise SandboxSpecError(
                f"the image {name!r} (SandboxSpec.image) is not on the Docker daemon at {self._daemon.url}: "
                f"docker pull {name}"
            )
        config = found.get("Config") or {}
        env = dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair)
        return Image(name, found["Id"], env, tuple(config.get("Volumes") or ()))

    async def _inspect(self, tag: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self._daemon.call(f"look for the image {tag!r}", "inspect_image", tag)
        except DaemonError as e:
            if e.status == 404:
                return None
            if e.status == 400:
                raise SandboxSpecError(f"{tag!r} (SandboxSpec.image) is no name of an image: {e.why}") from e
            raise
        return found

    async def _build(self, folder: Path) -> str:
        """Build what is in a folder with a Dockerfile, unless that was done before."""
        with tempfile.TemporaryFile() as context:
            tag = "moonmill-build:" + await self._hash(lambda: _pack(folder, context), folder)
            if not await self._inspect(tag):
                await self._daemon.follow(
                    f"build {folder}", "build", fileobj=context, custom_context=True, tag=tag, rm=True, forcerm=True
                )
        return tag

    async def _import(self, path: Path) -> str:
        """Make an image of a tar of its files, unless that was done before."""
        tag = "moonmill-import:" + await self._hash(lambda: _hash_of(path), path)
        if not await self._inspect(tag):
            await self._daemon.import_image(path, tag)
        return tag

    async def _hash(self, read: Callable[[], str], path: Path) -> str:
        try:
            return await self._daemon.run(read)
        except OSError as e:
            why = e.strerror or e
            raise SandboxSpecError(f"no image can be made of {path} (SandboxSpec.image): {why}: {e.filename}") from e


def _pack(folder: Path, out: BinaryIO) -> str:
    """Write what a build may use of a folder, as a tar that tells of nothing but the files; returns its hash."""
    from docker.utils import exclude_paths

    (folder / "Dockerfile").stat()
    ignore = folder / ".dockerignore"
    lines = [line.strip() for line in ignore.read_text().splitlines()] if ignore.is_file() else []
    names = exclude_paths(str(folder), [line for line in lines if line and not line.startswith("#")])
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in sorted(names):
            archive.add(folder / name, name, recursive=False, filter=_plain)
    out.seek(0)
    digest = _digest(out)
    out.seek(0)
    return digest


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: Any) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()[:_HASH_DIGITS]


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = _MODIFIED
    return info
