"""Write docs/configuration.md from the config's own source: the docstring under a field is its documentation.

    python docs/make_configuration.py

A test sees that the page is up to date.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "sdk" / "config.py", ROOT / "sdk" / "types.py")
PAGE = ROOT / "docs" / "configuration.md"
SECTIONS = {
    "Config": "The whole file",
    "EnvConfig": "`env`",
    "ModelConfig": "`model`",
    "EngineConfig": "`engine`",
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
}
HEAD = """# Configuration

One YAML file says what a run is. Unknown keys are refused, with the nearest valid one. `--set a.b=value` overrides a
key on the command line; the value is read as YAML.
"""


def page() -> str:
    """The page's text."""
    classes = {
        node.name: node
        for source in SOURCES
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    return HEAD + "".join(f"\n## {title}\n\n{_section(classes[name])}" for name, title in SECTIONS.items())


def _section(node: ast.ClassDef) -> str:
    rows = ["| key | type | default | |", "| --- | --- | --- | --- |"]
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            key = ast.unparse(field.target).rstrip("_")
            kind = ast.unparse(field.annotation).replace("|", "\\|")
            rows.append(f"| `{key}` | `{kind}` | {_default(field.value)} | {_doc(following)} |")
    return f"{ast.get_docstring(node)}\n\n" + "\n".join(rows) + "\n"


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "*needed*"
    text = ast.unparse(value)
    return "its own" if "Config(" in text or "Sampling(" in text else f"`{text}`"


def _doc(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


if __name__ == "__main__":
    PAGE.write_text(page())
