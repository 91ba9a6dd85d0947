"""Judgments about the machine and the software on it, but for what has to do with GPUs. Pure."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from moonmill.trainer.doctor.facts import HUB, Disk, Extra, Facts, Hub, Machine, Trial, Unknown
from moonmill.trainer.doctor.lines import Line, not_seen

_OPTIONAL = "pip install 'moonmill[{}]'"
_ALONE = {
    "unsloth": (
        "it wants an environment of its own, with Moonmill in it and without constraints.txt; in the clone: "
        "python -m venv .venv-unsloth && .venv-unsloth/bin/pip install -e '.[train,unsloth]'"
    )
}
"""How extras are had that cannot be in one environment with the others."""
_FEW_FILES = 4096
"""64 episodes with sandboxes take some ten each, and engine and logs theirs."""
_LITTLE_MEMORY = 8.0
_SPACE = {"working directory": 5.0, "cache": 20.0, "temporary files": 1.0, "shared memory": 0.25}
"""GiB below which there is a warning: for checkpoints; vLLM and a model; logs; what vLLM's processes share."""
_SPACE_ADVICE = {
    "working directory": "free some, or set run_dir to another disk: runs are kept there",
    "cache": "free some, or move it: XDG_CACHE_HOME for engines, HF_HOME for models",
    "temporary files": "free some, or set TMPDIR to another disk",
    "shared memory": "in a container: start it with --shm-size=2g, or --ipc=host",
}
_NAMES_SHOWN = 4
_NONE_FETCHED = "no model fetched yet; the starter policy is in the clone: model.path: examples/calculator/policy"


def judge_software(facts: Facts) -> Iterator[Line]:
    """Lines about Python and our extras."""
    python = facts.python
    yield Line("Python", "ok", f"{python.version} ({python.path}) on {python.platform}")
    if isinstance(facts.extras, Unknown):
        yield not_seen(f"moonmill {python.moonmill}", facts.extras)
        return
    yield Line("moonmill", "ok", python.moonmill)
    for extra in facts.extras:
        yield _extra(extra)


def judge_host(facts: Facts) -> Iterator[Line]:
    """Lines about sandboxes, the machine and the hub."""
    yield _provider("sandboxes: local", facts.local)
    yield _provider("sandboxes: docker", facts.docker)
    if isinstance(facts.disks, Unknown):
        yield not_seen("disk", facts.disks)
    else:
        yield from map(_disk, facts.disks)
    yield _port(facts.port)
    yield from _machine(facts.machine)
    yield _hub(facts.hub)


def _extra(extra: Extra) -> Line:
    name = f"extra {extra.name}"
    if broken := [p for p in extra.packages if p.problem]:
        said = "; ".join(f"{p.name} {p.version} cannot be imported: {p.problem}" for p in broken)
        return Line(name, "missing", said, f"pip install --force-reinstall {' '.join(p.name for p in broken)}")
    there = ", ".join(f"{p.name} {p.version}" for p in extra.packages if p.version)
    if absent := [p.name for p in extra.packages if not p.version]:
        found = f"without {', '.join(absent)}" + f"; there: {there}" * bool(there)
        return Line(name, "missing", found, _ALONE.get(extra.name, _OPTIONAL.format(extra.name)))
    slow = [p.name for p in extra.packages if not p.tried]
    return Line(name, "ok", there + f"; {', '.join(slow)} installed, not imported: there was no time" * bool(slow))


def _provider(name: str, provider: Trial | Unknown) -> Line:
    if isinstance(provider, Unknown):
        return not_seen(name, provider)
    if not provider.problem:
        return Line(name, "ok", provider.works)
    return Line(name, "missing", *provider.parts)


def _disk(disk: Disk) -> Line:
    found = f"{disk.path}, {disk.free_gib:.1f} GiB free"
    if not disk.writable:
        return Line(disk.what, "missing", f"{disk.path} cannot be written to", _SPACE_ADVICE[disk.what])
    if disk.free_gib < _SPACE[disk.what]:
        return Line(disk.what, "warning", f"{found}, and {_SPACE[disk.what]:g} are wanted", _SPACE_ADVICE[disk.what])
    return Line(disk.what, "ok", found)


def _port(port: Trial | Unknown) -> Line:
    if isinstance(port, Unknown):
        return not_seen("ports", port)
    if port.problem:
        todo = "engine and trainer speak over 127.0.0.1: see that the loopback is up (ip link set lo up)"
        return Line("ports", "missing", port.problem, todo)
    return Line("ports", "ok", port.works)


def _machine(machine: Machine | Unknown) -> Iterator[Line]:
    if isinstance(machine, Unknown):
        yield not_seen("CPU", machine)
        return
    threads = max(1, machine.cores // 2)
    found = (
        f"{machine.cores} core{'s' * (machine.cores != 1)}; {machine.free_gib:.1f} of {machine.memory_gib:.1f} GiB free"
    )
    advice = f"on the CPU: engine.threads and learner.threads of {threads} each"
    little = machine.free_gib < _LITTLE_MEMORY
    end = "; end what is not needed: weights and gradients of 1B parameters take 16 GiB on a CPU" * little
    yield Line("CPU and memory", "warning" if little else "ok", found, advice + end)
    files = f"{machine.files} may be open"
    if machine.files >= _FEW_FILES:
        yield Line("open files", "ok", files)
    elif machine.most_files > machine.files:
        yield Line("open files", "warning", files, f"ulimit -n {min(machine.most_files, 65536)}")
    else:
        todo = "raise nofile in /etc/security/limits.conf, or start the container with --ulimit nofile=65536"
        yield Line("open files", "warning", files, todo)


def _hub(hub: Hub | Unknown) -> Line:
    if isinstance(hub, Unknown):
        return not_seen("model hub", hub)
    more = f" and {len(hub.cached) - _NAMES_SHOWN} more" * (len(hub.cached) > _NAMES_SHOWN)
    cached = f"fetched before: {', '.join(hub.cached[:_NAMES_SHOWN])}{more}" if hub.cached else _NONE_FETCHED
    if hub.offline:
        return Line("model hub", "warning", f"HF_HUB_OFFLINE is set; {cached}", "unset HF_HUB_OFFLINE to fetch others")
    if hub.problem and not _is_url(hub.endpoint):
        todo = f"set it to the address of a hub, like {HUB}, or unset it"
        return Line("model hub", "missing", f"HF_ENDPOINT is no URL: {hub.endpoint!r:.60}; {cached}", todo)
    if hub.problem:
        todo = "set HTTPS_PROXY or HF_ENDPOINT (a mirror), or give model.path a folder that you copied here"
        return Line("model hub", "missing", f"{hub.endpoint} cannot be reached: {hub.problem}; {cached}", todo)
    return Line("model hub", "ok", f"{hub.endpoint} answers; {cached}")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
