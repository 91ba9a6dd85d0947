"""Functions in sandboxes on one consumer GPU: its configs, on tiny models of the same architectures, without a GPU."""

from pathlib import Path

import pytest

from tests.examples.rtx5090 import ALGORITHMS, EXAMPLES, LOOKED_AT, assert_learned, looked_at, make_tiny, trained

EXAMPLE = EXAMPLES / "rtx5090-code"


@pytest.mark.parametrize(("algorithm", "family"), [*zip(ALGORITHMS, ("qwen3", "gemma4"), strict=True)])
def test_a_config_is_valid_but_for_the_gpu_and_trains_from_end_to_end(
    algorithm: str, family: str, tmp_path: Path
) -> None:
    tiny, config = make_tiny(family, tmp_path / "tiny"), EXAMPLE / f"{algorithm}.yaml"
    checks = looked_at(config, family, tiny)
    assert {name: checks[name].detail for name in (*LOOKED_AT, "sandbox") if not checks[name].ok} == {}
    assert_learned(trained(config, family, tiny, tmp_path, "engine.type=embedded"))
