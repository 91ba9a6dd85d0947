"""Mathematics on one consumer GPU: its configs, on tiny models of the same architectures, without a GPU."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.examples.rtx5090 import (
    ALGORITHMS,
    EXAMPLES,
    FAMILIES,
    LOOKED_AT,
    assert_learned,
    looked_at,
    make_tiny,
    trained,
    write_problems,
)

EXAMPLE = EXAMPLES / "rtx5090-math"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(family, tmp_path_factory.mktemp(family))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_config_is_valid_but_for_the_gpu(
    algorithm: str, family: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problems(tmp_path)
    monkeypatch.chdir(tmp_path)
    checks = looked_at(EXAMPLE / f"{algorithm}.yaml", family, tiny)
    assert {name: checks[name].detail for name in LOOKED_AT if not checks[name].ok} == {}


@pytest.mark.parametrize(("algorithm", "family"), [("sao", "gemma4"), ("grpo", "qwen3")], indirect=["family"])
def test_it_trains_from_end_to_end(algorithm: str, family: str, tiny: Path, tmp_path: Path) -> None:
    write_problems(tmp_path)
    assert_learned(trained(EXAMPLE / f"{algorithm}.yaml", family, tiny, tmp_path, "engine.type=embedded"))
    weights = load_file(max((tmp_path / "run" / "checkpoints").iterdir()) / "policy" / "adapter_model.safetensors")
    places = {name.partition(".layers.")[0] for name in weights}
    assert places == {"base_model.model.model" + ".language_model" * (family == "gemma4")}


@pytest.mark.parametrize("family", ["gemma4"], indirect=True)
def test_it_trains_with_the_base_in_4_bits(tiny: Path, tmp_path: Path) -> None:
    write_problems(tmp_path)
    more = ("engine.type=embedded", "learner.quantization=4bit")
    steps = trained(EXAMPLE / "sao.yaml", "gemma4", tiny, tmp_path, *more)
    assert [step.version for step in steps if step.version] == [1, 2]
    # The engine's base is not quantized, so that they are near each other, and not more.
    assert 1e-4 < max(step.metrics["mismatch_max"] for step in steps if "mismatch_max" in step.metrics) < 2


@pytest.mark.vllm
@pytest.mark.parametrize(("algorithm", "family"), [("sao", "gemma4"), ("grpo", "qwen3")], indirect=["family"])
def test_it_trains_on_vllm(algorithm: str, family: str, tiny: Path, tmp_path: Path) -> None:
    write_problems(tmp_path)
    # vLLM for CPUs has no torchvision, which it wants for a Gemma 4 that sees.
    blind = ["engine.vllm.args={hf_overrides: {architectures: [Gemma4ForCausalLM]}}"] * (family == "gemma4")
    more = ("engine.vllm.kv_cache_gib=0.25", *blind)
    assert_learned(trained(EXAMPLE / f"{algorithm}.yaml", family, tiny, tmp_path, *more))
