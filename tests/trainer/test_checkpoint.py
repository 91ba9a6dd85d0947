"""Checkpoints: bit-exact, whole or absent, the newest few kept."""

import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch
from transformers import AutoModelForCausalLM

from moonmill.algorithm_config import AlgorithmConfig, CriticConfig, GroupZscoreConfig
from moonmill.config import LoraConfig
from moonmill.errors import RunDirectoryError, RunError
from moonmill.trainer import checkpoint
from moonmill.trainer.learner import Learner
from tests.trainer.conftest import MakeConfig, sampled


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """What a run directory has from its start."""
    (tmp_path / "checkpoints").mkdir()


def everything(learner: Learner) -> dict[str, torch.Tensor]:
    state = {f"policy.{k}": v.clone() for k, v in learner.policy.state_dict().items()}
    if learner.critic is not None:
        state |= {f"critic.{k}": v.clone() for k, v in learner.critic.state_dict().items()}
    return state


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize("preset", ["sao", "grpo"])
def test_going_on_from_a_checkpoint_is_bit_exact(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, preset: str, lora: LoraConfig | None
):
    grpo = AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4))
    critic = CriticConfig(lr=1e-2, warmup_steps=1)
    config = make_config(algorithm=grpo if preset == "grpo" else None, critic=critic, lora=lora)
    straight = Learner(config)
    for seed in range(3):
        straight.step(sampled(model_path, seed, group_size=4))
    path = straight.checkpoint(tmp_path)
    for seed in range(3, 6):
        straight.step(sampled(model_path, seed, group_size=4))

    resumed = Learner(config)
    resumed.restore(path)
    assert (resumed.step_number, resumed.version) == (3, 3 if preset == "grpo" else 2)
    for seed in range(3, 6):
        resumed.step(sampled(model_path, seed, group_size=4))
    expected, got = everything(straight), everything(resumed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert resumed.version == straight.version


def test_a_step_draws_nothing_from_pythons_or_numpys_chance_and_torchs_is_kept(
    make_config: MakeConfig, model_path: Path, tmp_path: Path
):
    config = make_config()
    learner = Learner(config)
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    learner.step(sampled(model_path, 0))
    path = learner.checkpoint(tmp_path)
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())
    drawn = torch.rand(4)
    Learner(config).restore(path)
    assert torch.equal(torch.rand(4), drawn)


