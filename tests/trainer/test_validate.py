"""What is known before a run begins, each thing said once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from moonmill.algorithm_config import AlgorithmConfig, RunningMeanConfig
from moonmill.config import (
    AsyncConfig,
    Config,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    FiltersConfig,
    LoraConfig,
    ModelConfig,
    SandboxConfig,
    SuccessRateConfig,
)
from moonmill.errors import ConfigError, WorkerDiedError
from moonmill.reporting import EvalResult, StepLine
from moonmill.trainer.checks import Check
from moonmill.trainer.evaluate import Request, evaluate
from moonmill.trainer.run import train
from moonmill.trainer.validate import AT_ONCE, FOR_PLAYING, require_valid, validate
from moonmill.types import Sampling

POLICY = Path(__file__).parents[2] / "examples" / "calculator" / "policy"
ENV = """
from moonmill import MultiTurnEnv, Task, tool
from moonmill.sandboxes import SandboxSpec

class Fine(MultiTurnEnv):
    def tasks(self, split):
        while True:
            yield Task("1+1")

class Round(Fine):
    def tasks(self, split):
        yield Task("1+1")
        yield Task("1+2")

class Numbers(Fine):
    def tasks(self, split):
        for number in range(10**6):
            yield Task(f"{number}+1")

class Wordy(Fine):
    system_prompt = "1+" * 60

class Tools(Fine):
    @tool
    def shout(self, text: str) -> str:
        "Say it loudly."
        return text.upper()

class Several(Tools):
    @tool
    def whisper(self, text: str) -> str:
        "Say it quietly."
        return text.lower()

class Adding(Fine):
    @tool
    def add(self, expression: str) -> str:
        "Called as the calculator is, by a bare expression."
        return "2"

class Counting(Fine):
    @tool
    def count(self, to: int) -> str:
        "Count."
        return str(to)

class Boxed(Fine):
    sandbox = SandboxSpec()

class Imaged(Fine):
    def __init__(self):
        self.sandbox = SandboxSpec(image="python:3.12")

class Broken(Fine):
    def __init__(self):
        raise ValueError("no such data")
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "env.py").write_text(ENV)
    return Config(
        env=EnvConfig(f"{tmp_path / 'env.py'}:Fine"),
        model=ModelConfig(str(POLICY), max_length=64),
        sampling=Sampling(max_tokens=32),
        run_dir=str(tmp_path / "run"),
    )


def found(config: Config) -> dict[str, Check]:
    return {check.name: check for check in validate(config)}


def test_a_good_config_passes_every_check(config: Config) -> None:
    assert all(check.ok for check in validate(config))
    require_valid(config)


@pytest.mark.parametrize(
    ("env", "success_rate", "does_nothing"), [("Fine", True, True), ("Round", True, False), ("Fine", False, False)]
)
def test_what_remembers_tasks_is_told_where_they_never_come_back(
    config: Config, env: str, success_rate: bool, does_nothing: bool
) -> None:
    filters = FiltersConfig(success_rate=SuccessRateConfig(min=0.1) if success_rate else None)
    wanted = replace(config, env=EnvConfig(config.env.id.replace("Fine", env)), async_=AsyncConfig(filters=filters))
    check = found(wanted)["tasks"]
    assert check.ok
    assert check.warning.startswith("async.filters.success_rate does nothing") == does_nothing


def test_a_mean_of_each_task_needs_tasks_that_come_back(config: Config) -> None:
    mean = AlgorithmConfig(advantage=RunningMeanConfig())
    numbers = replace(config, env=EnvConfig(config.env.id.replace("Fine", "Numbers")), algorithm=mean)
    assert "running_mean does nothing" in found(numbers)["tasks"].warning
    # These count up too, but what they ask is always the same.
    assert not found(replace(config, algorithm=mean))["tasks"].warning


