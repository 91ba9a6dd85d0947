"""What results and progress look like, on a terminal and elsewhere."""

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from moonmill.cli.eval_tables import print_contrasts, print_results
from moonmill.cli.eval_targets import settings
from moonmill.cli.figures import number, seconds, share
from moonmill.cli.output import console, print_json, table
from moonmill.cli.progress import LiveReporter, PlainReporter, eval_text, reporting, sparkline, step_text
from moonmill.cli.tables import changes, print_summary
from moonmill.cli.transcripts import print_rollout
from moonmill.reporting import (
    Alike,
    Estimate,
    EvalResult,
    Failure,
    LevelResult,
    Spread,
    StalenessSummary,
    StepLine,
    Summary,
)
from moonmill.trainer.eval_compare import Contrast, EvalComparison, Paired
from moonmill.types import (
    Action,
    Message,
    Observation,
    Rollout,
    Sampling,
    Status,
    StopReason,
    Task,
    ToolCall,
    ToolFault,
    Usage,
)


def evaluation(label: str, success: float, temperature: float = 1.0, version: int = 0) -> EvalResult:
    return EvalResult(
        label=label,
        version=version,
        temperature=temperature,
        samples=600,
        success=success,
        low=success - 0.04,
        high=success + 0.04,
        mean_reward=success,
        by_level={"1": LevelResult(300, success + 0.1), "2": LevelResult(300, success - 0.1)},
        turns=3.25,
        tool_error_share=0.02,
        truncated=0.05,
        metrics={"calls": 1.5},
        failed=1,
        failures=(Failure("prompt_too_long", 1, "the prompt has 530 tokens"),),
    )


SUMMARY = Summary(
    run="runs/demo",
    status="finished",
    steps=138,
    version=130,
    evals=(
        evaluation("before", 0.4),
        evaluation("before", 0.6, 0.0),
        evaluation("after", 0.75),
        evaluation("after", 0.8, 0),
    ),
    rollouts_trained=8_832,
    rollouts_finished=8_960,
    pending=115,
    truncated=0.25,
    metrics={"calls": 2.0},
    dropped={"stale": 3, "finished late": 9},
    failed={"failed: env_error": 1},
    tool_faults=(ToolFault("calculate", "ZeroDivisionError", 1234, "division by zero [env.py:3]\n" + "x" * 300),),
    staleness=StalenessSummary(1.25, 3.0, 4),
    masked_share_mean=0.0041,
    probe_difference_max=2.4e-6,
    generation_seconds=200,
    learning_seconds=180,
    wall_seconds=245,
    overlap=0.94,
    tokens_per_second=12_345.6,
    waits={"learner waits for rollouts": 33.0},
    sandboxes={"created": 1208, "reused": 640},
    sandbox_seconds=0.31,
)
STEP = StepLine(
    step=3,
    steps_total=138,
    version=2,
    reward=0.38,
    success=0.375,
    staleness_mean=1.1,
    staleness_max=3,
    masked_share=0.003,
    ratio_std=0.03,
    entropy=0.9,
    explained_variance=0.3,
    tokens_per_second=12000.4,
    rollouts=64,
    dropped=2,
    failed=0,
    tool_errors=0.02,
    truncated=0.125,
    seconds=1.3,
)


def printed(value: Summary | Rollout, terminal: bool = False) -> str:
    stream = io.StringIO()
    out = Console(file=stream, force_terminal=True, width=140, markup=False) if terminal else console(stream)
    (print_summary if isinstance(value, Summary) else print_rollout)(out, value)
    return stream.getvalue()


def test_a_summary_has_every_figure_on_its_line():
    text = printed(SUMMARY)
    lines = [re.sub(r"  +", "  ", line.rstrip()) for line in text.splitlines()]
    assert lines[0] == "runs/demo: finished, 138 steps, version 130"
    assert "before  1  600  40.0%  36.0% to 44.0%  50.0%  30.0%  0.400  3.2  2.0%  5.0%  1.500  1" in lines
    assert "T = 1: 40.0% before, 75.0% after: +35.0 points" in lines
    assert "T = 0: 60.0% before, 80.0% after: +20.0 points" in lines
    assert "rollouts  8,960 finished, 8,832 trained on, 115 pending" in lines
    assert "truncated  25.0%" in lines
    assert "metric: calls  2.000 in the last steps" in lines
    assert "dropped  12 (finished late 9, stale 3)" in lines
    assert "failed or unscored  1 (failed: env_error 1)" in lines
    assert "staleness  mean 1.25, 95% at most 3, maximum 4" in lines
    assert "masked tokens  0.41%" in lines
    assert "engine and learner  log-probabilities at most 2.4e-06 apart after a hand-over" in lines
    assert "time  4 min 05 s; generation 3 min 20 s, learning 3 min 00 s" in lines
    assert "overlap  generation ran during 94.0% of the learning time" in lines
    assert "trained tokens/s  12,346" in lines
    assert "wait: learner waits for rollouts  33.0 s" in lines
    assert "sandboxes  1,208 created, 640 reused; an episode waits 0.3 s for its own and others" in lines
    assert any(
        line.startswith("calculate  ZeroDivisionError  1,234  division by zero [env.py:3] xxx") for line in lines
    )


