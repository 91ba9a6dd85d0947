"""What is wrong with a `SandboxSpec` whoever is to honour it: a struct does not look at what it is made of."""

import posixpath
from typing import Any

import msgspec

from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.types import SandboxLimits, SandboxSpec


def check_spec(spec: SandboxSpec) -> None:
    """Refuse a spec that no sandbox could be made by.

    Raises:
        SandboxSpecError: with the field, its value and what it should be.
    """
    if not isinstance(spec.limits, SandboxLimits):
        raise SandboxSpecError(f"limits is {spec.limits!r:.200}, but should be a SandboxLimits")
    try:
        msgspec.convert(msgspec.to_builtins(spec.limits), SandboxLimits)
    except msgspec.ValidationError as e:
        raise SandboxSpecError(f"limits is {spec.limits!r:.200}: {e}") from None
    for name, is_fine, wanted in (
        ("image", _is_text_or_none, "the name of an image, or None"),
        ("workdir", _is_workdir, "an absolute path below /"),
        ("files", _are_files, "contents, each text or bytes, by their paths"),
        ("env", _is_environment, "texts by names without `=`, none with a NUL"),
        ("user", _is_text_or_none, "a name or a uid, as text, or None"),
        ("network", lambda value: value in ("none", "open"), "'none' or 'open'"),
    ):
        value = getattr(spec, name)
        if not is_fine(value):
            raise SandboxSpecError(f"{name} is {value!r:.200}, but should be {wanted}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_text_or_none(value: Any) -> bool:
    return value is None or (_is_text(value) and value != "")


def _is_workdir(value: Any) -> bool:
    return _is_text(value) and value.startswith("/") and posixpath.normpath(value).strip("/") not in ("", "..")


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(path) and path.strip("/") and isinstance(content, str | bytes) for path, content in value.items()
    )


def _is_environment(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(name) and name and "=" not in name and _is_text(text) for name, text in value.items()
    )
