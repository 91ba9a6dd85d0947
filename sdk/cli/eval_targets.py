"""What the arguments of `moonmill eval` stand for: an environment or several, and who plays them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from moonmill.cli.models import is_run, policy_of
from moonmill.errors import ConfigError

if TYPE_CHECKING:
    from moonmill.config import Config, EnvConfig


def targets_of(
    targets: Sequence[str], model: str | None, by_other: bool, overrides: tuple[str, ...]
) -> "tuple[Config, tuple[EnvConfig, ...]]":
    """The config of the first, and the environments of all of them.

    Raises:
        ConfigError: they make no sense, or not together.
    """
    configs = [settings(target, model, overrides, by_other=by_other) for target in targets]
    if len(targets) > 1 and (whole := next((t for t in targets if _names_player(Path(t))), None)):
        raise ConfigError(
            f"{whole} says what is played and by whom: evaluate it alone, or give environments' ids alone"
        )
    envs = {config.env.id: config.env for config in configs}
    if len(envs) < len(configs):
        raise ConfigError(f"an environment is named twice among {', '.join(targets)}")
    return configs[0], tuple(envs.values())


def settings(target: str, model: str | None, overrides: tuple[str, ...], *, by_other: bool = False) -> "Config":
    """The config that one target stands for.

    Args:
        target: a config, a run's directory or an environment's id.
        model: the folder of a model or run in place of the target's own; with an API the model's name there.
        overrides: of `--set`.
        by_other: an API or a script plays, and what the config says of a model of its own is of no consequence.
    """
    from moonmill.config_io import load_config, make_config

    given, folder = Path(target), Path(model) if model and not by_other else None
    if os.path.isdir(given):
        config_file, folder = given / "config.yaml", folder or (None if by_other else given)
    elif os.path.isfile(given) or given.suffix in (".yaml", ".yml"):
        config_file = given
    elif os.sep in target and ":" not in target:  # no environment's id has one but in a place
        raise ConfigError(f"there is no run, no config and no other file {target}")
    elif model is None and not by_other:
        raise ConfigError(
            f"{target} is neither a config file nor a run, so an environment: say with --model what is to play it, or "
            "with --agent"
        )
    elif folder is not None and is_run(folder):
        config_file = folder / "config.yaml"
        if load_config(config_file).env.id != target:
            overrides = (_set("env", {"id": target}), *overrides)
    else:
        played = {"path": str(folder), "max_length": _length_of(policy_of(folder))} if folder else {"path": model or ""}
        data = {"env": {"id": target}, "model": played}
        return make_config(data, overrides, source=f"moonmill eval {target}", folder=Path.cwd())
    if folder is not None:
        overrides = (_set("model.path", str(policy_of(folder))), *overrides)
    config = load_config(config_file, overrides)
    if any(override.partition("=")[0].strip() in ("engine", "engine.urls") for override in overrides):
        return config
    # Engines that a config attaches serve another model, perhaps to a run that goes on.
    return replace(config, engine=replace(config.engine, urls=()))


def _names_player(target: Path) -> bool:
    return os.path.exists(target) or target.suffix in (".yaml", ".yml")


def _length_of(model: Path) -> int:
    """The context to play in where only the model says: its own, unless that is longer than a config's default."""
    from moonmill.agents.engine.folder import positions_of
    from moonmill.config import ModelConfig

    return min(positions_of(model) or ModelConfig("").max_length, ModelConfig("").max_length)


def _set(key: str, value: object) -> str:
    return f"{key}={json.dumps(value)}"