def test_an_environment_that_cannot_be_made_is_told_once(config: Config) -> None:
    broken = replace(config, env=EnvConfig(config.env.id.replace("Fine", "Broken")))
    wrong = {name: check for name, check in found(broken).items() if not check.ok}
    assert "no such data" in wrong.pop("environment").detail
    because = "not looked at, because of the environment"
    assert wrong == {name: Check(name, None, because) for name in ("sandbox", "tasks", "prompts")}
    with pytest.raises(ConfigError) as refused:
        require_valid(broken)
    assert len(str(refused.value).splitlines()) == 1


def test_the_provider_and_what_it_enforces_are_told(config: Config) -> None:
    assert found(config)["sandbox"] == Check("sandbox", True, "none is asked for")
    boxed = replace(config, env=EnvConfig(config.env.id.replace("Fine", "Boxed")))
    check = found(replace(boxed, sandbox=SandboxConfig(max_open=3)))["sandbox"]
    assert check.ok
    assert check.detail.startswith("local, at most 3 at once; it enforces here: network, files, disk, ")
    check = found(replace(boxed, sandbox=SandboxConfig(provider="unsafe-subprocess")))["sandbox"]
    assert check == Check(
        "sandbox", True, "unsafe-subprocess, at most 64 at once; NOTHING IS KEPT IN: commands run here, as you"
    )


@pytest.mark.parametrize(
    ("env", "provider", "words"),
    [
        ("Imaged", "local", "Imaged asks for one that cannot be given: the local provider has no images"),
        ("Imaged", "unsafe-subprocess", "unsafe-subprocess has no images"),
        ("Boxed", "tests.envs.providers:Refusing", "user namespaces are not allowed here: allow them"),
        ("Fine", "dokcer", "sandbox.provider: there is no provider 'dokcer': did you mean docker?"),
    ],
)
def test_a_sandbox_that_cannot_be_had_is_told_before_anything_starts(
    config: Config, env: str, provider: str, words: str
) -> None:
    bad = replace(config, env=EnvConfig(config.env.id.replace("Fine", env)), sandbox=SandboxConfig(provider=provider))
    for checks in (AT_ONCE, FOR_PLAYING):
        with pytest.raises(ConfigError) as refused:
            require_valid(bad, checks)
        assert words in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1


def test_the_system_prompt_belongs_to_the_prompt(config: Config) -> None:
    check = found(replace(config, env=EnvConfig(config.env.id.replace("Fine", "Wordy"))))["prompts"]
    assert check.ok is False
    assert "but the context has 64" in check.detail


@pytest.fixture
def template(config: Config, tmp_path: Path) -> Callable[..., Config]:
    """The policy with another chat template and what a config says of it."""

    def make(text: str, env: str, **model: str) -> Config:
        folder = tmp_path / "model"
        shutil.copytree(POLICY, folder)
        (folder / "chat_template.jinja").write_text(text)
        changed = replace(config.model, path=str(folder), **{"renderer": "default", **model})
        model = replace(changed, max_length=500)
        return replace(config, env=EnvConfig(config.env.id.replace("Fine", env)), model=model)

    return make


TURNS = "{% for m in messages %}<user>{{ m.content }}<end>{% endfor %}"
NO_SYSTEM = TURNS.replace("<user>", "<user>{{ raise_exception('no system') if m.role == 'system' }}")


