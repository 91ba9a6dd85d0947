"""Environments by name."""

import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from moonmill import ConfigError, MultiTurnEnv, Task, list_envs, make, register, registry
from moonmill.envs.library.calculator import Calculator
from moonmill.errors import EnvCodeError, RegistryError, ToolDefinitionError

ENV = """
from moonmill import MultiTurnEnv, Task

class {name}(MultiTurnEnv):
    def __init__(self, size=1, *, color="red"):
        self.size, self.color = size, color

    def tasks(self, split):
        yield Task("go")
"""


class Sized(MultiTurnEnv):
    """An environment with an argument."""

    def __init__(self, size: int, color: str = "red") -> None:
        if size < 0:
            raise ValueError("too small")
        self.size, self.color = size, color

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task("go")


class Bare(MultiTurnEnv):
    """An environment without a constructor of its own."""

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task("go")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with what is built in."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry._load_plugins.cache_clear()
    yield
    registry._load_plugins.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(ENV.format(name="Mine") + ENV.format(name="Other"))
    return path


# Names


def test_built_in_environments_are_there() -> None:
    assert "calculator-v0" in [spec.id for spec in list_envs()]
    assert isinstance(make("calculator-v0"), Calculator)


def test_a_class_is_registered_and_made() -> None:
    register("sized-v0", Sized, size=3)
    env = make("sized-v0")
    assert isinstance(env, Sized)
    assert (env.size, env.color) == (3, "red")
    assert "sized-v0" in [spec.id for spec in list_envs()]


def test_arguments_of_make_win_over_the_registered_ones() -> None:
    register("sized-v0", Sized, size=3, color="blue")
    env = make("sized-v0", size=4)
    assert isinstance(env, Sized)
    assert (env.size, env.color) == (4, "blue")


def test_a_function_may_make_the_environment() -> None:
    register("made-v0", lambda size=7: Sized(size))
    env = make("made-v0", size=8)
    assert isinstance(env, Sized)
    assert env.size == 8


def test_a_string_is_imported_when_the_environment_is_made() -> None:
    register("later-v0", "colorsys:rgb_to_hsv")
    sys.modules.pop("colorsys", None)
    registry.spec("later-v0")
    list_envs()
    assert "colorsys" not in sys.modules


@pytest.mark.parametrize("id", ["mine", "mine-v", "v0", "-v0", "a b-v0", "a/b-v0", "mine-v0.py", ""])
def test_an_id_has_a_name_and_a_version(id: str) -> None:
    with pytest.raises(RegistryError, match="should look like `name-v0`"):
        register(id, Sized)


def test_an_id_is_taken_once() -> None:
    register("sized-v0", Sized)
    with pytest.raises(RegistryError, match=r"'sized-v0' is taken by .*:Sized: choose another"):
        register("sized-v0", Bare)
    with pytest.raises(RegistryError, match=r"taken by moonmill.envs.library.calculator:Calculator"):
        register("calculator-v0", Bare)


def test_registering_the_same_again_is_no_error_also_where_the_class_was_made_anew() -> None:
    def cell() -> type[MultiTurnEnv]:
        class Mine(Bare): ...

        return Mine

    register("mine-v0", cell(), size=1)
    again = cell()
    register("mine-v0", again)
    assert registry.spec("mine-v0").entry_point is again
    assert isinstance(make("mine-v0"), again)


@pytest.mark.parametrize(("id", "hint"), [("calculater-v0", "did you mean calculator-v0?"), ("zzz", "there are: ")])
def test_an_unknown_id_is_answered_with_the_nearest_ones(id: str, hint: str) -> None:
    with pytest.raises(RegistryError) as raised:
        make(id)
    assert str(raised.value).startswith(f"there is no environment {id!r}: {hint}")
    assert "`my_env.py:MyEnv`" in str(raised.value)


# Places


def test_a_file_and_a_class_in_it(file: Path) -> None:
    env: Any = make(f"{file}:Mine", size=5)
    assert (type(env).__name__, env.size) == ("Mine", 5)


def test_a_file_may_be_named_from_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert type(make("mine.py:Mine")).__name__ == "Mine"


