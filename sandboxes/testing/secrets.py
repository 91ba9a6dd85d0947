"""What the host knows is not known inside."""

from pathlib import Path

from moonmill.sandboxes.errors import SandboxFileError
from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import equal, probe, remove, that
from moonmill.sandboxes.testing.host import KEY_NAME
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("secrets")
_SYSTEM = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_rsa_key")


@topic.around("a key in our environment is not in that of a command", promise="secrets")
async def environment(lab: Lab) -> None:
    told = (await (await lab.sandbox()).exec(["env"])).stdout
    that(KEY_NAME not in told and lab.host.key not in told, "it is there")


@topic.around("a key in our environment is in no environment that can be seen", promise="secrets")
async def environments(lab: Lab) -> None:
    code = """
answer = []
for name in os.listdir("/proc"):
    for file in ("environ", "cmdline"):
        try:
            if given["name"].encode() in open(f"/proc/{name}/{file}", "rb").read():
                answer.append(f"/proc/{name}/{file}")
        except OSError:
            pass
"""
    sandbox = await lab.sandbox()
    equal("where it is", await probe(sandbox, code, name=KEY_NAME), [])
    for name in ("self", "thread-self", "1"):
        try:
            content = await sandbox.read_file(f"/proc/{name}/environ")
        except SandboxFileError:
            continue
        that(KEY_NAME.encode() not in content, f"it is in /proc/{name}/environ, as it is read from outside")


@topic.around("files that every program of the host may read are not read", promise="files")
async def public_files(lab: Lab) -> None:
    code = """
answer = []
for path in given["paths"]:
    for root in ("", "/proc/1/root", "/proc/self/root", f"/proc/{os.getppid()}/cwd/../../../.."):
        try:
            with open(root + path) as file:
                if file.read() == given["key"]:
                    answer.append(root + path)
        except OSError:
            pass
"""
    paths = [str(folder / "secret") for folder in lab.host.folders]
    equal("what could be read", await probe(await lab.sandbox(), code, paths=paths, key=lab.host.key), [])


@topic.around("nothing is written where every program of the host may write", promise="files")
async def public_folders(lab: Lab) -> None:
    code = """
for path in given["paths"]:
    try:
        os.makedirs(path, exist_ok=True)
        open(os.path.join(path, "written"), "w").close()
    except OSError:
        pass
"""
    sandbox = await lab.sandbox()
    await probe(sandbox, code, paths=[str(folder) for folder in lab.host.folders])
    written = [str(folder) for folder in lab.host.folders if (folder / "written").exists()]
    await remove(sandbox, lab.host.folders, "written")
    equal("where something was written", written, [])


@topic.inside("the host's passwords and keys are not read", promise="files")
async def system_files(sandbox: Sandbox) -> None:
    code = """
answer = []
for path in given["paths"]:
    try:
        with open(path, "rb") as file:
            answer += [path] if file.read() else []
    except OSError:
        pass
"""
    equal("what could be read", await probe(sandbox, code, paths=_SYSTEM), [])


@topic.inside("the homes of the host's users are not seen", promise="files")
async def homes(sandbox: Sandbox) -> None:
    code = """
answer = []
for path, host in given["folders"].items():
    try:
        info = os.stat(path)
        if [info.st_dev, info.st_ino] == host and os.listdir(path):
            answer.append(path)
    except OSError:
        pass
"""
    folders = {}
    for folder in {Path.home(), Path("/root"), Path("/home"), Path.cwd()}:
        try:
            info = folder.stat()
        except OSError:
            continue
        folders[str(folder)] = [info.st_dev, info.st_ino]
    equal("what could be seen", await probe(sandbox, code, folders=folders), [])


@topic.inside("all but the sandbox's own folders is read-only", promise="files")
async def read_only(sandbox: Sandbox) -> None:
    code = """
answer = []
for place in given["places"]:
    path = os.path.join(place, ".moonmill-check")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        os.unlink(path)
        answer.append(place)
    except OSError:
        pass
"""
    places = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/bin",
        "/lib",
        "/etc",
        "/opt",
        "/home",
        "/root",
        "/var",
    ]
    places += ["/var/lib", "/srv", "/mnt", "/boot", "/sys", "/sys/fs/cgroup", "/proc", "/proc/sys", "/dev", "/run"]
    equal("where something could be written", await probe(sandbox, code, places=places), [])
