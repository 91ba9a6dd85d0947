"""However a sandbox ends, nothing of it stays, and nobody waits for it."""

import signal

import anyio

from moonmill.sandboxes.errors import SandboxUnavailableError
from moonmill.sandboxes.testing.case import NotShownError, Topic
from moonmill.sandboxes.testing.expect import at_once, equal, leave_running, new_marker, refused, shell, that, until
from moonmill.sandboxes.testing.lab import Lab
from moonmill.sandboxes.testing.traces import children, kill_marked, marked_processes, signal_from_outside, traces_of

topic = Topic("endings")
_LIVES_SECONDS = 90.0


@topic.around("after closing no process is left", seconds=_LIVES_SECONDS)
async def processes_after_closing(lab: Lab) -> None:
    left = await lab.leavings("closes")
    equal("processes that are left", left.processes, [])
    equal("processes left below the one that had opened it", left.children, 0)


@topic.around("after closing no control group, layer or temporary file is left", seconds=_LIVES_SECONDS)
async def places_after_closing(lab: Lab) -> None:
    equal("what is left", (await lab.leavings("closes")).places, [])


@topic.around("after closing no file descriptor or thread is left", seconds=_LIVES_SECONDS)
async def descriptors_after_closing(lab: Lab) -> None:
    left = await lab.leavings("closes")
    equal("file descriptors that are left", left.descriptors, [])
    that(left.threads < 3, f"{left.threads} threads are left of four sandboxes")


@topic.around("when our process is killed, all processes of its sandboxes end", seconds=_LIVES_SECONDS)
async def processes_after_a_kill(lab: Lab) -> None:
    left = await lab.leavings("is killed")
    if not left.visible:
        raise NotShownError("its processes cannot be seen from this host")
    equal("processes that are left", left.processes, [])


@topic.around("of a process that was killed nothing is left once the provider is used again", seconds=_LIVES_SECONDS)
async def places_after_a_kill(lab: Lab) -> None:
    equal("what is left", (await lab.leavings("is killed")).places, [])


@topic.around("a sandbox that disappears under a command is an infrastructure failure, at once")
async def disappearing(lab: Lab) -> None:
    marker = new_marker()

    async def is_seen() -> bool:
        return any(marked_processes(marker))

    async def end_it() -> None:
        await until(is_seen, "its processes cannot be seen from this host")
        if not signal_from_outside(marker, signal.SIGKILL):
            raise NotShownError("its processes are not ours to end")

    async with lab.open() as sandbox:
        async with anyio.create_task_group() as group:
            group.start_soon(end_it)
            with refused(SandboxUnavailableError, "a command in a sandbox that disappears", seconds=10):
                await sandbox.exec(["sleep", marker], timeout=60)
        kill_marked(marker)
        that(bool(sandbox.lost), "it does not say that it is lost")
        with refused(SandboxUnavailableError, "a further command"):
            await sandbox.exec(["true"])
        with refused(SandboxUnavailableError, "reading a file"):
            await sandbox.read_file("file")
        with refused(SandboxUnavailableError, "writing a file"):
            await sandbox.write_file("file", b"")
        with refused(SandboxUnavailableError, "listing a folder"):
            await sandbox.list_files()


@topic.around("a sandbox that does not answer any more is closed, and all of it ends", seconds=60)
async def not_answering(lab: Lab) -> None:
    marker = new_marker()
    try:
        async with lab.open() as sandbox:
            await leave_running(sandbox, marker)
            traces = traces_of(marker)
            if not signal_from_outside(marker, signal.SIGSTOP):
                raise NotShownError("its processes are not ours to stop")

        async def nothing_is_left() -> bool:
            return not traces.processes_left()

        await until(nothing_is_left, "its processes are still there")
    finally:
        signal_from_outside(marker, signal.SIGKILL)
        kill_marked(marker)


@topic.around("a closed sandbox is unavailable")
async def closed(lab: Lab) -> None:
    async with lab.open() as sandbox:
        await sandbox.exec(["true"])
        equal("why it is lost", sandbox.lost, "")
    that(bool(sandbox.lost), "a closed sandbox does not say that it is lost")
    with refused(SandboxUnavailableError, "a command in a closed sandbox"):
        await sandbox.exec(["true"])
    with refused(SandboxUnavailableError, "reading a file of a closed sandbox"):
        await sandbox.read_file("file")


@topic.around("closing a sandbox does not wait for its commands")
async def closing_under_a_command(lab: Lab) -> None:
    with at_once("closing a sandbox in which a command runs", 15):
        async with lab.open() as sandbox:
            with anyio.move_on_after(0.2):
                await sandbox.exec(["sleep", "60"], timeout=60)
            await shell(sandbox, "setsid sleep 60 >/dev/null 2>&1 &")


@topic.around("an exception in its context closes a sandbox, and is passed on")
async def an_exception(lab: Lab) -> None:
    marker = new_marker()
    try:
        async with lab.open() as sandbox:
            await leave_running(sandbox, marker)
            traces = traces_of(marker)
            raise _OnPurposeError
    except _OnPurposeError:

        async def nothing_is_left() -> bool:
            return not traces.processes_left()

        await until(nothing_is_left, "its processes are still there")
        return
    except ExceptionGroup as e:
        that(False, f"it came out in a group: {e!r}")
    that(False, "it did not come out")


@topic.around("an opening that is cancelled leaves nothing")
async def cancelled_openings(lab: Lab) -> None:
    before = children()
    for delay in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1):
        with anyio.move_on_after(delay):
            async with lab.open() as sandbox:
                await sandbox.exec(["true"])

    async def nothing_is_left() -> bool:
        return not children() - before

    await until(nothing_is_left, "processes of sandboxes that were never opened are still there")
    async with lab.open() as sandbox:
        equal("a command in the next one", await shell(sandbox, "echo usable"), "usable\n")


@topic.around("the sandboxes in which all this was done close without an error", seconds=_LIVES_SECONDS)
async def closing_at_last(lab: Lab) -> None:
    await lab.sandbox()
    equal("errors", await lab.renew(), [])


class _OnPurposeError(Exception):
    pass