def test_where_there_is_no_terminal_there_are_no_escape_codes_and_no_cut_lines():
    text = printed(SUMMARY)
    assert text.isascii() or not set(text) & set("─│┃━╭\x1b")
    assert "tool errors  truncated  calls  failed" in text


def test_a_terminal_gets_rules_and_styles():
    assert "─" in printed(SUMMARY, terminal=True)
    assert "\x1b[" in printed(SUMMARY, terminal=True)


def test_a_run_that_has_just_begun_can_be_shown():
    text = printed(Summary(run="runs/demo", status="running", steps=0, version=0))
    assert text.startswith("runs/demo: running, 0 steps, version 0\n")
    assert "masked tokens" in text
    assert "—" in text
    assert "none" in text


def test_a_change_needs_two_evaluations_at_one_temperature():
    assert changes([evaluation("before", 0.4), evaluation("after", 0.5, 0.0)]) == []


def test_a_change_over_other_tasks_says_so():
    fewer = msgspec.structs.replace(evaluation("after", 0.5), samples=100)
    (line,) = changes([evaluation("before", 0.4), fewer])
    assert line.endswith("+10.0 points (not the same tasks: 600 samples before, 100 now)")


def test_a_model_alone_says_in_which_context_it_is_evaluated():
    policy = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
    assert settings("calculator-v0", str(policy), ()).model.max_length == 512
    assert settings("calculator-v0", str(policy), ("model.max_length=99",)).model.max_length == 99


def test_a_summary_of_a_failed_run_tells_why_and_what_it_trained_with():
    summary = msgspec.structs.replace(
        SUMMARY,
        status="failed",
        error="the engine died 4 times",
        preset="sao",
        lr=2e-4,
        critic_lr=2e-3,
        critic={"value_bias": -0.097},
        episode_seconds=Spread(1.0, 2.5, 71.0),
        tool_seconds=Spread(0.1, 0.2, 70.0),
    )
    lines = [re.sub(r"  +", "  ", line.strip()) for line in printed(summary).splitlines()]
    assert lines[1] == "the engine died 4 times"
    assert "trained with  sao; learning rate 0.0002, critic 0.002" in lines
    assert "an episode takes  median 1.0 s, 95% at most 2.5 s, maximum 1 min 11 s" in lines
    assert "of that for its tools  median 0.1 s, 95% at most 0.2 s, maximum 1 min 10 s" in lines
    assert "critic  values too low by 0.097" in lines


@pytest.mark.parametrize(
    ("alike", "critic_lr", "told", "advice"),
    [
        (Alike(True, 0.0, 0, 40), None, None, None),
        (Alike(True, 0.375, 2, 40), None, "37.5% of the rollouts trained on have the reward of all others in", None),
        (
            Alike(True, 0.75, 12, 40),
            None,
            "in their group; in 12 of 40 steps all have",
            "nothing: take tasks .*zero_std",
        ),
        (
            Alike(True, 1.0, 40, 40),
            None,
            "100.0% of the rollouts",
            "nothing: take tasks .* a reward with steps between$",
        ),
        (Alike(False, 0.75, 12, 40), 1e-5, "in their batch; in 12 of 40", "they teach the critic, .*success_rate"),
        (Alike(False, 0.75, 12, 40), None, "in their batch; in 12 of 40", "only where their tasks .*success_rate"),
    ],
)
def test_a_summary_tells_how_many_rollouts_taught_little_and_what_to_do_where_it_is_most(
    alike, critic_lr, told, advice
):
    text = printed(msgspec.structs.replace(SUMMARY, alike=alike, critic_lr=critic_lr))
    assert ("alike rewards" in text) == (told is not None)
    assert told is None or told in text
    assert ("a reward with steps between" in text) == (advice is not None)
    assert advice is None or re.search(advice, text, re.MULTILINE)


