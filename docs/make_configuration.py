"""Write docs/configuration.md from the config's own source: the docstring under a field is its documentation, its type
says what belongs there. Presets are written out from `trainer/algorithms/presets.py`, what goes together from
`trainer/algorithms/combinations.py`.

    python docs/make_configuration.py

A test sees that the page is up to date.
"""

import ast
import inspect
import json
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import msgspec

from moonmill import algorithm_config, config, plain_yaml, types, wrapper_config
from moonmill.algorithm_config import Correction, Objective
from moonmill.config_check import describe
from moonmill.config_io import plain
from moonmill.trainer.algorithms.combinations import RULES, Advantage, ResolvedAlgorithm, problem, tag
from moonmill.trainer.algorithms.presets import PRESETS

PAGE = Path(__file__).with_name("configuration.md")
SECTIONS = {
    "Config": "The whole file",
    "EnvConfig": "`env`",
    "LimitsConfig": "`env.wrappers`, `type: limits`",
    "CutObservationConfig": "`env.wrappers`, `type: cut_observation`",
    "ScaleRewardConfig": "`env.wrappers`, `type: scale_reward`",
    "ClipRewardConfig": "`env.wrappers`, `type: clip_reward`",
    "RecordConfig": "`env.wrappers`, `type: record`",
    "CurriculumConfig": "`env.wrappers`, `type: curriculum`",
    "ModelConfig": "`model`",
    "LoraConfig": "`model.lora`",
    "EngineConfig": "`engine`",
    "VllmConfig": "`engine.vllm`",
    "Sampling": "`sampling`",
    "AlgorithmConfig": "`algorithm`",
    "GaeConfig": "`algorithm.advantage`, `type: gae`",
    "GroupZscoreConfig": "`algorithm.advantage`, `type: group_zscore`",
    "GroupMeanConfig": "`algorithm.advantage`, `type: group_mean`",
    "RlooConfig": "`algorithm.advantage`, `type: rloo`",
    "RunningMeanConfig": "`algorithm.advantage`, `type: running_mean`",
    "DisConfig": "`algorithm.objective`, `type: dis`",
    "PpoClipConfig": "`algorithm.objective`, `type: ppo_clip`",
    "CispoConfig": "`algorithm.objective`, `type: cispo`",
    "GspoConfig": "`algorithm.objective`, `type: gspo`",
    "DecoupledPpoConfig": "`algorithm.objective`, `type: decoupled_ppo`",
    "ReinforceConfig": "`algorithm.objective`, `type: reinforce`",
    "NoCorrectionConfig": "`algorithm.correction`, `type: none`",
    "TisConfig": "`algorithm.correction`, `type: tis`",
    "IcepopConfig": "`algorithm.correction`, `type: icepop`",
    "KlConfig": "`algorithm.kl`",
    "CriticConfig": "`algorithm.critic`",
    "PretrainConfig": "`algorithm.critic.pretrain`",
    "CriticLoraConfig": "`algorithm.critic.lora`",
    "AsyncConfig": "`async`",
    "FiltersConfig": "`async.filters`",
    "SuccessRateConfig": "`async.filters.success_rate`",
    "LearnerConfig": "`learner`",
    "TrainConfig": "`train`",
    "EvalConfig": "`eval`",
    "SandboxConfig": "`sandbox`",
    "AlarmsConfig": "`alarms`",
}
HEAD = """# Configuration

One YAML file says what a run is. Unknown keys are refused, with the nearest valid one. `--set a.b=value` overrides a
key on the command line; the value is read as YAML. `moonmill validate FILE` says what is wrong with a file, and what
its preset comes to. YAML is read as a person means it: `1e-6` is a number, `yes` and `on` are text; dates, sets and
other types beyond JSON's are refused.

On `--resume`, `engine`, `async`, `eval`, `sandbox`, `alarms` and `train` (but for `train.seed`, and for `train.steps`
where a learning rate falls over them) may differ from what the run was begun with; what is trained may not, but where,
in how much memory and in what time it is may: `learner.device`, `learner.gradient_checkpointing`,
`learner.micro_batch_tokens`, `learner.start_timeout`, `learner.step_timeout`.
A run has begun once a rollout has finished. Until then, as after an engine that refused to start, `train` begins it
again, with whatever config. So does `train --resume`, but it wants a run directory: where that is missing or has no
`config.yaml` yet, it is refused. What is in a run directory: [runs.md](runs.md).

A relative `model.path` or `algorithm.critic.path`, and the file of an `env.id` such as `my_env.py:MyEnv`, is looked
for beside the config file first, then in the working directory. In a `--set` it is the other way round: the working
directory first.
"""
PRESETS_HEAD = """
## Presets

`algorithm: {preset: …}` stands for what is written out here. Whatever the config says under one of these keys replaces
that part of the preset as a whole. Where the values come from, and which were never published, stands at the top of
`trainer/algorithms/presets.py`.
"""
TOGETHER = """
## What goes together

For each objective and advantage, the corrections that go with the two:

"""
RULES_HEAD = """
The ratio of an objective is that to the policy that sampled. With a correction it is that to the learner's policy
before the batch's updates, and the correction is the ratio of that one to the policy that sampled; with `reinforce`,
which has no ratio, it is the ratio of the policy being trained to the one that sampled.

`moonmill validate` and `moonmill train` refuse what makes no sense, with the reason:

"""


def page() -> str:
    """The page's text."""
    sections = [f"\n## {title}\n\n{_section(name)}" for name, title in SECTIONS.items()]
    return HEAD + "".join(sections) + TOGETHER + _together() + PRESETS_HEAD + "".join(map(_preset, PRESETS))


def _section(name: str) -> str:
    modules = (config, algorithm_config, wrapper_config, types)
    struct = next(getattr(module, name) for module in modules if hasattr(module, name))
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
    return " ".join((inspect.getdoc(type.cls) or "").split()) if isinstance(type, msgspec.inspect.StructType) else ""


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


def _together() -> str:
    """The table of objectives, advantages and corrections, and the rules."""
    advantages, objectives, corrections = (
        [choice for choice in get_args(algorithm_config.AlgorithmConfig.__annotations__[key]) if choice is not NoneType]
        for key in ("advantage", "objective", "correction")
    )
    lines = [["", *(f"`{tag(advantage())}`" for advantage in advantages)]]
    lines.append(["---"] * len(lines[0]))
    for objective in objectives:
        cells = [_corrections(advantage(), objective(), corrections) for advantage in advantages]
        lines.append([f"`{tag(objective())}`", *cells])
    rules = "".join(f"- {inspect.getdoc(rule)}\n" for rule in RULES)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + RULES_HEAD + rules


def _corrections(advantage: Advantage, objective: Objective, corrections: list[type[Correction]]) -> str:
    critic = algorithm_config.CriticConfig() if isinstance(advantage, algorithm_config.GaeConfig) else None
    fine = [c() for c in corrections if problem(ResolvedAlgorithm(advantage, objective, critic, c())) is None]
    return ", ".join(f"`{tag(correction)}`" for correction in fine)


def _preset(name: str) -> str:
    written = plain_yaml.dump({"algorithm": {"preset": name, **plain(PRESETS[name])}})
    return f"\n```yaml\n{written}```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
