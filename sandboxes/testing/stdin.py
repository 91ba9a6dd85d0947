"""What a command is given on stdin."""

import os

from moonmill.sandboxes.errors import ExecTimeoutError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import at_once, equal, refused, that
from moonmill.sandboxes.types import MIB

topic = Topic("stdin")
_VERBATIM = b"NUL \0, invalid \xff\xfe, $HOME, `id`, $(id), 'quoted\", \\n, \r\n, \x04, \x1b[0m, " + "猫".encode()


@topic.inside("without input stdin is at its end")
async def nothing(sandbox: Sandbox) -> None:
    with at_once("`cat` without input"):
        equal("what it prints", (await sandbox.exec(["cat"])).stdout, "")


@topic.inside("bytes arrive as they are")
async def verbatim(sandbox: Sandbox) -> None:
    equal("what `cat` prints", (await sandbox.exec(["cat"], input=_VERBATIM)).stdout_bytes, _VERBATIM)


@topic.inside("text arrives in UTF-8")
async def as_text(sandbox: Sandbox) -> None:
    equal("what `cat` prints", (await sandbox.exec(["cat"], input="größe 猫")).stdout, "größe 猫")


@topic.inside("50 MiB go through a command and come back", seconds=90)
async def large(sandbox: Sandbox) -> None:
    content = os.urandom(MIB) * 50
    result = await sandbox.exec(["cat"], input=content, output_limit=64 * MIB, timeout=60)
    that(result.stdout_bytes == content, f"{len(result.stdout_bytes):,} of {len(content):,} bytes came back, or others")
    that(not result.truncated, "they are flagged as truncated")


@topic.inside("a command need not read its input", seconds=60)
async def unread(sandbox: Sandbox) -> None:
    content = bytes(50 * MIB)
    with at_once("`true` with 50 MiB of input", 30):
        equal("its return code", (await sandbox.exec(["true"], input=content)).returncode, 0)
    with at_once("`head -c 1` with 50 MiB of input", 30):
        equal("what it prints", (await sandbox.exec(["head", "-c", "1"], input=content)).stdout_bytes, b"\0")
    equal("a command afterwards", (await sandbox.exec(["cat"], input=b"still here")).stdout, "still here")


@topic.inside("input that is not read does not delay a time-out")
async def unread_until_the_time_out(sandbox: Sandbox) -> None:
    with refused(ExecTimeoutError, "`sleep` with 10 MiB of input that it does not read"):
        await sandbox.exec(["sleep", "60"], input=bytes(10 * MIB), timeout=0.3)