def test_of_rollouts_that_are_alike_because_they_were_cut_off_that_is_told() -> None:
    text = printed(msgspec.structs.replace(SUMMARY, alike=Alike(True, 1.0, 40, 40), critic_lr=None, truncated=0.96))
    assert "take more room, for 96.0% were cut off (sampling.max_tokens, model.max_length), tasks that" in text


def test_a_summary_in_json_has_every_key(capsys):
    print_json(Summary(run="r", status="running", steps=0, version=0))
    data = json.loads(capsys.readouterr().out)
    assert set(data) == set(Summary.__struct_fields__)
    assert data["overlap"] is None


def test_a_step_is_one_line():
    assert step_text(STEP) == (
        "step 3/138  v2  reward 0.380  success 37.5%  staleness 1.1 (max 3)  masked 0.30%  ratio std 0.030  "
        "entropy 0.900  expl. var. 0.300  tool errors 2.0%  truncated 12.5%  dropped 2  12,000 tok/s  1.3 s"
    )


def test_a_step_leaves_out_what_was_not_measured():
    assert step_text(StepLine(1, 2, 1)) == "step 1/2  v1  staleness 0.0 (max 0)  0 tok/s  0.0 s"


def test_what_is_switched_on_leaves_a_trace_in_the_line():
    assert "  entropy bonus 0.009  weights at bound 0.120  " in step_text(
        StepLine(1, 2, 1, switched_on={"entropy bonus": 0.009, "weights at bound": 0.12})
    )


def test_a_step_that_trained_the_critic_alone_says_so():
    assert step_text(StepLine(1, 2, 0)).startswith("step 1/2 (critic warm-up)  v0")


def test_an_evaluation_is_one_line():
    assert eval_text(evaluation("step 20", 0.5, 0.7)) == (
        "step 20 at T = 0.7: success 50.0% (46.0% to 54.0%) of 600, turns 3.2, tool errors 2.0%, truncated 5.0%, "
        "failed 1 (1 prompt_too_long)"
    )


def test_progress_elsewhere_than_on_a_terminal_is_plain_lines_on_stderr(capsys):
    with reporting() as reporter:
        assert isinstance(reporter, PlainReporter)
        reporter.phase("training")
        reporter.step(STEP)
        reporter.eval(evaluation("after", 0.5))
        reporter.warn("engine restarted")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "training",
        step_text(STEP),
        eval_text(evaluation("after", 0.5)),
        "warning: engine restarted",
    ]


def test_progress_on_a_terminal_keeps_evaluations_and_warnings():
    stream = io.StringIO()
    out = Console(file=stream, force_terminal=True, width=140, markup=False, highlight=False)
    with LiveReporter(out) as reporter:
        reporter.phase("training")
        reporter.step(STEP)
        reporter.eval(evaluation("after", 0.5))
        reporter.warn("engine restarted")
    shown = stream.getvalue()
    assert "training" in shown
    assert "3/138" in shown
    assert eval_text(evaluation("after", 0.5)) in shown
    assert "warning: engine restarted" in shown


def test_a_course_is_drawn_from_its_lowest_to_its_highest_value():
    assert sparkline([0.0, 0.25, 0.5, 1.0]) == "▁▃▅█"
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_durations_are_for_people(value, text):
    assert seconds(value) == text


def test_what_was_not_measured_is_a_dash():
    assert share(None) == number(None) == "—"


def test_a_rollout_reads_as_a_conversation():
    rollout = Rollout(
        id="r-1",
        env="calculator-v0",
        task=Task("2*3?", id="train-7", level="2"),
        status=Status.FINISHED,
        stop_reason=StopReason.ANSWERED,
        messages=(
            Message("user", "2*3? [bold]"),
            Message(
                "assistant", tool_calls=(ToolCall("c", "calculate", {"a": 2}), ToolCall("d", "x", "{", "not JSON"))
            ),
            Message("tool", "6"),
            Message("assistant", "6"),
        ),
        segments=(Observation((1, 2)), Action((3,), (-0.1,), (4,)), Observation((5,)), Action((6,), (-0.1,), (5,))),
        reward=1.0,
        rewards={"correct": 1.0},
        metrics={"calls": 2.0},
        tool_faults=(ToolFault("x", "unknown_tool", 1, "no tool x"),),
    )
    assert printed(rollout).splitlines() == [
        "r-1 (train-7, level 2)",
        "user: 2*3? [bold]",
        'assistant: calls calculate {"a": 2}',
        "assistant: calls x { (malformed: not JSON)",
        "tool: 6",
        "assistant: 6",
        "=> finished, answered, reward 1.000, 2 turns, versions 4 to 5, 2 action tokens of 5",
        "   correct 1.000, calls 2.000",
        "   tool fault: x, unknown_tool, 1×: no tool x",
    ]


