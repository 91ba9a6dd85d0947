"""From logits to tokens and log-probabilities."""

import math

import pytest
import torch

from moonmill.agents.engine.sampling import draw, generator, processed_logprobs

PROBABILITIES = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
LOGITS = PROBABILITIES.log() + 3.0


def probabilities(**how: object) -> list[float]:
    return processed_logprobs(LOGITS, **how).exp()[0].tolist()  # type: ignore[arg-type]


def test_without_processing_it_is_the_log_softmax() -> None:
    assert probabilities() == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_temperature_divides_the_logits() -> None:
    squares = [0.25, 0.09, 0.0225, 0.0025]
    assert probabilities(temperature=0.5) == pytest.approx([s / sum(squares) for s in squares])


def test_top_k_keeps_the_likeliest_and_normalises_again() -> None:
    assert probabilities(top_k=2) == pytest.approx([0.625, 0.375, 0, 0])


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    assert probabilities(top_k=9) == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_top_k_keeps_those_tied_to_the_last() -> None:
    tied = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    kept = processed_logprobs(tied, top_k=2).isfinite()[0].tolist()
    assert kept == [True, True, True, False]


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    assert probabilities(top_p=0.6) == pytest.approx([0.625, 0.375, 0, 0])


def test_top_p_always_keeps_the_likeliest() -> None:
    assert probabilities(top_p=0.01) == pytest.approx([1, 0, 0, 0])


def test_top_p_counts_in_what_top_k_left() -> None:
    # After top-k 3: 0.526, 0.316, 0.158. The first two have 0.84 of that, and 0.8 of the whole.
    assert probabilities(top_k=3, top_p=0.82) == pytest.approx([0.625, 0.375, 0, 0])


def test_temperature_comes_before_top_p() -> None:
    # At T = 0.5 the first token alone has 0.685.
    assert probabilities(temperature=0.5, top_p=0.6) == pytest.approx([1, 0, 0, 0])


def test_greedy_reports_the_distribution_as_it_was() -> None:
    assert probabilities(temperature=0.0, top_p=0.1, top_k=1) == pytest.approx([0.5, 0.3, 0.15, 0.05])


def test_every_row_has_its_own_parameters() -> None:
    rows = processed_logprobs(
        LOGITS.repeat(4, 1),
        temperature=torch.tensor([1.0, 0.5, 0.0, 1.0]),
        top_p=torch.tensor([1.0, 1.0, 0.1, 0.6]),
        top_k=torch.tensor([2, 0, 1, 0]),
    )
    expected = [{"top_k": 2}, {"temperature": 0.5}, {"temperature": 0.0}, {"top_p": 0.6}]
    for row, how in zip(rows.exp().tolist(), expected, strict=True):
        assert row == pytest.approx(probabilities(**how))


def test_a_kept_token_is_in_the_support_and_counts() -> None:
    found = processed_logprobs(LOGITS, top_k=1, keep=torch.tensor([2])).exp()[0].tolist()
    assert found == pytest.approx([0.5 / 0.65, 0, 0.15 / 0.65, 0])


def test_keeping_a_token_that_is_in_changes_nothing() -> None:
    assert probabilities(top_p=0.6, keep=torch.tensor([1])) == pytest.approx(probabilities(top_p=0.6))


def test_gradients_reach_the_support_only() -> None:
    logits = LOGITS.clone().requires_grad_()
    processed_logprobs(logits, temperature=2.0, top_k=2)[0, 0].backward()
    gradient = logits.grad[0].tolist()  # type: ignore[index]
    # Of the tempered, renormalised pair: d log p0 / d logit = (1[i=0] - p_i) / T.
    second = math.sqrt(0.3) / (math.sqrt(0.5) + math.sqrt(0.3))
    assert gradient == pytest.approx([second / 2, -second / 2, 0, 0], abs=1e-6)


def test_half_precision_is_computed_in_single() -> None:
    assert processed_logprobs(LOGITS.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.96, 3)])
def test_a_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    assert draw(LOGITS.log_softmax(-1), torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_a_token_out_of_the_support_is_never_drawn(uniform: float) -> None:
    logprobs = torch.tensor([[-math.inf, 0.0, -math.inf]])
    assert draw(logprobs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [1]


def test_draws_follow_the_distribution() -> None:
    uniforms = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = draw(PROBABILITIES.log().expand(20_000, -1), uniforms)
    assert (tokens.bincount(minlength=4) / 20_000).tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.015)


def test_a_seed_gives_the_same_stream_and_none_a_fresh_one() -> None:
    assert generator(7).random() == generator(7).random()
    assert generator(None).random() != generator(None).random()
