"""What a container may do, and what is refused, from what a daemon says of itself."""

import json
from typing import Any

import pytest

from moonmill.sandboxes import SandboxLimits, SandboxSpec, SandboxSpecError, docker_seccomp
from moonmill.sandboxes.docker_images import Image
from moonmill.sandboxes.docker_settings import enforces, host, refuse_what_cannot_be

INFO: dict[str, Any] = {
    "Name": "box", "CgroupVersion": "2", "MemoryLimit": True, "SwapLimit": True, "PidsLimit": True, "CpuCfsQuota": True,
    "NCPU": 2, "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
}  # fmt: skip
IMAGE = Image("image", "sha256:1", {}, ("/data",))


@pytest.mark.parametrize(
    ("lacks", "spec", "words"),
    [
        ("MemoryLimit", SandboxSpec(), r"box cannot limit limits\.memory_mib"),
        ("PidsLimit", SandboxSpec(), r"box cannot limit limits\.pids"),
        ("CpuCfsQuota", SandboxSpec(limits=SandboxLimits(cpus=1)), r"box cannot limit limits\.cpus"),
    ],
)
def test_what_the_host_cannot_enforce_is_refused(lacks: str, spec: SandboxSpec, words: str) -> None:
    refuse_what_cannot_be(spec, INFO, has_bridge=True)
    with pytest.raises(SandboxSpecError, match=words):
        refuse_what_cannot_be(spec, {**INFO, lacks: False}, has_bridge=True)


def test_an_open_network_needs_one() -> None:
    with pytest.raises(SandboxSpecError, match="box has no network named bridge"):
        refuse_what_cannot_be(SandboxSpec(network="open"), INFO, has_bridge=False)
    refuse_what_cannot_be(SandboxSpec(), INFO, has_bridge=False)


def test_what_holds_is_told_as_the_daemon_has_it() -> None:
    assert enforces(INFO)["memory"] == "cgroup v2, files in memory included"
    assert enforces(INFO)["system calls"].endswith(", AppArmor")
    bare = enforces({"CgroupVersion": "1", "SecurityOptions": []})
    assert bare["memory"].endswith("what is swapped out is not counted")
    assert "cpus" not in bare
    assert "system calls" not in bare


def test_every_place_that_can_be_written_to_has_a_size() -> None:
    spec = SandboxSpec(workdir="/work/", limits=SandboxLimits(disk_mib=7))
    settings = host(spec, IMAGE, "12", INFO)
    assert settings["read_only"]
    assert settings["tmpfs"].keys() == {"/work", "/tmp", "/var/tmp", "/run", "/data"}
    assert all("size=7m" in options and "nosuid,nodev" in options for options in settings["tmpfs"].values())
    assert "uid=12,gid=12" in settings["tmpfs"]["/work"]
    assert settings["shm_size"] == 7 << 20


def test_more_processors_than_there_are_are_those_there_are() -> None:
    def nano(cpus: float) -> int:
        found: int = host(SandboxSpec(limits=SandboxLimits(cpus=cpus)), IMAGE, "12", INFO)["nano_cpus"]
        return found

    assert (nano(0.5), nano(2), nano(64)) == (500_000_000, 2_000_000_000, 2_000_000_000)
    assert "nano_cpus" not in host(SandboxSpec(), IMAGE, "12", INFO)


def test_a_container_sees_its_own_control_group_alone() -> None:
    assert host(SandboxSpec(), IMAGE, "12", INFO)["cgroupns"] == "private"
    assert "cgroupns" not in host(SandboxSpec(), IMAGE, "12", {**INFO, "CgroupVersion": "1"}), "which has none"


def test_a_host_without_seccomp_is_not_asked_for_it() -> None:
    assert len(host(SandboxSpec(), IMAGE, "12", INFO)["security_opt"]) == 2
    assert host(SandboxSpec(), IMAGE, "12", {**INFO, "SecurityOptions": []})["security_opt"] == ["no-new-privileges"]


def test_the_profile_refuses_all_families_of_sockets_but_three() -> None:
    rules = [
        rule for rule in json.loads(docker_seccomp.profile())["syscalls"] if rule["names"] == ["socket", "socketpair"]
    ]
    arguments = [rule["args"][0] for rule in rules]
    refused = {a["value"] for a in arguments if a["op"] == "SCMP_CMP_EQ"}
    [above] = [a["value"] for a in arguments if a["op"] == "SCMP_CMP_GT"]
    assert {family for family in range(50) if family not in refused and family <= above} == {1, 2, 10}
