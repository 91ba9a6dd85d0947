"""There is no network but the sandbox's own loopback."""

import os

from moonmill.sandboxes.sandbox import Sandbox
from moonmill.sandboxes.testing.case import Topic
from moonmill.sandboxes.testing.expect import equal, probe, that
from moonmill.sandboxes.testing.lab import Lab

topic = Topic("network")
_PROBE_SECONDS = 15.0
_FAR = ("192.0.2.1", "169.254.169.254", "8.8.8.8")
"""Nobody's, the metadata of clouds, and somebody's."""
_SERVICES = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
)
_CONNECT = """
import socket
answer = []
for family, address in given["targets"]:
    with socket.socket(family) as s:
        s.settimeout(0.5)
        try:
            s.connect(address if isinstance(address, str) else tuple(address))
            answer.append(address)
        except OSError:
            pass
"""
_AF_UNIX, _AF_INET = 1, 2


@topic.around("no TCP connection reaches the host or beyond", promise="network")
async def tcp(lab: Lab) -> None:
    port = lab.host.tcp.getsockname()[1]
    targets = [(_AF_INET, (address, port)) for address in lab.host.addresses()]
    targets += [(_AF_INET, (address, 80)) for address in _FAR]
    sandbox = await lab.sandbox()
    equal("what could be reached", await probe(sandbox, _CONNECT, targets=targets, timeout=_PROBE_SECONDS), [])
    that("tcp" not in lab.host.visited(), "a connection has reached the host")


@topic.around("no UDP packet reaches the host", promise="network")
async def udp(lab: Lab) -> None:
    code = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as s:
    for address in given["addresses"]:
        try:
            s.sendto(b"hello", (address, given["port"]))
        except OSError:
            pass
"""
    port = lab.host.udp.getsockname()[1]
    await probe(await lab.sandbox(), code, addresses=lab.host.addresses(), port=port)
    that("udp" not in lab.host.visited(), "a packet has reached the host")


@topic.inside("no name is resolved", promise="network")
async def dns(sandbox: Sandbox) -> None:
    code = """
import signal, socket
signal.alarm(5)  # nobody has answered until then
signal.signal(signal.SIGALRM, lambda *args: (sys.stdout.write("[]"), sys.stdout.flush(), os._exit(0)))
try:
    answer = [str(found[4]) for found in socket.getaddrinfo("example.com", 80)]
except OSError:
    answer = []
"""
    equal("example.com", await probe(sandbox, code, timeout=_PROBE_SECONDS), [])


@topic.around("no Unix socket of the host is reached, abstract ones included", promise="network")
async def unix_sockets(lab: Lab) -> None:
    targets = [(_AF_UNIX, str(lab.host.unix_path)), (_AF_UNIX, f"\0{lab.host.abstract_name}")]
    equal("what could be reached", await probe(await lab.sandbox(), _CONNECT, targets=targets), [])
    that(not {"unix", "abstract unix"} & {*lab.host.visited()}, "a connection has reached the host")


@topic.inside("no service of the host is reached, Docker's included", promise="network")
async def services(sandbox: Sandbox) -> None:
    paths = [*_SERVICES, f"/run/user/{os.getuid()}/bus", f"/run/user/{os.getuid()}/docker.sock"]
    paths += [os.environ["DOCKER_HOST"].removeprefix("unix://")] if "DOCKER_HOST" in os.environ else []
    targets = [(_AF_UNIX, path) for path in paths]
    equal("what could be reached", await probe(sandbox, _CONNECT, targets=targets), [])


@topic.inside("there is no interface but the loopback", promise="network")
async def interfaces(sandbox: Sandbox) -> None:
    code = """
import fcntl, socket, struct
answer = []
with socket.socket(type=socket.SOCK_DGRAM) as s:
    for name in [line.partition(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]:
        flags = fcntl.ioctl(s, 0x8913, struct.pack("16s16x", name.encode()))[16]  # SIOCGIFFLAGS
        if flags & 1 and not flags & 8:  # up, and no loopback
            answer.append(name)
"""
    equal("other interfaces", await probe(sandbox, code), [])


@topic.inside("a server on the loopback is reached by its own sandbox")
async def loopback(sandbox: Sandbox) -> None:
    code = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname(), timeout=2) as client:
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        with server.accept()[0] as connection:
            answer = connection.recv(10).decode()
"""
    equal("what the server got", await probe(sandbox, code), "hello")


@topic.around("two sandboxes have servers on the same port, and neither reaches the other's", promise="network")
async def one_port_for_two(lab: Lab) -> None:
    serve = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 0 if len(sys.argv) < 2 else int(sys.argv[1])))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0moonmill-check-neighbour")
unix.listen()
if os.fork() == 0:
    os.closerange(0, 3)
    time.sleep(20)
    os._exit(0)
print(server.getsockname()[1])
"""
    first, second = await lab.sandbox(), await lab.sandbox("neighbour")
    started = await first.exec(["python3", "-ISc", f"import os\n{serve}"], timeout=5)
    equal("the first server", (started.returncode, started.stderr), (0, ""))
    port = started.stdout.strip()
    targets = [(_AF_INET, ("127.0.0.1", int(port))), (_AF_UNIX, "\0moonmill-check-neighbour")]
    equal("a server of one that the other reached", await probe(second, _CONNECT, targets=targets), [])
    again = await second.exec(["python3", "-ISc", f"import os\n{serve}", port], timeout=5)
    equal("the second server, on the same port", (again.returncode, again.stderr), (0, ""))