def test_a_failed_rollout_shows_its_error():
    rollout = Rollout("r", "e-v0", Task("?"), Status.FAILED, StopReason.ENV_ERROR, error="boom (env.py:3)")
    assert printed(rollout).splitlines()[-2:] == [
        "=> failed, env_error, unscored, 0 turns",
        "   error: boom (env.py:3)",
    ]


def test_an_evaluations_table_has_its_intervals_its_levels_and_what_failed():
    half = Estimate(0.5, 0.25, 0.75, 4)
    level = LevelResult(8, 0.5, 0.4, 0.6, half, {"pass@2": Estimate(0.75, 0.5, 1.0, 4)})
    result = msgspec.structs.replace(
        evaluation("e-v0", 0.5),
        reward=half,
        pass_at=level.pass_at,
        by_level={"easy": level},
        usage=Usage(12_000, 345),
        cost=0.0123,
    )
    unmeasured = msgspec.structs.replace(evaluation("f-v0", 0.5), by_level={})
    out = io.StringIO()
    print_results(console(out), [result, unmeasured], Sampling(max_tokens=64, top_p=0.9))
    lines = [re.sub(r"  +", "  ", line.strip()) for line in out.getvalue().splitlines()]
    assert lines[0] == (
        "environment  T  tasks  samples  success  95% interval  pass@2  95% interval  reward  95% interval  turns  "
        "tool errors  truncated  calls  prompt tokens  completion tokens  cost  failed"
    )
    assert lines[1] == (
        "e-v0  1  4  600  50.0%  46.0% to 54.0%  75.0%  50.0% to 100.0%  0.500  0.250 to 0.750  3.2  2.0%  5.0%  "
        "1.500  12,000  345  0.0123  1"
    )
    assert lines[2].startswith("f-v0  1  —  600  50.0%  46.0% to 54.0%  —  —  —  —  3.2")
    assert "e-v0  1  easy  4  8  50.0%  40.0% to 60.0%  75.0%  50.0% to 100.0%  0.500  0.250 to 0.750" in lines
    assert "sampled: at most 64 tokens a turn (sampling.max_tokens), top_p 0.9" in lines
    assert any(line.startswith("e-v0  1  prompt_too_long  1") for line in lines)


def test_a_comparisons_table_tells_the_difference_and_what_was_left_out():
    success = Paired(0.5, 0.75, Estimate(0.25, -0.1, 0.6, 8), 3, 1, 0.625)
    reward = Paired(0.5, 0.7, Estimate(0.2, 0.1, 0.3, 8), 5, 0, 0.0625)
    contrast = Contrast("e-v0", 0.0, 0.7, 8, success, reward, tuple(f"eval-{n}" for n in range(12)), ())
    out = io.StringIO()
    print_contrasts(console(out), EvalComparison("a", "b", {"player.path": ("x", "y")}, (contrast,)))
    lines = [re.sub(r"  +", "  ", line.strip()) for line in out.getvalue().splitlines()]
    assert lines[:3] == ["A: a", "B: b", "player.path: 'x' in A, 'y' in B"]
    assert "e-v0  0 and 0.7  8  success  50.0%  75.0%  +25.0  -10.0 to +60.0  3  1  0.62" in lines
    assert "e-v0  0 and 0.7  8  reward  0.500  0.700  +0.200  +0.100 to +0.300  5  0  0.062" in lines
    assert lines[-1].startswith("e-v0 at T = 0 and 0.7: 12 tasks scored in A alone: eval-0, eval-1")
    assert lines[-1].endswith("eval-9 and 2 more")


def test_a_table_elsewhere_than_on_a_terminal_has_no_spaces_at_the_ends_of_its_lines():
    out = io.StringIO()
    grid = table(console(out), "name", "what")
    grid.add_row("a", "[short]")
    grid.add_row("b", "x" * 200)
    console(out).print(grid)
    assert out.getvalue() == f"name  what\na     [short]\nb     {'x' * 200}\n"
    console(out).print("text  ")
    assert out.getvalue().endswith("\ntext  \n")
