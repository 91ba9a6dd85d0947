"""Config files to `Config` and back.

A file is read whole before anything is believed: every unknown key, missing key and wrong value in it is reported in
one error, with its dotted path, its line, the value seen and what belongs there. `load_config(path)` of what
`dump_config` wrote gives an equal `Config`.
"""

import difflib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from moonmill import plain_yaml
from moonmill.config import Config, EnvConfig
from moonmill.config_check import describe_all, problems
from moonmill.errors import ConfigError

KeyPath = tuple[str, ...]
_S = TypeVar("_S", bound=Struct)
_LARGEST_FILE = 1 << 20
"""Bytes. A config has some thousand."""
_SHOWN = 100
"""Characters of an override that a message repeats."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The config in the YAML file `path`.

    A relative `model.path` or `algorithm.critic.path`, and the file of an `env.id` such as `env.py:MyEnv`, is looked
    for beside the config first, then in the working directory. A config without a name is named after its file, and one
    without a run directory gets `runs/<name>`.

    Args:
        path: the file.
        overrides: `dotted.key=value` each, the value in YAML; they win over the file. Relative paths in them are looked
            for in the working directory first.

    Raises:
        ConfigError: the file cannot be read, or does not hold a valid config.
    """
    document = plain_yaml.parse(_read(path), str(path))
    if not isinstance(document.data, dict):
        found = "is empty" if document.data is None else f"holds a {type(document.data).__name__}, not keys and values"
        raise ConfigError(f"{path} {found}; a config needs at least `env: {{id: …}}` and `model: {{path: …}}`")
    config = make_config(
        document.data, overrides, source=str(path), folder=path.absolute().parent, lines=document.lines
    )
    name = config.name or path.stem
    return msgspec.structs.replace(config, name=name, run_dir=config.run_dir or f"runs/{name}")


def make_config(
    data: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    source: str,
    folder: Path,
    lines: Mapping[KeyPath, int] | None = None,
) -> Config:
    """A config from plain data.

    Args:
        data: sections and their values, as a file holds them.
        overrides: as for `load_config`.
        source: what errors call the data.
        folder: where relative paths are looked for first.
        lines: the line of each key, for errors.

    Raises:
        ConfigError: the data is not a valid config.
    """
    data, overridden = _override(data, overrides)
    config = _converted(Config, data, source, lines or {}, overridden)
    return _resolve_paths(config, folder.absolute(), overridden)


def make_env_config(id: str, overrides: Sequence[str]) -> EnvConfig:
    """The section `env` alone, for what needs no other.

    Args:
        id: the environment's.
        overrides: as for `load_config`; of `env.args` alone.

    Raises:
        ConfigError: they are not, or are no arguments at all.
    """
    data, overridden = _override({"env": {"id": id}}, overrides)
    if other := next((path for path in overridden if path[:2] != ("env", "args")), None):
        raise ConfigError(f"--set {'.'.join(other)}: of no use here, where it is env.args alone: env.args.NAME=VALUE")
    return _converted(_Env, data, "--set", {}, overridden).env


class _Env(Struct, frozen=True, forbid_unknown_fields=True):
    env: EnvConfig


def _converted(
    struct: type[_S], data: Mapping[str, Any], source: str, lines: Mapping[KeyPath, int], overridden: Sequence[KeyPath]
) -> _S:
    found = problems(struct, data)
    if found:
        said = describe_all(found, lines, overridden)
        raise ConfigError(f"{source}: {said[0]}" if len(said) == 1 else "\n  ".join((f"{source}:", *said)))
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{source}: {e}") from e


def dump_config(config: Config) -> str:
    """`config` as YAML, with every value, the defaults too."""
    return plain_yaml.dump(plain(config))


def differences(before: Struct, now: Struct) -> dict[str, tuple[Any, Any]]:
    """The dotted keys under which two configs, or other settings, have different values, with both values."""
    return dict(_differences("", plain(before), plain(now)))


def _differences(key: str, before: Any, now: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*before, *now)):
            yield from _differences(f"{key}.{name}" if key else name, before.get(name), now.get(name))
    elif before != now:
        yield key, (before, now)


