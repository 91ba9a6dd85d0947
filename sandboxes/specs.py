"""What is wrong with a `SandboxSpec` whoever is to honour it: a struct does not look at what it is made of."""

import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from moonmill.config_check import problems
from moonmill.sandboxes.errors import SandboxSpecError
from moonmill.sandboxes.types import SandboxLimits, SandboxSpec

_LONGEST_PATH = 4000
_LONGEST_NAME = 255
"""Bytes, as everywhere on Linux."""


def check_spec(spec: SandboxSpec) -> None:
    """Refuse a spec that no sandbox could be made by.

    Raises:
        SandboxSpecError: with the field, its value and what it should be.
    """
    if not isinstance(spec.limits, SandboxLimits):
        raise SandboxSpecError(f"limits is {spec.limits!r:.200}, but should be a SandboxLimits")
    limits = msgspec.structs.asdict(spec.limits)
    try:
        msgspec.convert(limits, SandboxLimits)
    except msgspec.ValidationError as e:
        said = [f"limits.{problem.path[0]}: {problem.text}" for problem in problems(SandboxLimits, limits)]
        raise SandboxSpecError("; ".join(said) or f"limits is {spec.limits!r:.200}: {e}") from None
    for name, is_fine, wanted in (
        ("image", _is_text_or_none, "the name of an image, or None"),
        ("workdir", _is_workdir, "an absolute path below /, of names of 255 bytes at most"),
        ("files", _are_files, "contents, each bytes or text in UTF-8, by their paths"),
        (
            "env",
            lambda value: isinstance(value, dict) and is_environment(value),
            "texts in UTF-8 by names without `=`, none with a NUL",
        ),
        ("user", _is_text_or_none, "a name or a uid, as text, or None"),
        ("network", lambda value: value in ("none", "open"), "'none' or 'open'"),
    ):
        value = getattr(spec, name)
        if not is_fine(value):
            raise SandboxSpecError(f"{name} is {value!r:.200}, but should be {wanted}")


def is_text(value: object, errors: str = "strict") -> bool:
    """Whether a value is text in UTF-8 without a NUL. With `surrogateescape` it may also stand for other bytes."""
    return isinstance(value, str) and "\0" not in value and _is_encodable(value, errors)


def is_environment(value: object, errors: str = "strict") -> bool:
    """Whether a value can be environment variables by name; `errors` as for `is_text`."""
    return isinstance(value, Mapping) and all(
        is_text(name, errors) and name and "=" not in name and is_text(text, errors) for name, text in value.items()
    )


def _is_encodable(text: str, errors: str) -> bool:
    try:
        text.encode("utf-8", errors)
    except UnicodeEncodeError:
        return False
    return True


def _is_text_or_none(value: Any) -> bool:
    return value is None or (is_text(value) and value != "")


def _is_workdir(value: Any) -> bool:
    return (
        is_text(value)
        and value.startswith("/")
        and posixpath.normpath(value).strip("/") not in ("", "..")
        and len(value.encode()) <= _LONGEST_PATH
        and max(len(part.encode()) for part in value.split("/")) <= _LONGEST_NAME
    )


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_text(path, "surrogateescape")
        and path.strip("/")
        and (isinstance(content, bytes) or (isinstance(content, str) and _is_encodable(content, "strict")))
        for path, content in value.items()
    )
