"""Probes of software: our extras, PyTorch here and in vLLM's environments, the driver.

What is imported is imported in processes of its own: a package that hangs or crashes takes nothing with it.
"""

import re
import sys
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from time import monotonic

import msgspec

from moonmill.agents.engine import vllm_environment
from moonmill.trainer.doctor.asking import ask_at_once, python_said, said_by
from moonmill.trainer.doctor.facts import Driver, Engine, Extra, Gpu, Package, Torch, Unknown

IMPORT_SECONDS = 15.0
"""For PyTorch, transformers and all the others: what is not imported by then is taken for what its metadata say."""
_DRIVER_SECONDS = 10.0
_NOT_OURS = frozenset({"dev", "ray"})
"""Extras that a run has no use for: of ray nothing is here yet."""
_REQUIREMENT = re.compile(r"^([\w.-]+)")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
_QUERY = "name,driver_version,memory.total,memory.free,compute_cap"
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as e:
        print(name, " ".join(f"{type(e).__name__}: {e}".split()), sep="\\t", flush=True)
    else:
        print(name, "", sep="\\t", flush=True)
"""
_TORCH = """
import json, torch
gpus, problem = 0, ""
if torch.version.cuda:
    gpus = torch.cuda.device_count()
    try:
        gpus and torch.ones(1, device="cuda").add(1).item()
    except Exception as e:
        problem = str(e).strip().partition("\\n")[0]
archs = torch.cuda.get_arch_list() if gpus else []
print(json.dumps(dict(
    version=torch.__version__, cuda=torch.version.cuda or "", architectures=archs, gpus=gpus, problem=problem
)))
"""


def extras() -> tuple[Extra, ...]:
    """Our extras, with what is installed of each and whether it can be imported."""
    names, end = _extras(), monotonic() + IMPORT_SECONDS
    there = {package: _version(package) for packages in names.values() for package in packages}
    tried = _imported({package: _module(package) for package, version in there.items() if version}, end)
    return tuple(
        Extra(name, tuple(Package(p, there[p], tried.get(p, ""), p in tried or not there[p]) for p in packages))
        for name, packages in names.items()
    )


def torch_of(python: str = sys.executable) -> Torch | Unknown | None:
    """The PyTorch that an interpreter has; None where it has none."""
    if python == sys.executable and not _version("torch"):
        return None
    said = python_said(python, _TORCH, IMPORT_SECONDS)
    if isinstance(said, Unknown):
        return None if "No module named 'torch'" in said.reason else said
    try:
        return msgspec.json.decode(said.strip().splitlines()[-1], type=Torch)
    except (IndexError, msgspec.MsgspecError) as e:
        return Unknown(f"{python} does not say what it should: {e}")


def driver() -> Driver | Unknown | None:
    """NVIDIA's driver and its cards; None where there is no nvidia-smi."""
    said = said_by(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], _DRIVER_SECONDS)
    if isinstance(said, Unknown):
        return None if "cannot be run: No such file" in said.reason else said
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    try:
        gpus = tuple(Gpu(name, int(total), int(free), capability) for name, _, total, free, capability in rows)
    except ValueError:
        return Unknown(f"it says {said.strip()[:100]!r}")
    return Driver(rows[0][1], gpus) if rows else Driver("", ())


def cards(devices: Path = _PCI) -> int:
    """NVIDIA's cards on the bus, which need no driver to be seen."""
    return sum(
        (device / "vendor").read_text().strip() == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
        for device in devices.glob("*")
    )


def engines() -> tuple[Engine, ...]:
    """vLLM's environments, as `moonmill engine install` makes them, each with its PyTorch."""
    folders = {name: vllm_environment.folder_of(name) for name in vllm_environment.PACKAGES}
    found = {name: vllm_environment.installed_in(folder) for name, folder in folders.items()}
    torches = ask_at_once({n: partial(_torch_in, one.python) for n, one in found.items() if one}, IMPORT_SECONDS)
    return tuple(
        Engine(name, one.version, torch=torches[name]) if one else Engine(name, half=folders[name].exists())
        for name, one in found.items()
    )


def _torch_in(python: str) -> Torch | Unknown | None:
    """The PyTorch of an environment of vLLM."""
    if problem := vllm_environment.interpreter_problem(python):
        return Unknown(problem)
    return torch_of(python)


def _extras() -> dict[str, list[str]]:
    """The packages of each extra, as the metadata of the installed moonmill names them."""
    found: dict[str, list[str]] = {}
    for requirement in metadata.requires("moonmill") or ():
        name, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if name and extra and extra[1] not in _NOT_OURS:
            found.setdefault(extra[1], []).append(name[1])
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _imported(modules: Mapping[str, str], end: float) -> dict[str, str]:
    """Why packages cannot be imported, by name, empty where they can; those there was no time for are left out."""
    left, told = dict(modules), dict[str, str]()
    while left:
        said = python_said(sys.executable, _IMPORT, max(0.0, end - monotonic()), *left.values())
        text = said.said if isinstance(said, Unknown) else said
        lines = dict(line.partition("\t")[::2] for line in text.splitlines())
        told |= {package: lines[module].strip() for package, module in left.items() if module in lines}
        left = {package: module for package, module in left.items() if package not in told}
        if not isinstance(said, Unknown) or said.late:
            break
        if left:  # the first of them has ended the process
            package = next(iter(left))
            told[package] = said.reason
            del left[package]
    return told


def _module(package: str) -> str:
    """What a package is imported by."""
    files = metadata.files(package) or ()
    tops = {f.parts[0] for f in files if f.name == "__init__.py" and len(f.parts) == 2}
    wanted = package.replace("-", "_").lower()
    return next((top for top in sorted(tops) if top.lower() == wanted), min(tops, default=wanted))