def _read(path: Path) -> str:
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            inside = f"{path / 'config.yaml'}" if (path / "config.yaml").exists() else "the YAML file in it"
            raise ConfigError(f"{path} is a folder, not a config file; give {inside}")
        if not stat.S_ISREG(about.st_mode):  # reading a pipe may wait for ever, a device gives no end
            raise ConfigError(f"{path} is a pipe, a socket or a device; give a file")
        if about.st_size > _LARGEST_FILE:
            raise ConfigError(f"{path} has {about.st_size:,} bytes, but a config at most {_LARGEST_FILE:,}")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as e:
        raise ConfigError(f"no config file {path}{_neighbours(path)}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is not a text file in UTF-8: byte {e.start} is {e.object[e.start]:#04x}") from e
    except OSError as e:
        raise ConfigError(f"cannot read the config file {path}: {e.strerror}") from e


def _neighbours(path: Path) -> str:
    try:
        names = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml"))
    except FileNotFoundError:
        return f": there is no folder {path.parent}"
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f", did you mean {path.parent / near[0]}?"
    return f"; the folder has {', '.join(names)}" if names else "; the folder has no YAML file"


def _override(data: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[KeyPath]]:
    """`data` with the overrides in it, and the paths they set."""
    result = dict(data)
    paths: list[KeyPath] = []
    for override in overrides:
        name, equals, text = override.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            raise ConfigError(f"--set {_shown(override)}: expected key=value, such as learner.lr=1e-4")
        if len(path) > plain_yaml.DEEPEST:
            raise ConfigError(
                f"--set {_shown(override)}: the key has {len(path)} parts, at most {plain_yaml.DEEPEST} do"
            )
        value = plain_yaml.parse(text, f"the value of --set {_shown(override)}").data
        _put(result, path, value, override)
        paths.append(path)
    return result, paths


def _shown(override: str) -> str:
    return override if len(override) <= _SHOWN else f"{override[: _SHOWN - 1]}…"


def _put(section: dict[str, Any], path: KeyPath, value: Any, override: str) -> None:
    """Set `path` in `section`. Inner mappings are copied on the way, so that the caller's data stays as it was."""
    for depth, key in enumerate(path[:-1], 1):
        inner = section.get(key)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(
                f"--set {_shown(override)}: `{'.'.join(path[:depth])}` is the value {inner!r:.100}, with no keys in it"
            )
        section[key] = dict(inner or {})
        section = section[key]
    section[path[-1]] = value


def _resolve_paths(config: Config, folder: Path, overridden: Sequence[KeyPath]) -> Config:
    def look(key: KeyPath, name: str) -> Path | None:
        places = (folder, Path.cwd())
        typed_here = any(key[: len(path)] == path for path in overridden)
        candidates = [place / name for place in (reversed(places) if typed_here else places)]
        # os.path, unlike Path, takes a name that no file can have for one that does not exist.
        return next((c.resolve() for c in candidates if os.path.exists(c)), None)

    model = look(("model", "path"), config.model.path)
    if model is not None and model.is_dir():
        config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=str(model)))
    critic = config.algorithm.critic
    if critic and critic.path and (found := look(("algorithm", "critic", "path"), critic.path)):
        critic = msgspec.structs.replace(critic, path=str(found))
        config = msgspec.structs.replace(config, algorithm=msgspec.structs.replace(config.algorithm, critic=critic))
    file, colon, name = config.env.id.rpartition(":")
    env = look(("env", "id"), file) if file.endswith(".py") else None
    if env is not None:
        config = msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, id=f"{env}{colon}{name}"))
    return config


def plain(value: Any) -> Any:
    """Builtins, with tags and defaults: `msgspec.to_builtins` leaves those out where a struct says so."""
    if isinstance(value, msgspec.Struct):
        info = value.__struct_config__
        tag = {info.tag_field: info.tag} if info.tag_field else {}
        return tag | {f.encode_name: plain(getattr(value, f.name)) for f in msgspec.structs.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value
