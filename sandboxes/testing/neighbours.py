"""Sandboxes are closed to each other."""

import anyio

from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import equal, leave_running, new_marker, probe, remove, running, that
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("neighbours")
_AT_ONCE = 4


@topic.around("a neighbour's files are not seen", promise="files")
async def files(lab: Lab) -> None:
    first, second = await lab.sandbox(), await lab.sandbox("neighbour")
    workdir = (await first.exec(["pwd", "-P"])).stdout.strip()
    name = f"moonmill-check-{new_marker()}"
    places = [workdir, "/tmp", "/dev/shm"]
    for place in places:
        await first.write_file(f"{place}/{name}", b"of the first")
    code = "answer = [place for place in given['places'] if os.path.exists(os.path.join(place, given['name']))]"
    equal("where the first sees its own", await probe(first, code, places=places, name=name), places)
    seen = await probe(second, code, places=places, name=name)
    await remove(first, places, name)
    equal("where its neighbour sees them", seen, [])


@topic.around("a neighbour's processes are not seen", promise="processes")
async def processes(lab: Lab) -> None:
    first, second = await lab.sandbox(), await lab.sandbox("neighbour")
    marker = new_marker()
    pid = await leave_running(first, marker)
    equal("those that its neighbour sees", await running(second, marker), [])
    await second.exec(["sh", "-c", f"kill -9 {pid}"])
    equal("the processes of the first afterwards", await running(first, marker, kill=True), [pid])


@topic.around("a neighbour's shared memory is not seen", promise="processes")
async def shared_memory(lab: Lab) -> None:
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
got = libc.shmget(0x4D4F4F4E, 4096, 0o1000 | 0o666 if given["make"] else 0)
answer = got >= 0
if given["remove"]:
    libc.shmctl(got, 0, None)
"""
    first, second = await lab.sandbox(), await lab.sandbox("neighbour")
    that(await probe(first, code, make=True, remove=False), "no shared memory could be made")
    seen = await probe(second, code, make=False, remove=False)
    await probe(first, code, make=False, remove=True)
    that(not seen, "it is seen")


@topic.around("a new sandbox has nothing of an earlier one")
async def fresh(lab: Lab) -> None:
    marker = new_marker()
    async with lab.open() as sandbox:
        await sandbox.write_file("left", b"left")
        await leave_running(sandbox, marker)
    async with lab.open() as sandbox:
        equal("the files in its workdir", await sandbox.list_files(), ())
        equal("the processes of the earlier one", await running(sandbox, marker), [])


@topic.around("several sandboxes open, work and close at once", seconds=60)
async def at_once(lab: Lab) -> None:
    answers: dict[int, str] = {}

    async def work(number: int) -> None:
        async with lab.open() as sandbox:
            await sandbox.write_file("number", str(number))
            answers[number] = (await sandbox.exec(["cat", "number"])).stdout

    async with anyio.create_task_group() as group:
        for number in range(_AT_ONCE):
            group.start_soon(work, number)
    equal("their answers", answers, {number: str(number) for number in range(_AT_ONCE)})