def test_a_file_is_run_once_however_many_environments_it_has(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with file.open("a") as out:
        out.write("print('run')\n")
    assert type(make(f"{file}:Mine")) is type(make(f"{file}:Mine"))
    make(f"{file}:Other")
    assert capsys.readouterr().out == "run\n"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    envs = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "env.py").write_text(ENV.format(name="Mine"))
        envs.append(make(f"{tmp_path / folder / 'env.py'}:Mine"))
    assert type(envs[0]) is not type(envs[1])
    assert type(envs[0]).__module__ != type(envs[1]).__module__


def test_a_module_and_a_class_in_it() -> None:
    assert isinstance(make("moonmill.envs.library.calculator:Calculator", levels=[1]), Calculator)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{tmp}/none.py:Mine", "there is no environment file .*/none.py"),
        ("{tmp}/mine.py:Mind", "has no environment class 'Mind'; it defines: Mine, Other"),
        ("no_such_module:Mine", "the environment's module 'no_such_module' cannot be imported: .*No module named"),
        ("moonmill.types:Nothing", "has no environment class 'Nothing'"),
        (":Mine", "cannot be imported"),
        ("{tmp}/mine.py:", "has no environment class ''"),
    ],
)
def test_a_place_where_nothing_is(file: Path, place: str, words: str) -> None:
    with pytest.raises(RegistryError, match=words):
        make(place.format(tmp=file.parent))


ENV_HEAD = "from moonmill import MultiTurnEnv, reward, tool\nclass Mine(MultiTurnEnv):\n    value = 1\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\ny = 1 / 0\n", r"ZeroDivisionError: division by zero \(.*broken.py:2\)"),
        ("def :\n", r"SyntaxError: .*line 1"),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \([^ ]*broken.py:1\)$"),
        ("import json\njson.loads('{')\n", r" \([^ ]*broken.py:2, raised in .*decoder.py:\d+\)$"),
        (ENV_HEAD + "    @tool\n    def go(self, x):\n        ...\n", r"no type: .* \([^ ]*broken.py:4\)$"),
        (ENV_HEAD + "    @tool(name='a b')\n    def go(self):\n        ...\n", r"no name .* \([^ ]*broken.py:4\)$"),
        (ENV_HEAD + "    @reward\n    def r(self):\n        ...\n", r"this one has \(self\) \([^ ]*broken.py:4\)$"),
        (ENV_HEAD + "    @tool\n    def reset(self):\n        ...\n", r"of its own.* \([^ ]*broken.py:4\)$"),
        (ENV_HEAD + "    go = tool('x')\n", r"not above 'x'.* \([^ ]*broken.py:4\)$"),
    ],
)
def test_a_file_or_module_that_cannot_be_imported_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    for place in (f"{tmp_path}/broken.py:Mine", "broken:Mine"):
        with pytest.raises(RegistryError, match=words):
            make(place)


def test_a_file_that_was_broken_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("1 / 0\n")
    with pytest.raises(RegistryError):
        make(f"{path}:Mine")
    path.write_text(ENV.format(name="Mine"))
    assert type(make(f"{path}:Mine")).__name__ == "Mine"


def test_a_tool_that_cannot_be_defined_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(ENV.format(name="Mine") + "\n    from moonmill import tool\n    @tool\n    def go(self, x): ...\n")
    with pytest.raises(
        RegistryError, match=r"wrong.py cannot be imported: .*Mine\.go: the parameter 'x' has no type"
    ) as e:
        make(f"{path}:Mine")
    assert isinstance(e.value.__cause__, ToolDefinitionError)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 1, "colour": "red"}, "got an unexpected keyword argument 'colour'; it takes: size, color"),
        ({}, "missing a required argument: 'size'; it takes: size, color"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(arguments: dict[str, Any], words: str) -> None:
    register("sized-v0", Sized)
    with pytest.raises(ConfigError, match=f"env.args of sized-v0: {words}"):
        make("sized-v0", **arguments)


def test_an_environment_without_a_constructor_takes_nothing() -> None:
    register("bare-v0", Bare)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'size'; it takes: none"):
        make("bare-v0", size=1)


def test_a_constructor_that_raises_says_where() -> None:
    register("sized-v0", Sized)
    with pytest.raises(
        EnvCodeError, match=r"sized-v0: its constructor raised ValueError: too small \(.*registry.py:\d+\)"
    ):
        make("sized-v0", size=-1)


def test_a_constructors_own_config_error_passes_through() -> None:
    with pytest.raises(ConfigError, match="calculator-v0: levels is"):
        make("calculator-v0", levels=[9])


def test_a_class_that_lacks_tasks_says_so() -> None:
    class Abstract(MultiTurnEnv): ...

    register("abstract-v0", Abstract)
    with pytest.raises(EnvCodeError, match="abstract method"):
        make("abstract-v0")


def test_something_that_makes_no_environment_is_refused() -> None:
    with pytest.raises(EnvCodeError, match="pathlib:Path is no environment, but makes"):
        make("pathlib:Path")


# Plugins


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """As if packages with these entry points were installed."""
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points.items()]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: found if group == registry.ENTRY_POINT_GROUP else []
    )


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_plugins_module_registers_its_environments(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "plug_module.py").write_text(
        ENV.format(name="Mine") + "from moonmill import register\nregister('plugged-v0', Mine)\n"
    )
    install(monkeypatch, plug="plug_module")
    assert "plugged-v0" in [spec.id for spec in list_envs()]
    assert type(make("plugged-v0")).__name__ == "Mine"


