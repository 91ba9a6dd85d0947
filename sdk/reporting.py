"""What a run tells its user while it goes on, and what is left to say at its end.

Plain frozen data and one Protocol: the trainer reports, whoever started it decides how that looks. A share or mean that
nothing was measured for is None, never 0.
"""

from typing import Literal, Protocol

from msgspec import Struct

from moonmill.types import ToolFault, Usage


class StepLine(Struct, frozen=True):
    """One learner step. Shares are between 0 and 1, seconds are wall-clock."""

    step: int
    """Counted from 1."""
    steps_total: int
    """Of the whole run."""
    version: int
    """The newest version after the step."""
    reward: float | None = None
    """Mean over the rollouts trained on."""
    success: float | None = None
    """Share of them whose reward is at least `eval.success`."""
    alike_in: Literal["the batch", "each group"] | None = None
    """Within which all their rewards are the same; None where they differ."""
    staleness_mean: float = 0.0
    staleness_max: int = 0
    masked_share: float | None = None
    """Share of action tokens that the objective left out."""
    ratio_std: float | None = None
    entropy: float | None = None
    explained_variance: float | None = None
    """Of the critic; None in the modes without one."""
    switched_on: dict[str, float] = {}
    """Figures of what not every algorithm does, by their words."""
    tokens_per_second: float = 0.0
    """Tokens trained on, over the seconds of the step."""
    rollouts: int = 0
    """Trained on in this step; the next two count what was given up since the step before."""
    dropped: int = 0
    failed: int = 0
    tool_errors: float = 0.0
    """Share of the rollouts in which a tool call failed."""
    truncated: float = 0.0
    """Share of the rollouts that a limit ended."""
    seconds: float = 0.0
    """Since the step before."""
    at_most: bool = False
    """`steps_total` is a bound: nobody knows yet when the critic's pre-training ends."""


class Estimate(Struct, frozen=True):
    """A mean over tasks."""

    value: float
    low: float
    """95% interval, with `high`: of a bootstrap that draws whole tasks."""
    high: float
    tasks: int
    """How many it is over."""


class LevelResult(Struct, frozen=True):
    """The tasks of one level of difficulty."""

    samples: int
    success: float
    low: float = 0.0
    high: float = 1.0
    reward: Estimate | None = None
    pass_at: dict[str, Estimate] = {}


class Failure(Struct, frozen=True):
    """Rollouts that could not be scored, for one reason."""

    reason: str
    """The rollouts' stop reason, or `unscored`."""
    count: int
    example: str
    """The error of the last one."""


class EvalResult(Struct, frozen=True):
    """One evaluation at one temperature. Failed and unscored rollouts are counted in `failed`, not in the figures."""

    label: str
    """When: `before`, `step 20`, `after`. Of `moonmill eval` the environment."""
    version: int | None
    """None of a model that is no run's checkpoint."""
    temperature: float
    samples: int
    """Rollouts that were scored."""
    success: float
    """Mean over the tasks of the share of a task's samples whose reward is at least `eval.success`: pass@1."""
    low: float
    """95% interval of `success`, with `high`: Wilson's where each task has one sample, else as in `reward`."""
    high: float
    mean_reward: float
    """Mean over the tasks of a task's mean."""
    reward: Estimate | None = None
    """The same with its interval."""
    pass_at: dict[str, Estimate] = {}
    """`pass@2` and so on, where tasks have several samples: the chance that one of so many is a success, over the tasks
    that have so many scored."""
    by_level: dict[str, LevelResult] = {}
    turns: float = 0.0
    """Mean assistant turns of a rollout."""
    tool_error_share: float = 0.0
    """Share of the rollouts in which a tool call failed."""
    truncated: float = 0.0
    """Share of the rollouts that a limit ended."""
    metrics: dict[str, float] = {}
    """Mean of each `@metric` over the rollouts that have it."""
    usage: Usage | None = None
    """Tokens of all rollouts, the failed ones too; None where nobody tells."""
    cost: float | None = None
    """What they cost, where prices were given."""
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    """Why those failed, the most frequent reason first."""
    tool_faults: tuple[ToolFault, ...] = ()
    """Exceptions and wrong calls in tools, summed by tool and kind."""


