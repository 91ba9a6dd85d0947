"""What `moonmill eval --out` keeps, and what two such folders have to tell about each other."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from moonmill.config_io import make_config
from moonmill.errors import ConfigError, RunDirectoryError
from moonmill.trainer.eval_compare import compare
from moonmill.trainer.eval_folder import EvalSettings, evaluating, read_outcomes, settings_of
from moonmill.types import Rollout, Sampling, Status, StopReason, Task

SETTINGS = EvalSettings(
    player={"path": "policy"},
    envs={"e-v0": {}, "f-v0": {"level": 3}},
    tasks=4,
    samples=2,
    temperatures=(1.0, 0.0),
    split="eval",
    seed=0,
    success=1.0,
    sampling=Sampling(),
)
ALONE = replace(SETTINGS, envs={"e-v0": {}}, temperatures=(0.0,))
"""One environment at one temperature."""


def rollout(index: int, task: str, reward: float | None, status: Status = Status.FINISHED) -> Rollout:
    return Rollout(f"{index}", "e-v0", Task(task, id=task), status, StopReason.ANSWERED, index=index, reward=reward)


def evaluated(path: Path, rewards: dict[str, Sequence[float | None]], settings: EvalSettings = ALONE) -> Path:
    """A folder with the rewards of each task's samples."""
    with evaluating(path, settings) as folder:
        for number, (task, samples) in enumerate(rewards.items()):
            for sample, reward in enumerate(samples):
                folder.keep(rollout(number * settings.samples + sample, task, reward))
    return path


def test_blocks_follow_one_another_by_environment_and_temperature() -> None:
    blocks = [SETTINGS.block(env, t) for env in ("e-v0", "f-v0") for t in (1.0, 0.0)]
    assert blocks == [range(8), range(8, 16), range(16, 24), range(24, 32)]


def test_of_one_index_the_last_line_counts(tmp_path: Path) -> None:
    with evaluating(tmp_path, ALONE) as folder:
        folder.keep(rollout(0, "a", None, Status.FAILED))
        folder.keep(rollout(0, "a", 1.0))
    with evaluating(tmp_path, ALONE) as folder:
        assert {index: outcome.reward for index, outcome in folder.outcomes.items()} == {0: 1.0}


def test_other_settings_are_refused_once_a_rollout_is_there(tmp_path: Path) -> None:
    with evaluating(tmp_path, SETTINGS):
        pass
    with evaluating(tmp_path, ALONE) as folder:  # nothing was played with the others
        folder.keep(rollout(0, "a", 1.0))
    other = replace(ALONE, player={"path": "other"}, envs={"e-v0": {"levels": [1]}})
    with pytest.raises(RunDirectoryError) as refused, evaluating(tmp_path, other):
        pass
    assert "player.path: 'policy' then, 'other' now" in str(refused.value)
    assert "envs.e-v0.levels: None then, [1] now" in str(refused.value)
    assert [outcome.reward for outcome in read_outcomes(tmp_path).values()] == [1.0]


def test_what_is_put_around_an_environment_is_a_setting(tmp_path: Path) -> None:
    def settings(factor: float) -> EvalSettings:
        config = make_config(
            {"env": {"id": "calculator-v0"}, "model": {"path": "policy"}, "eval": {"tasks": 1}},
            (f"env.wrappers=[{{type: scale_reward, factor: {factor}}}]",),
            source="a test",
            folder=tmp_path,
        )
        return settings_of(config, [config.env], {})

    for _ in range(2):  # the second time it goes on
        with evaluating(tmp_path / "eval", settings(0.5)) as folder:
            folder.keep(rollout(0, "a", 1.0))
    told = r"wrappers\.calculator-v0: .*0\.5.* then, .*0\.25.* now"
    with pytest.raises(RunDirectoryError, match=told), evaluating(tmp_path / "eval", settings(0.25)):
        pass


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        evaluating(tmp_path, ALONE),
        pytest.raises(RunDirectoryError, match="another process is evaluating"),
        evaluating(tmp_path, ALONE),
    ):
        pass


def test_a_tool_that_changes_the_working_directory_takes_no_figures_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with evaluating(Path("eval"), ALONE) as folder:
        monkeypatch.chdir("/")
        folder.finish([])
    assert (tmp_path / "eval" / "results.json").read_text() == "[]\n"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match="holds something else"), evaluating(tmp_path, ALONE):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunDirectoryError, match="cannot write"), evaluating(tmp_path / "thesis.tex" / "x", ALONE):
        pass


def test_tasks_are_set_against_themselves_and_those_that_only_one_has_are_told(tmp_path: Path) -> None:
    a = evaluated(tmp_path / "a", {"x": (0.0, 0.0), "y": (1.0, 0.0), "z": (1.0, 1.0), "only": (1.0, 1.0)})
    b = evaluated(tmp_path / "b", {"x": (1.0, 0.0), "y": (1.0, 1.0), "z": (1.0, None), "failed": (None, None)})
    [contrast] = compare(a, b).contrasts
    assert (contrast.tasks, contrast.only_a, contrast.only_b) == (3, ("only",), ())
    success = contrast.success
    assert (success.a, success.b) == (pytest.approx(1.5 / 3), pytest.approx(2.5 / 3))
    assert success.difference.value == pytest.approx(1 / 3)
    assert (success.better, success.worse) == (2, 0)
    assert success.p == 2 / 4  # of two differences of one size, both positive or both negative
    assert contrast.reward == success


def test_what_was_set_otherwise_is_told(tmp_path: Path) -> None:
    a = evaluated(tmp_path / "a", {"x": (0.0,)})
    b = evaluated(tmp_path / "b", {"x": (1.0,)}, replace(ALONE, player={"path": "other"}))
    assert compare(a, b).settings == {"player.path": ("policy", "other")}


def test_the_only_temperature_of_each_is_compared_whatever_it_is(tmp_path: Path) -> None:
    a = evaluated(tmp_path / "a", {"x": (0.0,)})
    b = evaluated(tmp_path / "b", {"x": (1.0,)}, replace(ALONE, temperatures=(0.7,)))
    [contrast] = compare(a, b).contrasts
    assert (contrast.temperature_a, contrast.temperature_b) == (0.0, 0.7)


def test_a_script_is_compared_with_a_model_at_each_of_its_temperatures(tmp_path: Path) -> None:
    script = replace(ALONE, player={"agent": "a:b"}, sampling=None)
    a = evaluated(tmp_path / "a", {"x": (1.0, 1.0)}, script)
    with evaluating(tmp_path / "b", replace(ALONE, temperatures=(1.0, 0.5))) as folder:
        for index in (0, 8):  # the first sample at either
            folder.keep(rollout(index, "x", 0.0))
    found = compare(a, tmp_path / "b")
    assert [(c.temperature_b, c.success.a, c.success.b) for c in found.contrasts] == [(1.0, 1.0, 0.0), (0.5, 1.0, 0.0)]
    assert found.settings["player.agent"] == ("a:b", None)


def test_tasks_of_one_id_that_are_others_have_nothing_in_common(tmp_path: Path) -> None:
    a = evaluated(tmp_path / "a", {"x": (0.0,)})
    with evaluating(tmp_path / "b", replace(ALONE, seed=1)) as folder:
        folder.keep(replace(rollout(0, "x", 1.0), task=Task("another", id="x")))
    with pytest.raises(ConfigError, match=r"no scored task in common; they differ in\n  seed: 0 and 1"):
        compare(a, tmp_path / "b")
