"""Write docs/configuration.md from the config's own source: the docstring under a field is its documentation, its type
says what belongs there. Presets are written out from `trainer/algorithms/presets.py`.

    python docs/make_configuration.py

A test sees that the page is up to date.
"""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from moonmill import algorithm_config, config, plain_yaml, types
from moonmill.config_check import describe
from moonmill.config_io import plain
from moonmill.trainer.algorithms.presets import PRESETS

PAGE = Path(__file__).with_name("configuration.md")
SECTIONS = {
    "Config": "The whole file",
    "EnvConfig": "`env`",
    "ModelConfig": "`model`",
    "LoraConfig": "`model.lora`",
    "EngineConfig": "`engine`",
    "VllmConfig": "`engine.vllm`",
    "Sampling": "`sampling`",
    "AlgorithmConfig": "`algorithm`",
    "GaeConfig": "`algorithm.advantage`, `type: gae`",
    "GroupZscoreConfig": "`algorithm.advantage`, `type: group_zscore`",
    "DisConfig": "`algorithm.objective`, `type: dis`",
    "PpoClipConfig": "`algorithm.objective`, `type: ppo_clip`",
    "CriticConfig": "`algorithm.critic`",
    "AsyncConfig": "`async`",
    "LearnerConfig": "`learner`",
    "TrainConfig": "`train`",
    "EvalConfig": "`eval`",
    "SandboxConfig": "`sandbox`",
}
HEAD = """# Configuration

One YAML file says what a run is. Unknown keys are refused, with the nearest valid one. `--set a.b=value` overrides a
key on the command line; the value is read as YAML. `moonmill validate FILE` says what is wrong with a file, and what
its preset comes to. YAML is read as a person means it: `1e-6` is a number, `yes` and `on` are text; dates, sets and
other types beyond JSON's are refused.

On `--resume`, `engine`, `async`, `eval`, `sandbox` and `train` (but for `train.seed`) may differ from what the run was
begun with; what is trained may not. A run has begun once a rollout has finished. Until then, as after an engine that
refused to start, `train` begins it again, with whatever config. So does `train --resume`, but it wants a run directory:
where that is missing or has no `config.yaml` yet, it is refused. What is in a run directory: [runs.md](runs.md).

A relative `model.path`, and the file of an `env.id` such as `my_env.py:MyEnv`, is looked for beside the config file
first, then in the working directory. In a `--set` it is the other way round: the working directory first.
"""
PRESETS_HEAD = """
## Presets

`algorithm: {preset: …}` stands for what is written out here. Whatever the config says under `algorithm.advantage`,
`algorithm.objective` or `algorithm.critic` replaces that part of the preset as a whole.
"""


def page() -> str:
    """The page's text."""
    sections = [f"\n## {title}\n\n{_section(name)}" for name, title in SECTIONS.items()]
    return HEAD + "".join(sections) + PRESETS_HEAD + "".join(map(_preset, PRESETS))


def _section(name: str) -> str:
    struct = next(getattr(module, name) for module in (config, algorithm_config, types) if hasattr(module, name))
    [node] = ast.parse(inspect.getsource(struct)).body
    assert isinstance(node, ast.ClassDef)
    documented = docs_of(node)
    rows = ["| key | value | default | |", "| --- | --- | --- | --- |"]
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        said = documented.get(field.name) or _purpose(field.type)
        cells = (f"`{field.encode_name}`", _kind(field.type), _default(field), said)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return f"{ast.get_docstring(node)}\n\n" + "\n".join(rows) + "\n"


def docs_of(node: ast.ClassDef) -> dict[str, str]:
    """The text under each field."""
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign | ast.Assign) and isinstance(below, ast.Expr):
            name = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            found[ast.unparse(name)] = " ".join(ast.literal_eval(below.value).split())
    return found


def _purpose(type: msgspec.inspect.Type) -> str:
    """Of a section."""
    return (inspect.getdoc(type.cls) or "") if isinstance(type, msgspec.inspect.StructType) else ""


def _kind(type: msgspec.inspect.Type) -> str:
    options = type.types if isinstance(type, msgspec.inspect.UnionType) else (type,)
    structs = [option for option in options if isinstance(option, msgspec.inspect.StructType)]
    if not structs:
        return describe(type)
    tags = " or ".join(f"`type: {struct.tag}`" for struct in structs if struct.tag)
    rest = ", or null" if len(structs) < len(options) else ""
    return f"{f'{tags}, see there' if tags else 'a section, see there'}{rest}"


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "*needed*"
    value: Any = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "as there" if isinstance(value, msgspec.Struct) else f"`{json.dumps(plain(value))}`"


def _preset(name: str) -> str:
    written = plain_yaml.dump({"algorithm": {"preset": name, **plain(PRESETS[name])}})
    return f"\n```yaml\n{written}```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
