"""What is said of a step that is done again."""

from moonmill.trainer.learner_host import differing


def test_a_step_that_gives_other_numbers_than_before_is_noticed() -> None:
    before = {"policy_loss": 0.1, "grad_norm": 0.5, "seconds_policy": 1.0}
    assert differing(before, {**before, "seconds_policy": 2.0}) == ""
    assert differing(before, {**before, "grad_norm": 0.5000001}) == "grad_norm 0.5 then, 0.5000001 now"
    assert differing(before, {"policy_loss": 0.1}) == "grad_norm 0.5 then, None now"