class StalenessSummary(Struct, frozen=True):
    """Staleness of the rollouts trained on, in versions."""

    mean: float = 0.0
    p95: float = 0.0
    max: int = 0


class Spread(Struct, frozen=True):
    """How a figure lies over the rollouts."""

    median: float
    p95: float
    max: float


class Alike(Struct, frozen=True):
    """Rollouts that were trained on though their reward is that of all others in their group, or batch."""

    in_groups: bool
    """They have groups. Else the batch of a step is what they are compared in."""
    rollouts: float
    """Share of all that were trained on."""
    steps: int
    """Learner steps of which all rollouts were such,"""
    of_steps: int
    """of so many that trained on any."""


class Summary(Struct, frozen=True):
    """A run in figures, as its directory tells them."""

    run: str
    """The run directory."""
    status: str
    """`finished`, `running`, `stopped` (by Ctrl-C), `failed` (with an error) or `killed`."""
    steps: int
    version: int
    error: str | None = None
    """Why it failed, where it did."""
    preset: str | None = None
    """`algorithm.preset`; None, as the learning rates, where its config cannot be read."""
    lr: float | None = None
    """`learner.lr`, times what fall-backs have made of it."""
    critic_lr: float | None = None
    """The critic's, likewise; None without one."""
    evals: tuple[EvalResult, ...] = ()
    rollouts_trained: int = 0
    rollouts_finished: int = 0
    pending: int = 0
    """Finished, neither trained on nor given up so far: of a stopped run, they wait for `--resume`."""
    alike: Alike | None = None
    """How far rewards told rollouts apart; None before the first step."""
    truncated: float | None = None
    """Share of the finished rollouts that a limit ended."""
    metrics: dict[str, float] = {}
    """Mean of each `@metric` over the last 10 steps."""
    dropped: dict[str, int] = {}
    """Rollouts given up, by reason."""
    failed: dict[str, int] = {}
    """Rollouts that failed or were unscored, by reason."""
    tool_faults: tuple[ToolFault, ...] = ()
    """Exceptions and wrong calls in tools, summed over the run by tool and kind; all unknown tools are one."""
    staleness: StalenessSummary = StalenessSummary()
    masked_share_mean: float | None = None
    critic: dict[str, float] = {}
    """Health of the critic at the end: `explained_variance_smoothed`, `value_bias`, `value_calibration_error`."""
    alarms: dict[str, int] = {}
    """Alarms at signs of a collapse, by name."""
    fall_backs: int = 0
    """How often the run has gone back to a checkpoint after an alarm."""
    probe_difference_max: float | None = None
    """Largest difference between an engine's and the learner's answer to the probe, after a hand-over."""
    generation_seconds: float = 0.0
    learning_seconds: float = 0.0
    wall_seconds: float = 0.0
    overlap: float | None = None
    """Share of the learning time during which generation ran as well."""
    tokens_per_second: float = 0.0
    """Tokens trained on, over the run's wall-clock."""
    waits: dict[str, float] = {}
    """Seconds waited, by cause."""
    episode_seconds: Spread | None = None
    """How long the finished rollouts took, each from its beginning to its end,"""
    tool_seconds: Spread | None = None
    """and how much of that for the environment: `reset`, tools, `step`."""
    sandboxes: dict[str, int] = {}
    """How many were `created`, `reused` (stood ready when they were asked for) and `failed`."""
    sandbox_seconds: float | None = None
    """Mean seconds that an episode waited for sandboxes."""


class Reporter(Protocol):
    """Who listens to a run. Methods are called from the run's event loop and return at once."""

    def phase(self, text: str) -> None:
        """The run turns to something new: `starting the engine`, `evaluating`."""
        ...

    def step(self, line: StepLine) -> None:
        """A learner step is done."""
        ...

    def eval(self, result: EvalResult) -> None:
        """An evaluation is done."""
        ...

    def warn(self, text: str) -> None:
        """Something went wrong that the run got over."""
        ...
