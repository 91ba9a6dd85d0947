"""A policy as a folder for others: copied or merged, whole or not there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from moonmill.cli.app import cli
from moonmill.config import Config, LoraConfig
from moonmill.config_io import dump_config
from moonmill.errors import ConfigError, MoonmillError
from moonmill.trainer.export import export
from moonmill.trainer.learner import Learner
from tests.trainer.conftest import config_of, sampled
from tests.trainer.test_checkpoint import files_up_to

TOKENS = torch.tensor([[1, 5, 9, 2, 11, 7]])


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=TOKENS).logits
    return result


def make_run(folder: Path, config: Config) -> Path:
    """A run directory with a checkpoint after two steps."""
    learner = Learner(config)
    for seed in range(2):
        learner.step(sampled(Path(config.model.path), seed))
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config))
    learner.checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def base(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy with a chat format beside it."""
    folder = tmp_path_factory.mktemp("base") / "base"
    shutil.copytree(model_path, folder)
    (folder / "moonmill.json").write_text('{"renderer": "qwen3"}')
    return folder


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained an adapter, with a learning rate that moves it."""
    return make_run(tmp_path_factory.mktemp("lora") / "run", config_of(base, lora=LoraConfig(r=4, alpha=64)))


def policy(run: Path) -> Path:
    return run / "checkpoints" / "step-000002" / "policy"


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "moonmill", "export", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_merged_model_computes_what_the_adapter_does(run: Path, base: Path, tmp_path: Path) -> None:
    done = command(run, "--merge", "--out", tmp_path / "new" / "merged", "--json")
    assert done.returncode == 0, done.stderr
    merged = tmp_path / "new" / "merged"
    assert json.loads(done.stdout) == {
        "folder": str(merged),
        "kind": "model",
        "version": 2,
        "source": str(policy(run)),
        "base": str(base),
    }
    assert {f.name for f in merged.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "moonmill.json",
        "tokenizer.json",
    }
    assert len({f.stat().st_mode for f in merged.iterdir()}) == 1, "whoever may read one may read all"
    loaded = AutoModelForCausalLM.from_pretrained(merged)
    expected = logits(AutoModelForCausalLM.from_pretrained(policy(run)))
    assert (logits(loaded) - expected).abs().max() < 1e-5
    assert (logits(AutoModelForCausalLM.from_pretrained(base)) - expected).abs().max() > 1e-3
    assert set(load_file(merged / "model.safetensors")) == set(load_file(base / "model.safetensors"))


def test_a_merged_model_keeps_the_dtype_of_its_base(model_path: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).save_pretrained(base)
    shutil.copyfile(model_path / "tokenizer.json", base / "tokenizer.json")
    run = make_run(tmp_path / "run", config_of(base, lora=LoraConfig(r=4)))
    export(policy(run), tmp_path / "out", merge=True)
    assert {w.dtype for w in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}


def test_without_merging_an_adapter_stays_one(run: Path, base: Path, tmp_path: Path) -> None:
    assert len({f.stat().st_mode for f in policy(run).iterdir()}) == 1
    (tmp_path / "out").mkdir()
    result = CliRunner().invoke(cli, ["export", str(run), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.output) == (
        0,
        f"wrote {tmp_path / 'out'}, version 2: an adapter on {base}, a copy of {policy(run)}\n",
    )
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == {
        f.name: f.read_bytes() for f in policy(run).iterdir()
    }


@pytest.mark.parametrize("merge", [False, True])
def test_a_whole_model_is_copied(model_path: Path, tmp_path: Path, merge: bool) -> None:
    run = make_run(tmp_path / "run", config_of(model_path))
    export(policy(run), tmp_path / "out", merge=merge)
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == {
        f.name: f.read_bytes() for f in policy(run).iterdir()
    }


def test_a_folder_with_something_in_it_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        export(policy(run), tmp_path, merge=False)
    with pytest.raises(ConfigError, match="is a file"):
        export(policy(run), tmp_path / "file", merge=True)
    with pytest.raises(ConfigError, match="lies in what is to be exported"):
        export(policy(run), policy(run) / "new", merge=False)
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("merge", [False, True])
def test_on_a_full_disk_nothing_is_left(run: Path, tmp_path: Path, merge: bool) -> None:
    with files_up_to(2000), pytest.raises(MoonmillError, match=r"cannot write .*File too large"):
        export(policy(run), tmp_path / "out", merge=merge)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("merge", [False, True])
def test_a_damaged_adapter_is_told(run: Path, tmp_path: Path, merge: bool) -> None:
    shutil.copytree(policy(run), tmp_path / "adapter")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"adapter_model.safetensors cannot be read, so there is no adapter"):
        export(tmp_path / "adapter", tmp_path / "out", merge=merge)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"adapter_model.safetensors"):
        export(tmp_path / "adapter", tmp_path / "out", merge=merge)
    assert [f.name for f in tmp_path.iterdir()] == ["adapter"]


def test_an_adapter_that_does_not_fit_its_base_is_told(run: Path, model_path: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(policy(run), adapter)
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {name: tensor[:, :-1].contiguous() for name, tensor in weights.items()}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(MoonmillError, match=r"cannot merge .*adapter into "):
        export(adapter, tmp_path / "out", merge=True)
    assert [f.name for f in tmp_path.iterdir()] == ["adapter"]


def test_an_adapter_without_its_base_is_copied_but_not_merged(run: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(policy(run), adapter)
    description = json.loads((adapter / "adapter_config.json").read_text())
    description["base_model_name_or_path"] = "/gone/away"
    (adapter / "adapter_config.json").write_text(json.dumps(description))
    with pytest.raises(
        ConfigError, match=r"without its base: the model folder /gone/away does not exist\. Bring it back"
    ):
        export(adapter, tmp_path / "merged", merge=True)
    assert export(adapter, tmp_path / "copy", merge=False).kind == "adapter"