@pytest.mark.parametrize(
    ("text", "env", "tool_format", "problem"),
    [
        (TURNS, "Tools", "", r"cannot read tool calls, and the environment has tools \(shout\).*model.tool_format"),
        (NO_SYSTEM, "Wordy", "", "has no system messages, and task train-0 of .*:Wordy begins with one: say it in"),
        (TURNS.replace("<end>", ""), "Tools", "hermes", "can put nothing behind a turn .*name the model's family"),
    ],
)
def test_what_the_chat_format_cannot_do_is_refused(
    template: Callable[..., Config], text: str, env: str, tool_format: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        require_valid(template(text, env, tool_format=tool_format))


def test_what_the_chat_format_can_do_is_told(template: Callable[..., Config]) -> None:
    checks = found(template(TURNS, "Tools", tool_format="hermes"))
    assert checks["renderer"].detail == "default: system messages, tools, parallel calls, reasoning"
    assert checks["prompts"].ok
    assert not checks["prompts"].warning


def test_a_prompt_that_leaves_less_than_a_turn_may_take_is_warned_of(config: Config) -> None:
    detail = found(config)["prompts"].detail
    longest = int(detail.removeprefix("up to ").partition(" ")[0])
    tight = replace(config, model=replace(config.model, max_length=longest + 5))
    assert found(tight)["prompts"].warning == (
        f"the longest leaves 5 tokens for all that follows, and one turn may take {config.sampling.max_tokens} "
        "(sampling.max_tokens): raise model.max_length"
    )


@pytest.mark.parametrize(
    ("env", "names", "known"),
    [
        ("Several", "shout, whisper", '{"shout":["text"]}'),
        ("Counting", "count", '{"count":["to"]}'),
        ("Tools", "shout", '{"shout":["text"]}'),
    ],
)
def test_a_model_that_is_told_nothing_of_its_tools_is_warned_of(
    config: Config, env: str, names: str, known: str
) -> None:
    wanted = replace(config, env=EnvConfig(config.env.id.replace("Fine", env)))
    check = found(wanted)["prompts"]
    assert check.ok
    assert check.warning.startswith(f"{wanted.env.id} has tools that the model is told nothing of: {names}. Its chat ")
    assert check.warning.endswith(f'"knows_tools": {known}')
    assert require_valid(wanted) == (check.warning,)


@pytest.mark.parametrize("env", ["calculator-v0", "Adding", "Fine"])
def test_a_model_that_knows_its_tools_is_not_warned_of(config: Config, env: str) -> None:
    fine = config.env.id
    known = replace(config, env=EnvConfig(fine.replace("Fine", env) if env[0].isupper() else env))
    assert require_valid(known) == ()


class Warnings:
    """Keeps what is warned of."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, text: str) -> None: ...

    def step(self, line: StepLine) -> None: ...

    def eval(self, result: EvalResult) -> None: ...

    def warn(self, text: str) -> None:
        self.said.append(text)


def test_training_and_evaluation_say_once_what_is_warned_of_before_they_begin(config: Config, tmp_path: Path) -> None:
    nobody = EngineConfig(urls=("http://127.0.0.1:9",), start_timeout=0.1)
    env = EnvConfig(config.env.id.replace("Fine", "Counting"))
    wanted = replace(config, env=env, engine=nobody, eval=EvalConfig(tasks=1))
    warnings = require_valid(wanted)
    assert len(warnings) == 1
    training, evaluation = Warnings(), Warnings()
    with pytest.raises(WorkerDiedError):
        train(wanted, resume=False, reporter=training)
    with pytest.raises(ExceptionGroup):  # there is no engine
        evaluate(Request(wanted, [env]), evaluation, tmp_path)
    assert training.said[:1] == evaluation.said[:1] == [*warnings]
    assert not {*warnings} & {*training.said[1:], *evaluation.said[1:]}


def test_a_folder_without_a_model_is_told_and_what_needs_it_is_not_looked_at(config: Config, tmp_path: Path) -> None:
    checks = found(replace(config, model=ModelConfig(str(tmp_path))))
    assert checks["model"] == Check(
        "model", False, f"model.path: {tmp_path} is not a model folder: it has no config.json"
    )
    assert (checks["renderer"].ok, checks["prompts"].ok) == (None, None)


def test_a_hub_that_cannot_be_reached_is_told_at_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "http://127.0.0.1:9"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", nobody)
    check = found(replace(config, model=ModelConfig("nobody/nothing")))["model"]
    assert check.ok is False
    assert f"the hub {nobody} cannot be reached" in check.detail


def test_a_context_longer_than_the_model_is_told_before_the_model_is_loaded(config: Config) -> None:
    check = found(replace(config, model=replace(config.model, max_length=100_000)))["model"]
    assert check.ok is False
    assert check.detail.startswith("model.max_length: 100000 is more than the 512 positions that the model")


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff"])
def test_a_model_with_a_broken_configuration_is_told(config: Config, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    check = found(replace(config, model=ModelConfig(str(tmp_path))))["model"]
    assert check.ok is False
    assert "config.json cannot be read" in check.detail


@pytest.mark.parametrize("device", ["gpu", "CUDA", "cuda:", "cuda:-1", "cuda:0:1", "cpu:0", "", "x" * 5000])
def test_an_unknown_device_is_refused(config: Config, device: str) -> None:
    with pytest.raises(ConfigError, match=r"model.device: '.*is unknown: give cpu, cuda, or cuda:1"):
        require_valid(replace(config, model=replace(config.model, device=device)), ["device"])


def test_a_gpu_that_is_not_here_is_refused_with_what_to_do(config: Config) -> None:
    device = f"cuda:{torch.cuda.device_count()}" if torch.cuda.is_available() else "cuda"
    check = found(replace(config, model=replace(config.model, device=device)))["device"]
    assert check.ok is False
    assert check.detail.startswith(f"model.device: {device}: ")
    assert "cuda:0 to cuda:" in check.detail if torch.cuda.is_available() else "Set model.device to cpu" in check.detail


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (EngineConfig(devices=("gpu",)), "engine.devices: 'gpu' is unknown"),
        (
            EngineConfig(devices=("cpu", "cpu")),
            "engine.devices: there are 2 of them for 1 engines: raise engine.replic",
        ),
        (EngineConfig(devices=("cpu",), urls=("http://a:1",)), "engine.devices: cpu is for engines that the run start"),
        (EngineConfig(devices=("cuda:98",)), "engine.devices: cuda:98: "),
    ],
)
def test_devices_of_engines_that_cannot_be_are_told(config: Config, engine: EngineConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        require_valid(replace(config, engine=engine), ["device"])


def test_without_a_gpu_the_cpu_is_advised_as_the_key_takes_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"Set engine\.devices to \[cpu\], or install"):
        require_valid(replace(config, engine=EngineConfig(devices=("cuda:1",))), ["device"])


def test_devices_of_two_kinds_are_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonmill.trainer.devices.require_device", lambda key, device: None)
    engine = EngineConfig(devices=("cpu", "cuda:0"), replicas=2)
    with pytest.raises(ConfigError, match=r"engine.devices: cpu, cuda:0: .* give devices of one kind"):
        require_valid(replace(config, engine=engine), ["device"])
    apart = replace(config, engine=EngineConfig(devices=("cuda:1", "cuda:2"), replicas=3))
    apart = replace(apart, learner=replace(config.learner, device="cuda:0"))
    assert found(apart)["device"].detail == "cuda:1, cuda:2"


def test_the_learner_has_a_device_of_its_own(config: Config) -> None:
    elsewhere = replace(config, model=replace(config.model, device="cuda:98"), engine=EngineConfig(devices=("cpu",)))
    with pytest.raises(ConfigError, match=r"model.device: cuda:98: "):
        require_valid(elsewhere, ["device", "learner"])
    checks = found(replace(elsewhere, learner=replace(config.learner, device="cpu", gradient_checkpointing=True)))
    assert checks["device"].detail == "cpu"
    assert checks["learner"].detail == "torch on cpu, layers computed again for gradients"
    unknown = replace(config, learner=replace(config.learner, device="gpu"))
    assert found(unknown)["learner"].detail.startswith("learner.device: 'gpu' is unknown")
    require_valid(unknown, FOR_PLAYING)


def test_a_run_directory_that_cannot_be_is_told(config: Config) -> None:
    assert found(replace(config, run_dir="x" * 5000))["run directory"].ok is False


def test_everything_wrong_is_told_at_once(config: Config) -> None:
    wrong = replace(
        config, env=EnvConfig("none-v0"), async_=AsyncConfig(window=1), model=ModelConfig("none", device="x")
    )
    with pytest.raises(ConfigError) as refused:
        require_valid(wrong, AT_ONCE)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == [
        "there is no environment 'none-v0'",
        "async.window",
        "model.device",
        "model.path",
    ]


def test_a_temperature_that_cannot_be_computed_is_told(config: Config) -> None:
    cold = replace(config, sampling=Sampling(temperature=1e-6))
    assert found(cold)["asynchrony"].detail == (
        "sampling.temperature: 1e-06 is too low to be computed: the lowest is 1e-05, and 0 is greedy"
    )
    cold = replace(config, eval=EvalConfig(tasks=4, temperatures=(0.0, 1e-6)))
    assert found(cold)["evaluation"].detail.startswith("eval.temperatures: 1e-06 is too low")


def test_samples_of_no_task_are_told(config: Config) -> None:
    detail = found(replace(config, eval=EvalConfig(samples=600)))["evaluation"].detail
    assert detail.startswith(
        "eval.samples: 600 is how often each task is played, but eval.tasks, how many there are, is 0"
    )
    asked = replace(config, eval=EvalConfig(tasks=8, samples=4))
    assert found(asked)["evaluation"].detail == "8 tasks, each 4 times, at temperature 1, 0"


def test_an_evaluation_that_plays_nothing_is_told(config: Config) -> None:
    detail = found(replace(config, eval=EvalConfig(tasks=5, temperatures=())))["evaluation"].detail
    assert detail.startswith("eval.temperatures: [] plays no task at all")


def test_what_is_trained_is_told(config: Config) -> None:
    assert found(config)["adapter"].detail == "none: all weights are trained"
    lora = LoraConfig(r=8, alpha=16, target_modules=("q_proj", "v_proj"))
    assert found(replace(config, model=replace(config.model, lora=LoraConfig())))["adapter"].detail == (
        "LoRA: r 16, alpha 32, target_modules auto"
    )
    assert found(replace(config, model=replace(config.model, lora=lora)))["adapter"].detail == (
        "LoRA: r 8, alpha 16, target_modules q_proj, v_proj"
    )


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{POLICY}"}}')
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_an_adapter_can_be_evaluated_but_not_trained_on(config: Config, adapter: Path) -> None:
    config = replace(config, model=ModelConfig(str(adapter), max_length=64))
    require_valid(config, FOR_PLAYING)
    with pytest.raises(ConfigError, match=f"moonmill export {adapter} --merge --out"):
        require_valid(config, AT_ONCE)


def test_an_adapter_has_the_positions_of_its_base(config: Config, adapter: Path) -> None:
    check = found(replace(config, model=ModelConfig(str(adapter), max_length=100_000)))["model"]
    assert "more than the 512 positions" in check.detail


def test_an_adapter_without_its_base_is_told(config: Config, adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "/gone/away"}')
    check = found(replace(config, model=ModelConfig(str(adapter))))["model"]
    assert check.ok is False
    assert "the model folder /gone/away does not exist. Bring it back, or set base_model_name_or_path" in check.detail


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (EngineConfig(port=65535, replicas=2), "engine.port: 2 engines from port 65535 on"),
        (EngineConfig(urls=("http://a:1",), replicas=2), "engine.replicas: 2 cannot be started"),
        (EngineConfig(urls=("http://a:1", "http://a:1/")), "engine.urls: an engine stands there twice"),
        (
            EngineConfig(urls=("127.0.0.1:8000",)),
            "engine.urls: '127.0.0.1:8000' is no URL of a server; .* like http://",
        ),
        (EngineConfig(urls=("http://",)), "'http://' is no URL of a server"),
        (EngineConfig(urls=("http://a b",)), "is no URL of a server"),
        (EngineConfig(urls=("http://a:x",)), "is no URL"),
        (EngineConfig(urls=("http://a:1/v1",)), "has a path, and should not"),
    ],
)
def test_engines_that_cannot_be_are_told(config: Config, engine: EngineConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        require_valid(replace(config, engine=engine), ["engine"])


@pytest.mark.parametrize(
    "engine", [EngineConfig(port=65534, replicas=2), EngineConfig(urls=("http://a:1/", "https://[::1]"))]
)
def test_engines_that_can_be_pass(config: Config, engine: EngineConfig) -> None:
    require_valid(replace(config, engine=engine), ["engine"])