def test_or_a_function_of_it_does(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "plug_function.py").write_text(
        ENV.format(name="Mine") + "def add():\n    from moonmill import register\n    register('plugged-v0', Mine)\n"
    )
    install(monkeypatch, plug="plug_function:add")
    assert type(make("plugged-v0")).__name__ == "Mine"


def test_a_broken_plugin_is_reported_and_stops_no_other(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "plug_broken.py").write_text("1 / 0\n")
    (packages / "plug_good.py").write_text("from moonmill import register\nregister('good-v0', 'plug_good:X')\n")
    install(monkeypatch, a_broken="plug_broken", b_good="plug_good", c_missing="plug_missing", d_taken="plug_taken")
    (packages / "plug_taken.py").write_text("from moonmill import register\nregister('calculator-v0', 'x:Y')\n")
    found = [spec.id for spec in list_envs()]
    assert found == sorted(found)
    assert {"calculator-v0", "good-v0"} < set(found)
    errors = registry.plugin_errors()
    assert list(errors) == ["a_broken", "c_missing", "d_taken"]
    assert "ZeroDivisionError: division by zero" in errors["a_broken"]
    assert "plug_broken.py:1" in errors["a_broken"]
    assert "'calculator-v0' is taken" in errors["d_taken"]
    assert isinstance(make("calculator-v0"), Calculator)
    with pytest.raises(RegistryError, match="The plugin a_broken could not be loaded: ZeroDivisionError"):
        make("lost-v0")


def test_plugins_are_not_loaded_for_an_environment_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> Any:
        raise AssertionError

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    make("calculator-v0")


@pytest.mark.parametrize("place", ["{folder}/with_helper.py:Mine", "with_helper:Mine"])
def test_an_environment_imports_what_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_beside.py").write_text("ANSWER = 42\n")
    (tmp_path / "with_helper.py").write_text("from helper_beside import ANSWER\n" + ENV.format(name="Mine"))
    assert type(make(place.format(folder=tmp_path))).__name__ == "Mine"
    for name in ("helper_beside", "with_helper"):
        sys.modules.pop(name, None)


def test_a_file_that_raises_what_cannot_be_put_into_words_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mute.py"
    file.write_text("class Mute(Exception):\n    def __str__(self):\n        raise self\n\nraise Mute\n")
    with pytest.raises(RegistryError) as told:
        make(f"{file}:Env")
    said = f"the environment file {file} cannot be imported: Mute: (its text cannot be had) ({file}:5)"
    assert str(told.value) == said


def test_what_an_authors_module_says_at_endless_length_is_not_told_whole(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "plug_endless.py").write_text("raise ValueError('left ' * 1_000_000 + 'right')\n")
    install(monkeypatch, endless="plug_endless")
    with pytest.raises(RegistryError) as told:
        make(f"{packages / 'plug_endless.py'}:Env")
    for said in (str(told.value), registry.plugin_errors()["endless"]):
        assert len(said) < 4000
        assert "ValueError: left left" in said
        assert "left right (" in said


def test_a_librarys_name_before_the_colon_goes_to_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ADAPTERS, "colours", (f"{__name__}:Sized", "color"))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Sized.__module__])
    env = make("colours:deep:blue", size=2)
    assert isinstance(env, Sized)
    assert (env.size, env.color) == (2, "deep:blue")
    with pytest.raises(RegistryError, match=r"^'colours:' names no environment: write colours:NAME$"):
        make("colours:")
