"""Config files: what is read, what is refused, and in which words."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonmill import plain_yaml
from moonmill.algorithm_config import (
    AlgorithmConfig,
    CriticConfig,
    DisConfig,
    GaeConfig,
    GroupZscoreConfig,
    PpoClipConfig,
)
from moonmill.config import AsyncConfig, Config, EnvConfig, EvalConfig, LearnerConfig, ModelConfig
from moonmill.config_check import problems
from moonmill.config_io import dump_config, load_config, make_config
from moonmill.errors import ConfigError, RegistryError
from moonmill.registry import make
from moonmill.types import Sampling

MINIMAL = "env: {id: calculator-v0}\nmodel: {path: somewhere/else}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes, name: str = "demo.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


# What is read


def test_a_minimal_config_gets_the_defaults_and_the_name_of_its_file(write):
    config = load_config(write(MINIMAL, "my-run.yaml"))
    assert config == Config(
        env=EnvConfig("calculator-v0"), model=ModelConfig("somewhere/else"), name="my-run", run_dir="runs/my-run"
    )


def test_every_kind_of_value_is_read(write):
    config = load_config(
        write(
            """
            env: {id: calculator-v0, args: {levels: [1, 2], note: "1e-6", nested: {on: yes}}}
            model: {path: p, max_length: 256}
            name: fixed
            run_dir: elsewhere
            algorithm:
              preset: grpo
              advantage: {type: group_zscore, group_size: 4}
              objective: {type: ppo_clip, high: 0.28}
              critic: null
            async: {max_staleness: 0, window: 7, on_new_version: finish}
            learner: {lr: 1e-6, betas: [0, 0.9], weight_decay: 0}
            eval: {temperatures: [1, 0.5]}
            """
        )
    )
    assert config.env.args == {"levels": [1, 2], "note": "1e-6", "nested": {"on": "yes"}}
    assert config.algorithm.advantage == GroupZscoreConfig(group_size=4)
    assert config.algorithm.objective == PpoClipConfig(high=0.28)
    assert config.async_ == AsyncConfig(max_staleness=0, window=7, on_new_version="finish")
    assert config.learner == LearnerConfig(lr=1e-6, betas=(0.0, 0.9))
    assert config.eval.temperatures == (1.0, 0.5)
    assert (config.name, config.run_dir) == ("fixed", "elsewhere")


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1.0e-6", "0.000001", ".000001"])
def test_a_number_may_be_written_in_any_usual_way(write, text):
    assert load_config(write(f"{MINIMAL}learner: {{lr: {text}}}")).learner.lr == 1e-6


def test_the_model_is_looked_for_beside_the_config(write, tmp_path, monkeypatch):
    path = write("env: {id: e-v0}\nmodel: {path: policy}\n", "there/demo.yaml")
    (tmp_path / "there/policy").mkdir()
    (tmp_path / "policy").mkdir()
    assert load_config(path).model.path == str(tmp_path / "there/policy")
    monkeypatch.chdir(tmp_path / "there")
    assert load_config(Path("demo.yaml")).model.path == str(tmp_path / "there/policy")


def test_a_model_given_on_the_command_line_is_looked_for_in_the_working_directory(write, tmp_path):
    path = write(MINIMAL, "there/demo.yaml")
    (tmp_path / "there/policy").mkdir()
    (tmp_path / "policy").mkdir()
    assert load_config(path, ["model.path=policy"]).model.path == str(tmp_path / "policy")


def test_a_model_that_is_no_folder_is_left_as_it_stands(write):
    assert load_config(write(MINIMAL)).model.path == "somewhere/else"


def test_an_environment_in_a_file_is_looked_for_beside_the_config(write, tmp_path):
    path = write("env: {id: 'mine.py:Mine'}\nmodel: {path: p}\n", "there/demo.yaml")
    write("", "there/mine.py")
    assert load_config(path).env.id == f"{tmp_path / 'there/mine.py'}:Mine"


# Overrides


def test_overrides_win_and_are_yaml(write):
    path = write(MINIMAL + "learner: {lr: 1.0e-4, batch_rollouts: 8}")
    overrides = ["learner.lr=2e-5", "eval.temperatures=[0, 1]", "env.args.levels=[3]", "algorithm.critic={updates: 1}"]
    config = load_config(path, overrides)
    assert config.learner == LearnerConfig(lr=2e-5, batch_rollouts=8)
    assert config.eval == EvalConfig(temperatures=(0.0, 1.0))
    assert config.env.args == {"levels": [3]}
    assert config.algorithm == AlgorithmConfig(critic=CriticConfig(updates=1))


def test_the_last_of_two_overrides_wins(write):
    assert load_config(write(MINIMAL), ["train.steps=3", "train.steps=4"]).train.steps == 4


def test_overrides_leave_the_callers_data_alone():
    data = {"env": {"id": "e-v0"}, "model": {"path": "p"}}
    make_config(data, ["env.id=f-v0", "train.steps=1"], source="here", folder=Path())
    assert data == {"env": {"id": "e-v0"}, "model": {"path": "p"}}


def test_a_wrong_override_is_named_as_one(write):
    assert "learner.lr (from --set): expected a number above 0, got 'fast'" in refusal(
        write(MINIMAL), "learner.lr=fast"
    )


@pytest.mark.parametrize("override", ["learner.lr", "=3", "learner..lr=3", ".=1"])
def test_an_override_must_be_a_key_and_a_value(write, override):
    assert refusal(write(MINIMAL), override) == f"--set {override}: expected key=value, such as learner.lr=1e-4"


def test_an_override_cannot_reach_into_a_value(write):
    said = refusal(write(MINIMAL), "env.id.x=1")
    assert said == "--set env.id.x=1: `env.id` is the value 'calculator-v0', with no keys in it"


def test_an_override_that_is_not_yaml_is_refused(write):
    assert "the value of --set eval.temperatures=[1 is not valid YAML" in refusal(
        write(MINIMAL), "eval.temperatures=[1"
    )


# Wrong keys and values


def test_an_unknown_key_is_reported_with_its_path_value_neighbour_and_line(write):
    path = write(MINIMAL + "async:\n  max_stalenes: 3\n")
    assert refusal(path) == (
        f"{path}: async.max_stalenes (line 4): unknown key (with the value 3), did you mean `max_staleness`?; "
        "the keys here are mode, max_staleness, max_concurrent, window, on_new_version, filters"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train: {steps: 0}", "train.steps (line 3): expected a whole number of at least 1, got 0"),
        ("train: {steps: 2.5}", "train.steps (line 3): expected a whole number of at least 1, got 2.5"),
        ("train: {steps: true}", "expected a whole number of at least 1, got true"),
        ("train: {seed: many}", "expected a whole number, got 'many'"),
        ("train: {steps: null}", "expected a whole number of at least 1, got null"),
        ("engine: {port: 70000}", "expected a whole number from 0 to 65535, got 70000"),
        ("learner: {lr: 0}", "expected a number above 0, got 0"),
        ("learner: {lr: .nan}", "expected a number above 0, got NaN"),
        ("learner: {max_grad_norm: .inf}", "expected a number above 0, got Infinity"),
        ("learner: {betas: [0.9]}", "expected a list of 2: a number of at least 0 and below 1; a number of at least"),
        ("learner: {betas: [0.9, 1]}", "learner.betas[1]: expected a number of at least 0 and below 1, got 1"),
        ("eval: {temperatures: 1}", "expected a list, each item a number of at least 0, got 1"),
        ("sampling: {top_p: 0}", "expected a number above 0 and of at most 1, got 0"),
        ("algorithm: {preset: soa}", "'rloo' or 'sao', got 'soa', did you mean `sao`?"),
        ("algorithm: {critic: {freeze_attention: yes}}", "expected true or false, got 'yes'"),
        ("algorithm: {critic: 3}", "algorithm.critic (line 3): expected a mapping with the keys lr, updates,"),
        (
            "algorithm: {advantage: {type: gea}}",
            "expected 'gae' or 'group_zscore' or 'group_mean' or 'rloo' or 'running_mean', got 'gea', did you mean",
        ),
        ("algorithm: {advantage: gae}", "or 'rloo' or 'running_mean', got 'gae'"),
        (
            "algorithm: {advantage: {lam: 1}}",
            "algorithm.advantage.type: required, and missing: 'gae' or 'group_zscore'",
        ),
        ("algorithm: {advantage: {type: gae, lam: x}}", "expected a number from 0 to 1, or 'adaptive', got 'x'"),
        ("algorithm: {objective: {type: dis, hihg: 1}}", "algorithm.objective.hihg (line 3): unknown key"),
        ("async: {window: big}", "expected a whole number of at least 1, or null, got 'big'"),
        ("name: 3", "name (line 3): expected text, got 3"),
        ("learner: [1, 2]", "learner (line 3): expected a mapping with the keys batch_rollouts, lr,"),
        ("learner: {1: 2}", "learner.1 (line 3): unknown key (with the value 2)"),
    ],
)
def test_a_wrong_value_is_described_in_plain_words(write, line, words):
    said = refusal(write(MINIMAL + line))
    assert words in said
    assert "msgspec" not in said
    assert "$" not in said


def test_what_is_missing_is_named(write):
    said = refusal(write("env: {args: {}}\n"))
    assert "env.id: required, and missing: text" in said
    assert "model: required, and missing: a mapping with the keys path," in said


def test_everything_wrong_in_a_file_is_reported_at_once(write):
    said = refusal(write(MINIMAL + "foo: 1\ntrain: {steps: 0}\nlearner: {lr: fast, betas: [2, 3]}\n"), "eval.split=1")
    assert [line.split()[0].rstrip(":") for line in said.splitlines()[1:]] == [
        "foo",
        "train.steps",
        "learner.lr",
        "learner.betas[0]",
        "learner.betas[1]",
        "eval.split",
    ]


def test_a_long_value_is_cut_in_the_message(write):
    assert len(refusal(write(MINIMAL + f"train: {{steps: {'x' * 5000}}}"))) < 300


def test_keys_of_environment_arguments_are_text(write):
    assert "env.args (line 1): the key 1 is not text; put it in quotes" in refusal(
        write("env: {id: e-v0, args: {1: 2}}\nmodel: {path: p}")
    )


# Files that are no config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; a config needs at least `env: {id: …}` and `model: {path: …}`"),
        ("- 1\n- 2\n", "holds a list, not keys and values"),
        ("just words", "holds a str, not keys and values"),
        ("env: {id: x\nmodel: y", "is not valid YAML at line 2, column 6"),
        ("env:\n\tid: x", "is not valid YAML at line 2, column 1"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML at line 2, column 1: but found another document"),
        ("a: \x00", "is not valid YAML: character #x0000 is not allowed in it"),
        ("a: !!python/object:os.system {}", "could not determine a constructor for the tag"),
        ("a: &a [*a]", "found unconstructable recursive node"),
        ("{a: 1}: 2", "found unhashable key"),
        (b"a: \xff", "is not a text file in UTF-8: byte 3 is 0xff"),
    ],
)
def test_a_file_that_holds_no_mapping_says_where_it_goes_wrong(write, text, words):
    path = write(text)
    said = refusal(path)
    assert said.startswith(str(path))
    assert words in said


ODD_YAML = [
    ("[" * 3000, "nested more than 64 deep"),
    ("{a: " * 3000, "nested more than 64 deep"),
    ('!!timestamp "no"', "could not determine a constructor for the tag"),
    ("!!timestamp 2001-01-01", "could not determine a constructor for the tag"),
    ('!!binary "?"', "could not determine a constructor for the tag"),
    ("!!set {a}", "could not determine a constructor for the tag"),
    ('!!bool "zzz"', "line 1, column 1: 'zzz' is no bool"),
    ('!!int "x"', "line 1, column 1: 'x' is no int"),
    ('!!float "x"', "line 1, column 1: 'x' is no float"),
    ("!!null x", "line 1, column 1: 'x' is no null"),
    ("!!int [1]", "expected a scalar node, but found sequence"),
    ("!!map 3", "expected a mapping node, but found scalar"),
    ("{!!merge <<: 3}", "expected a mapping or list of mappings for merging"),
    ("9" * 5000, "Exceeds the limit (4300 digits)"),
    ('"\\ud800"', "half a character (a lone surrogate) is no text"),
    ('"\\UFFFFFFFF"', "is not valid YAML: "),
    ("\x00", "character #x0000 is not allowed in it"),
    (
        ", ".join(["[&a0 [x, x]", *(f"&a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]) + "]",
        "with its aliases it has more than 100,000 values",
    ),
    (
        ", ".join(["[&a0 [x]", *(f"&a{i} [*a{i - 1}]" for i in range(1, 600))]) + "]",
        "with its aliases it is nested more than 64 deep",
    ),
]


@pytest.mark.parametrize(("text", "words"), ODD_YAML, ids=[text[:24] for text, _ in ODD_YAML])
def test_odd_yaml_is_refused_in_a_file_and_on_the_command_line(write, text, words):
    said = refusal(write(f"{MINIMAL}name: {text}"))
    assert words.replace("line 1, column 1", "line 3, column 7") in said
    assert len(said) < 400
    said = refusal(write(MINIMAL), f"env.args.x={text}")
    assert words in said
    assert len(said) < 400


def test_an_alias_may_repeat_a_value(write):
    config = load_config(write("env: {id: e-v0, args: {a: &a [1, 2], b: *a}}\nmodel: {path: p}"))
    assert config.env.args == {"a": [1, 2], "b": [1, 2]}


@given(
    st.lists(
        st.sampled_from(
            [
                "{",
                "}",
                "[",
                "]",
                "a",
                ": ",
                ", ",
                "- ",
                "\n",
                "  ",
                "&a ",
                "*a",
                "!!int ",
                "!!map ",
                "!!bool ",
                "!!x ",
                "? ",
                "|",
                ">",
                "'",
                '"',
                "\\",
                "\\0",
                "0",
                "1e9",
                "~",
                "<<",
                "#",
                "%",
                "@",
                "\t",
                "\0",
                "\x85",
            ]
        )
    )
)
def test_any_text_is_read_or_refused(parts):
    with contextlib.suppress(ConfigError):
        plain_yaml.dump(plain_yaml.parse("".join(parts), "it").data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"learner: {{lr: {'9' * 400}}}", "learner.lr (line 3): expected a number above 0, got 999"),
        (f"eval: {{temperatures: [{'9' * 400}]}}", "expected a number of at least 0, got 999"),
    ],
)
def test_a_number_that_no_float_can_hold_is_refused(write, line, words):
    assert words in refusal(write(MINIMAL + line))


@pytest.mark.parametrize("name", ["x" * 5000, '"\\0"', f"{'y' * 300}.py:Env", '"\\0.py:Env"'])
def test_a_name_that_no_file_can_have_names_no_file(write, name):
    config = load_config(write(f"env: {{id: {name}}}\nmodel: {{path: {name}}}"))
    with pytest.raises(RegistryError, match="there is no environment"):
        make(config.env.id)


def test_an_overrides_key_has_a_bounded_length(write):
    assert "the key has 2502 parts" in refusal(write(MINIMAL), f"env.args{'.a' * 2500}=1")


def test_what_is_no_ordinary_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "is a pipe, a socket or a device" in refusal(tmp_path / "pipe.yaml")
    assert "is a pipe, a socket or a device" in refusal(Path("/dev/zero"))


def test_a_huge_file_is_refused_unread(tmp_path):
    with open(tmp_path / "huge.yaml", "wb") as file:
        file.truncate(1 << 30)
    assert "has 1,073,741,824 bytes, but a config at most 1,048,576" in refusal(tmp_path / "huge.yaml")


def test_a_name_too_long_for_a_file_is_refused(tmp_path):
    assert "File name too long" in refusal(tmp_path / f"{'x' * 300}.yaml")


def test_a_key_that_stands_twice_is_refused(write):
    path = write(MINIMAL + "learner:\n  lr: 1\n  threads: 1\n  lr: 2\n")
    assert refusal(path) == f"{path}: `learner.lr` stands twice, at lines 4 and 6; keep one of them"


def test_a_missing_file_names_its_nearest_neighbour(write, tmp_path):
    path = write(MINIMAL, "calculator.yaml")
    assert refusal(tmp_path / "calculator.yml") == f"no config file {tmp_path}/calculator.yml, did you mean {path}?"
    assert refusal(tmp_path / "zzz") == f"no config file {tmp_path}/zzz; the folder has calculator.yaml"
    assert refusal(tmp_path / "no/a.yaml") == f"no config file {tmp_path}/no/a.yaml: there is no folder {tmp_path}/no"


def test_a_folder_is_no_config_file(write, tmp_path):
    inside = write(MINIMAL, "run/config.yaml")
    assert refusal(tmp_path / "run") == f"{tmp_path}/run is a folder, not a config file; give {inside}"


# Writing


def test_what_is_dumped_has_every_value_and_loads_to_the_same_config(write):
    config = Config(
        env=EnvConfig("e-v0", {"text": "1e-6", "yes": "no", "n": [1, None, 1e-7, {"deep": "# not a comment"}]}),
        model=ModelConfig("p"),
        name="n",
        run_dir="r",
        sampling=Sampling(),
        algorithm=AlgorithmConfig(advantage=GaeConfig(lam=0.5), objective=DisConfig(), critic=CriticConfig()),
    )
    text = dump_config(config)
    assert "  temperature: 1.0\n" in text
    assert "    type: gae\n" in text
    assert load_config(write(text)) == config


def test_dumping_needs_no_moonmill_to_be_read(write):
    import yaml

    text = plain_yaml.dump({"a": "1e-6", "b": "yes", "c": "010", "d": 1e-6, "e": "0o7", "f": "12:30", "g": "null"})
    assert yaml.safe_load(text) == plain_yaml.parse(text, "it").data


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_any_plain_data_survives_yaml(data):
    assert plain_yaml.parse(plain_yaml.dump(data), "it").data == data


# The checker knows no particular config


class Inner(msgspec.Struct, tag="inner"):
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]


class Other(msgspec.Struct, tag="other"):
    mode: Literal[1, 2] = 1


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Inner | Other]
    limits: dict[str, Annotated[int, msgspec.Meta(lt=5)]] = {}
    names: tuple[str, ...] | None = None


def test_the_checker_works_from_any_structs_definition():
    data = {
        "parts": [{"type": "inner"}, {"type": "other", "mode": 3}, {"type": "third"}, 4],
        "limits": {"a": 5},
        "names": ["x", 1],
    }
    assert [(".".join(p.path), p.text) for p in problems(Outer, data)] == [
        ("parts[0].code", "required, and missing: text"),
        ("parts[1].mode", "expected 1 or 2, got 3"),
        ("parts[2].type", "expected 'inner' or 'other', got 'third', did you mean `other`?"),
        ("parts[3]", "expected a mapping with `type: ` 'inner' or 'other', got 4"),
        ("limits.a", "expected a whole number below 5, got 5"),
        ("names[1]", "expected text, got 1"),
    ]


def test_the_checker_finds_nothing_wrong_in_what_msgspec_accepts():
    good = {"parts": [{"type": "inner", "code": "a"}, {"type": "other"}], "limits": {"a": 4}, "names": None}
    assert problems(Outer, good) == []
    assert msgspec.convert(good, Outer).parts == [Inner("a"), Other()]
