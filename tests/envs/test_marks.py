"""`@reward`, `@metric` and `@stop`: how a class's marked methods are found."""

from typing import Any

import pytest

from moonmill import MultiTurnEnv, Rollout, metric, reward, stop, tool
from moonmill.envs.marks import Mark, collect_marks
from moonmill.errors import ToolDefinitionError


class Base:
    @reward
    def correct(self, rollout: Rollout) -> float:
        return 1.0

    @metric
    def length(self, rollout: Rollout) -> float:
        return 1.0

    @stop
    def enough(self) -> bool:
        return False


def test_marks_are_found_in_the_order_they_are_written() -> None:
    assert collect_marks(Base) == (Mark("correct", "reward"), Mark("length", "metric"), Mark("enough", "stop"))


def test_a_reward_may_have_a_weight() -> None:
    class Env:
        @reward(weight=0.5)
        def correct(self, rollout: Rollout) -> float:
            return 1.0

    assert collect_marks(Env) == (Mark("correct", "reward", 0.5),)


def test_a_subclass_adds_overrides_and_takes_away() -> None:
    class Env(Base):
        @reward
        def brief(self, rollout: Rollout) -> float:
            return 1.0

        @reward(weight=2)
        def correct(self, rollout: Rollout) -> float:
            return 0.0

        def length(self, rollout: Rollout) -> float:
            return 0.0

    assert collect_marks(Env) == (Mark("correct", "reward", 2), Mark("enough", "stop"), Mark("brief", "reward"))


def test_both_bases_of_a_class_count() -> None:
    class Mixin:
        @metric
        def luck(self, rollout: Rollout) -> float:
            return 0.0

    class Env(Mixin, Base): ...

    assert {mark.method for mark in collect_marks(Env)} == {"luck", "correct", "length", "enough"}


def test_a_mark_keeps_to_the_name_it_is_found_under() -> None:
    class Env:
        @metric
        def length(self, rollout: Rollout) -> float:
            return 0.0

        size = length

    assert [mark.method for mark in collect_marks(Env)] == ["length", "size"]


@pytest.mark.parametrize(
    ("mark", "parameters", "wanted"),
    [
        (reward, "self", "self, rollout"),
        (metric, "self, rollout, more", "self, rollout"),
        (reward, "self, *, rollout", "self, rollout"),
        (stop, "self, rollout", "self"),
        (stop, "", "self"),
    ],
)
def test_parameters_that_the_kind_is_not_called_with_are_refused(mark: Any, parameters: str, wanted: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def method({parameters}): ...", scope)
    env = type("Env", (), {"method": mark(scope["method"])})
    with pytest.raises(
        ToolDefinitionError, match=rf"Env\.method: a @{mark.__name__} method has the parameters \({wanted}\)"
    ):
        collect_marks(env)


def test_a_weight_is_given_by_name_and_finite() -> None:
    with pytest.raises(ToolDefinitionError, match=r"@reward\(weight=0.5\)"):
        reward(0.5)  # type: ignore[call-overload]
    with pytest.raises(ToolDefinitionError, match="weight is nan"):
        reward(weight=float("nan"))


@pytest.mark.parametrize("mark", [tool, stop])
@pytest.mark.parametrize("name", ["reset", "finish", "messages", "task", "max_turns"])
def test_a_marked_method_cannot_take_the_place_of_one_of_ours(mark: Any, name: str) -> None:
    def method(self: Any) -> None: ...

    with pytest.raises(ToolDefinitionError, match=f"Env.{name}: MultiTurnEnv has a '{name}' of its own"):
        type("Env", (MultiTurnEnv,), {name: mark(method)})


def test_a_tool_may_be_called_reset_by_the_model() -> None:
    class Env(MultiTurnEnv):
        def tasks(self, split: str) -> Any: ...

        @tool(name="reset")
        def reset_board(self) -> None: ...

    assert [spec.name for spec in Env().tool_specs] == ["reset"]
