"""Probes of software: our extras, PyTorch here and in vLLM's environments, the driver.

What is imported is imported in processes of its own: a package that hangs or crashes takes nothing with it.
"""

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from moonmill.agents.engine import vllm_environment
from moonmill.trainer.doctor.asking import python_said, said_by
from moonmill.trainer.doctor.facts import Driver, Engine, Extra, Gpu, Package, Torch, Unknown

IMPORT_SECONDS = 180.0
"""PyTorch, transformers and all the others, on a slow disk."""
_DRIVER_SECONDS = 15.0
_NOT_OURS = frozenset({"dev"})
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


def extras() -> tuple[Extra, ...] | Unknown:
    """Our extras, with what is installed of each and whether it can be imported."""
    names = _extras()
    there = {package: _version(package) for packages in names.values() for package in packages}
    problems = _import_problems({package: _module(package) for package, version in there.items() if version})
    if isinstance(problems, Unknown):
        return problems
    return tuple(
        Extra(name, tuple(Package(p, there[p], problems.get(p, "")) for p in packages))
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
    return tuple(_engine(name) for name in vllm_environment.PACKAGES)


def _engine(name: str) -> Engine:
    folder = vllm_environment.folder_of(name)
    found = vllm_environment.installed_in(folder)
    if found is None:
        return Engine(name, half=folder.exists())
    if problem := vllm_environment.interpreter_problem(found.python):
        return Engine(name, found.version, torch=Unknown(problem))
    return Engine(name, found.version, torch=torch_of(found.python))


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


def _import_problems(modules: Mapping[str, str]) -> dict[str, str] | Unknown:
    """Why packages cannot be imported, by name; those that can are left out."""
    said = python_said(sys.executable, _IMPORT, IMPORT_SECONDS, *modules.values())
    if isinstance(said, Unknown):
        if said.late:
            return said
        # One has ended the process: which, they tell one by one.
        alone = {p: python_said(sys.executable, _IMPORT, IMPORT_SECONDS, m) for p, m in modules.items()}
    else:
        lines = dict(line.partition("\t")[::2] for line in said.splitlines())
        alone = {p: f"{m}\t{lines.get(m, '')}" for p, m in modules.items()}
    problems = {p: a.reason if isinstance(a, Unknown) else a.partition("\t")[2].strip() for p, a in alone.items()}
    return {package: problem for package, problem in problems.items() if problem}


def _module(package: str) -> str:
    """What a package is imported by."""
    files = metadata.files(package) or ()
    tops = {f.parts[0] for f in files if f.name == "__init__.py" and len(f.parts) == 2}
    wanted = package.replace("-", "_").lower()
    return next((top for top in sorted(tops) if top.lower() == wanted), min(tops, default=wanted))
