"""The images of docker sandboxes, on a real daemon: found, built, imported, and refused in words that help."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonmill.sandboxes import SandboxSpec, SandboxSpecError, SandboxUnavailableError
from tests.sandboxes.containers import IMAGE, daemon, of, provider

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_images_left() -> Iterator[None]:
    """What was built or imported is removed."""
    with daemon() as client:
        before = {tag for image in client.images() for tag in image["RepoTags"] or ()}
        yield
        for image in client.images():
            for tag in image["RepoTags"] or ():
                if tag.startswith(("moonmill-build:", "moonmill-import:")) and tag not in before:
                    client.remove_image(tag, force=True)


def tags() -> set[str]:
    with daemon() as client:
        return {
            tag for image in client.images() for tag in image["RepoTags"] or () if tag.startswith("moonmill-build:")
        }


def folder(path: Path, *lines: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "Dockerfile").write_text("\n".join([f"FROM {IMAGE}", *lines]) + "\n")
    return path


async def say(spec: SandboxSpec, *argv: str) -> str:
    async with provider() as docker, docker.open(spec) as sandbox:
        result = await sandbox.exec(argv)
    assert result.returncode == 0, result.stderr
    return result.stdout


async def test_a_dockerfile_is_built_once_and_again_when_something_has_changed(tmp_path: Path) -> None:
    made = folder(tmp_path / "image", "COPY data /data/")
    (made / "data").write_text("first")
    spec = SandboxSpec(image=f"dockerfile:{made}")
    before = tags()
    assert await say(spec, "cat", "/data/data") == "first"
    [first] = tags() - before
    (made / "data").touch()
    assert await say(spec, "cat", "/data/data") == "first"
    assert tags() - before == {first}, "only the time was another"
    (made / "data").write_text("second")
    assert await say(spec, "cat", "/data/data") == "second"
    assert len(tags() - before) == 2


async def test_what_a_dockerignore_names_is_not_looked_at(tmp_path: Path) -> None:
    made = folder(tmp_path / "image", "COPY . /data/")
    (made / ".dockerignore").write_text("# none of these\n*.log\n")
    (made / "run.log").write_text("1")
    (made / "data").write_text("1")
    spec = SandboxSpec(image=f"dockerfile:{made}")
    before = tags()
    assert set((await say(spec, "ls", "/data")).split()) >= {"data"}
    (made / "run.log").write_text("2")
    assert "run.log" not in await say(spec, "ls", "/data")
    assert len(tags() - before) == 1


async def test_nothing_that_an_image_says_of_itself_opens_the_box(tmp_path: Path) -> None:
    made = folder(
        tmp_path / "image",
        "ENV GREETING=hello PYTHONSTARTUP=/nowhere",
        "VOLUME /var/lib/data",
        "USER user",
        "WORKDIR /usr",
        'ENTRYPOINT ["false"]',
        "HEALTHCHECK --interval=1s CMD touch /tmp/was-here",
    )
    async with provider() as docker, docker.open(SandboxSpec(image=f"dockerfile:{made}")) as sandbox:
        [name] = of(docker)
        with daemon() as client:
            found = client.inspect_container(name)
        assert found["Mounts"] == [], "no volume, which would have no size"
        assert "Health" not in found["State"]
        result = await sandbox.exec(["bash", "-c", "echo $GREETING; id -u; pwd; grep ' /var/lib/data ' /proc/mounts"])
        greeting, uid, where, mount = result.stdout.splitlines()
        assert (greeting, uid, where) == ("hello", "1000", "/workspace")
        assert mount.startswith("tmpfs ")
        assert "size=262144k" in mount


async def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    made = folder(tmp_path / "image", "RUN echo about to fail && false")
    with pytest.raises(
        SandboxUnavailableError, match=r"(?s)could not build .*image: .*about to fail.*non-zero code: 1"
    ):
        await say(SandboxSpec(image=f"dockerfile:{made}"), "true")


def exported(path: Path) -> Path:
    with daemon() as client:
        made = client.create_container(IMAGE, ["true"])["Id"]
        try:
            with path.open("wb") as file:
                file.writelines(client.export(made))
        finally:
            client.remove_container(made)
    return path


async def test_an_exported_container_is_imported(tmp_path: Path) -> None:
    path = exported(tmp_path / "files.tar")
    assert await say(SandboxSpec(image=f"tar:{path}"), "echo", "hi") == "hi\n"


def tar_of(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


async def test_a_file_that_is_no_tar_is_told(tmp_path: Path) -> None:
    (tmp_path / "files.tar").write_text("no tar" * 1000)
    with pytest.raises(SandboxUnavailableError, match=r"docker could not import /.*/files\.tar: .*tar"):
        await say(SandboxSpec(image=f"tar:{tmp_path / 'files.tar'}"), "true")


async def test_an_image_without_python_is_refused_with_advice(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "files.tar", nothing="here")
    async with provider() as docker:
        for _ in range(2):
            with pytest.raises(
                SandboxSpecError, match=r"no python3 in the image 'tar:.*: the supervisor is a Python .*add"
            ):
                async with docker.open(SandboxSpec(image=f"tar:{path}")):
                    pass
        assert of(docker) == {}


def with_python_that_says(path: Path, words: str) -> Path:
    made = folder(path, "COPY python3 /usr/local/bin/")
    (made / "python3").write_text(f"#!/bin/sh\necho {words} >&2\nexit 1\n")
    (made / "python3").chmod(0o755)
    return made


async def test_an_image_whose_python_is_too_old_is_refused(tmp_path: Path) -> None:
    made = with_python_that_says(tmp_path / "image", "this is Python 3.6.9")
    with pytest.raises(SandboxSpecError, match=r"too old: this is Python 3\.6\.9, .* needs 3\.9 or newer"):
        await say(SandboxSpec(image=f"dockerfile:{made}"), "true")


async def test_an_image_with_half_a_python_is_refused(tmp_path: Path) -> None:
    half = "RUN rm $(find / -xdev -path '*/lib-dynload/resource.*')"
    made = folder(tmp_path / "image", half)
    with pytest.raises(SandboxSpecError, match=r"No module named 'resource'\): Debian's python3-minimal is not enough"):
        await say(SandboxSpec(image=f"dockerfile:{made}"), "true")


async def test_a_supervisor_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    made = with_python_that_says(tmp_path / "image", "I am broken")
    with pytest.raises(SandboxUnavailableError, match=r"gone: .*; it said: I am broken"):
        await say(SandboxSpec(image=f"dockerfile:{made}"), "true")


async def test_python_may_be_off_the_path(tmp_path: Path) -> None:
    made = folder(tmp_path / "image", "ENV PATH=/nowhere")
    assert await say(SandboxSpec(image=f"dockerfile:{made}"), "/bin/echo", "hi") == "hi\n"


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (
            "no-such-image:1",
            r"'no-such-image:1' \(SandboxSpec\.image\) is not on the Docker .*: docker pull no-such-image:1$",
        ),
        ("Not A Name", r"'Not A Name' \(SandboxSpec\.image\) is no name of an image"),
        (
            "dockerfile:/nowhere",
            r"no image can be made of /nowhere \(SandboxSpec\.image\): No such file.*: /nowhere/Dockerfile",
        ),
        ("tar:/nowhere.tar", r"no image can be made of /nowhere\.tar \(SandboxSpec\.image\): No such file"),
    ],
)
async def test_an_image_that_cannot_be_had_is_told(image: str, words: str) -> None:
    with pytest.raises(SandboxSpecError, match=words):
        await say(SandboxSpec(image=image), "true")


async def test_an_image_that_is_to_be_pulled_and_cannot_be_is_told() -> None:
    async with provider(pull=True) as docker:
        with pytest.raises(SandboxUnavailableError, match=r"docker could not pull 127\.0\.0\.1:1/none: "):
            async with docker.open(SandboxSpec(image="127.0.0.1:1/none")):
                pass


async def test_an_image_that_was_removed_meanwhile_is_looked_for_anew(tmp_path: Path) -> None:
    spec = SandboxSpec(image=f"dockerfile:{folder(tmp_path / 'image', 'ENV A=b')}")
    before = tags()
    async with provider() as docker:
        async with docker.open(spec):
            [tag] = tags() - before
        with daemon() as client:
            client.remove_image(tag, force=True)
        with pytest.raises(SandboxUnavailableError, match="No such image"):
            async with docker.open(spec):
                pass
        async with docker.open(spec) as sandbox:
            assert (await sandbox.exec(["bash", "-c", "echo $A"])).stdout == "b\n"
