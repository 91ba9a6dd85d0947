"""What went wrong in verifiers, in words for whoever runs `moonmill`."""

import pydantic
import pytest

from moonmill.envs.adapters.verifiers.inside.main import said_of


class Taskset(pydantic.BaseModel):
    """As a taskset of verifiers says what it takes."""

    size: int


def test_wrong_arguments_are_told_without_pages_to_visit() -> None:
    with pytest.raises(pydantic.ValidationError) as wrong:
        Taskset(size="many")  # type: ignore[arg-type]
    assert "For further information visit https://" in str(wrong.value)
    said = said_of(wrong.value)
    assert said.startswith("ValidationError: 1 validation error for Taskset\nsize\n  Input should be a valid integer")
    assert "visit" not in said
    assert said.endswith(")")