def test_its_policy_has_a_version_and_another_model_has_none(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    learner = Learner(make_config(critic=CriticConfig(lr=1e-2, warmup_steps=1)))
    for seed in range(3):
        learner.step(sampled(model_path, seed))
    assert checkpoint.version_of(learner.checkpoint(tmp_path) / "policy") == 2
    assert checkpoint.version_of(model_path) is None


def test_a_learner_that_has_moved_on_goes_back_exactly(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    learner = Learner(make_config())
    learner.step(sampled(model_path, 0))
    path = learner.checkpoint(tmp_path)
    before = everything(learner)
    once = learner.step(sampled(model_path, 1)).metrics["policy_loss"]
    learner.restore(path)
    assert all(torch.equal(before[name], tensor) for name, tensor in everything(learner).items())
    assert learner.step(sampled(model_path, 1)).metrics["policy_loss"] == once


def test_its_policy_is_a_folder_that_transformers_loads(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    learner = Learner(make_config())
    learner.step(sampled(model_path, 0))
    policy = learner.checkpoint(tmp_path) / "policy"
    assert {f.name for f in policy.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    loaded = AutoModelForCausalLM.from_pretrained(policy)
    assert all(torch.equal(t, loaded.state_dict()[n]) for n, t in learner.policy.state_dict().items())
    assert loaded.config.dtype == torch.float32


def test_a_failed_learner_is_not_saved_until_it_is_restored(make_config: MakeConfig, model_path: Path, tmp_path: Path):
    learner = Learner(make_config())
    path = learner.checkpoint(tmp_path)
    assert learner.critic is not None
    head, learner.critic.head = learner.critic.head, torch.nn.Linear(1, 1)
    with pytest.raises(RuntimeError):
        learner.step(sampled(model_path, 0))
    learner.critic.head = head
    with pytest.raises(RunError, match="restore a checkpoint"):
        learner.checkpoint(tmp_path)
    learner.restore(path)
    learner.step(sampled(model_path, 0))


def test_a_checkpoint_of_another_run_is_refused(make_config: MakeConfig, tmp_path: Path):
    grpo = Learner(make_config(algorithm=AlgorithmConfig("grpo", advantage=GroupZscoreConfig(group_size=4))))
    path = grpo.checkpoint(tmp_path)
    with pytest.raises(RunError, match="no checkpoint of this run"):
        Learner(make_config()).restore(path)
    with pytest.raises(RunError, match="no checkpoint of this run"):
        grpo.restore(tmp_path / "nothing")


@pytest.mark.parametrize("file", ["policy/model.safetensors", "critic.safetensors", "optimizers.pt", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "garbled", "gone"])
def test_a_damaged_checkpoint_is_an_error_that_says_so(make_config: MakeConfig, tmp_path: Path, file: str, damage: str):
    learner = Learner(make_config())
    path = learner.checkpoint(tmp_path)
    content = (path / file).read_bytes()
    if damage == "gone":
        (path / file).unlink()
    else:
        (path / file).write_bytes(content[: len(content) // 2] if damage == "cut" else b"\x00" * len(content))
    with pytest.raises(RunError, match=r"step-000000 is damaged, or no checkpoint of this run: .*Remove it"):
        learner.restore(path)
    with pytest.raises(RunError, match="restore a checkpoint"):
        learner.checkpoint(tmp_path / "elsewhere")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file can be written beyond `size`, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("file", ["policy/model.safetensors", "optimizers.pt"])
def test_a_full_disk_is_told_as_what_it_is_and_gets_its_room_back(
    make_config: MakeConfig, model_path: Path, tmp_path: Path, file: str
):
    (tmp_path / "weights").mkdir()
    learner = Learner(make_config())
    learner.step(sampled(model_path, 0))
    whole = learner.checkpoint(tmp_path)
    learner.step(sampled(model_path, 1))
    with files_up_to((whole / file).stat().st_size - 100):
        with pytest.raises(RunDirectoryError, match=r"cannot write the checkpoint .*File too large"):
            learner.checkpoint(tmp_path)
        if file == "policy/model.safetensors":
            with pytest.raises(RunDirectoryError, match=r"cannot write the weights .*File too large"):
                learner.export(tmp_path / "weights" / "v000001")
    assert list((tmp_path / "checkpoints").iterdir()) == [whole]


def fill(folder: Path) -> None:
    (folder / "state.json").write_text("{}")


def test_the_newest_few_are_kept(tmp_path: Path):
    for step in (1, 5, 12, 30):
        path = checkpoint.write(tmp_path, step, 2, fill)
        assert checkpoint.latest(tmp_path) == path
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000012", "step-000030"]


def test_what_may_be_gone_back_to_is_kept_as_well(tmp_path: Path):
    for step in range(2, 21, 2):
        checkpoint.write(tmp_path, step, 2, fill, back_to=step - 7)
    assert [checkpoint.step_of(p) for p in sorted((tmp_path / "checkpoints").iterdir())] == [12, 14, 16, 18, 20]
    assert checkpoint.newest_of(tmp_path, 0, 13) == tmp_path / "checkpoints" / "step-000012"
    assert checkpoint.newest_of(tmp_path, 13, 13) is None
    checkpoint.forget(tmp_path, range(13, 19))
    assert [checkpoint.step_of(p) for p in sorted((tmp_path / "checkpoints").iterdir())] == [12, 20]


def test_there_is_none_at_first(tmp_path: Path):
    assert checkpoint.latest(tmp_path) is None


def test_steps_are_compared_as_numbers(tmp_path: Path):
    checkpoint.write(tmp_path, 999_999, 9, fill)
    assert checkpoint.write(tmp_path, 1_000_000, 9, fill) == checkpoint.latest(tmp_path)


def test_a_writer_that_dies_half_way_leaves_the_older_one_the_newest(tmp_path: Path):
    older = checkpoint.write(tmp_path, 1, 2, fill)

    def die(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 2, 2, die)
    assert checkpoint.latest(tmp_path) == older
    newer = checkpoint.write(tmp_path, 2, 2, fill)
    assert checkpoint.latest(tmp_path) == newer
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_one_that_stands_already_is_not_written_again(tmp_path: Path):
    path = checkpoint.write(tmp_path, 3, 2, fill)

    def never(folder: Path) -> None:
        raise AssertionError

    assert checkpoint.write(tmp_path, 3, 2, never) == path


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def fill_much(folder: Path) -> None:
    (folder / "policy").mkdir()
    for name in ("policy/model.safetensors", "policy/tokenizer.json", "optimizers.pt", "state.json"):
        (folder / name).write_text(f"content of {name}")


@pytest.mark.parametrize("damage", [Path.unlink, cut, zero])
@pytest.mark.parametrize("file", ["policy/model.safetensors", "policy/tokenizer.json", "state.json", "files.json"])
def test_a_damaged_one_is_forgotten_with_the_reason_and_can_be_made_again(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
):
    older, newer = (checkpoint.write(tmp_path, step, 2, fill_much) for step in (4, 8))
    damage(newer / file)
    (told,) = checkpoint.forget_damaged(tmp_path)
    assert f"{newer} is damaged" in told
    assert file in told
    assert checkpoint.latest(tmp_path) == older
    assert checkpoint.write(tmp_path, 8, 2, fill_much) == newer
    assert checkpoint.forget_damaged(tmp_path) == []


def test_all_damaged_ones_are_forgotten_an_emptied_folder_among_them(tmp_path: Path):
    older, newer = (checkpoint.write(tmp_path, step, 2, fill_much) for step in (4, 8))
    cut(older / "optimizers.pt")
    shutil.rmtree(newer)
    newer.mkdir()
    assert len(checkpoint.forget_damaged(tmp_path)) == 2
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("lost", ["policy", "optimizers.pt", "state.json"])
def test_one_whose_list_does_not_have_what_a_checkpoint_needs_is_damaged(tmp_path: Path, lost: str):
    def fill_less(folder: Path) -> None:
        fill_much(folder)
        shutil.rmtree(folder / lost) if lost == "policy" else (folder / lost).unlink()

    path = checkpoint.write(tmp_path, 4, 2, fill_less)
    assert f"{lost}{'/' if lost == 'policy' else ''} is not in files.json" == checkpoint.damage_of(path)
    (path / "files.json").write_text("{}")
    assert checkpoint.damage_of(path) == "policy/ is not in files.json"


def test_a_file_in_the_place_of_one_is_removed_and_so_is_a_link(tmp_path: Path):
    older = checkpoint.write(tmp_path, 4, 2, fill_much)
    (older.parent / "step-000008").write_text("no folder")
    (older.parent / "step-000009").symlink_to(older)
    (older.parent / ".unfinished-step-000010").write_text("no folder")
    (older / "files.json").rename(tmp_path / "away")
    assert len(checkpoint.forget_damaged(tmp_path)) == 3
    checkpoint.write(tmp_path, 5, 2, fill_much)
    assert [p.name for p in older.parent.iterdir()] == ["step-000005"]


def test_a_disk_that_refuses_is_an_error_that_names_the_checkpoint(tmp_path: Path):
    (tmp_path / "checkpoints").rmdir()
    with pytest.raises(RunDirectoryError, match=r"cannot write the checkpoint .*step-000003: No such file"):
        checkpoint.write(tmp_path, 3, 2, fill)


def test_checkpoints_newer_than_the_logs_are_forgotten_and_told(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        checkpoint.write(tmp_path, step, keep=3, fill=lambda folder: (folder / "state.json").write_text("{}"))
    (told,) = checkpoint.forget_after(tmp_path, 9)
    assert told == f"{tmp_path / 'checkpoints' / 'step-000012'} is newer than step 9, the last in the run's logs"
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == ["step-000004", "step-000008"]
