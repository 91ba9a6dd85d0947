"""Plans: the settings people ask for, what fits and what does not, and what would do."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from moonmill.cli.app import cli
from moonmill.errors import ConfigError
from moonmill.trainer.planning.advice import advice, notes
from moonmill.trainer.planning.gpus import Rates, gpu_named
from moonmill.trainer.planning.parts import GIB
from moonmill.trainer.planning.plan import Planner, budgeted, concurrent, lengthened, planner, search
from tests.trainer.planning.settings import config_of

E2B, MOE = "google/gemma-4-E2B-it", "Qwen/Qwen3-30B-A3B"
ATTENTION = "model.lora={r: 16, target_modules: [q_proj, k_proj, v_proj, o_proj]}"


def test_a_gemma_4_e2b_trains_beside_vllm_on_32_gb():
    made = planner(config_of(E2B, "learner.quantization=4bit"), "rtx5090").plan()
    [card] = made.cards
    assert made.fits
    assert card.holds == ("engine", "learner")
    assert card.used < 28.7e9
    assert made.engine
    assert made.engine.episodes >= made.engine.wanted


@pytest.mark.parametrize("gpu", ["rtx5090", "h100"])
def test_a_9b_needs_more_than_half_of_32_gb(gpu: str):
    made = Planner(config_of("Qwen/Qwen3.5-9B", "learner.quantization=4bit"), gpu_named(gpu))
    assert made.fits(made.config) == (gpu == "h100")
    [note] = [note for note in notes(made) if "24 of 32 layers are linear attention" in note]
    assert "packages flash-linear-attention and causal-conv1d" in note


def test_where_it_does_not_fit_the_change_that_is_told_fits():
    made = planner(config_of("Qwen/Qwen3-8B", "learner.quantization=4bit"), "rtx5090")
    assert not made.fits(made.config)
    assert advice(made, made.plan())
    assert all(line.startswith("it fits with ") for line in advice(made, made.plan()))
    keys = [line.removeprefix("it fits with ") for line in advice(made, made.plan())]
    [share] = [key for key in keys if key.startswith("engine.vllm.gpu_memory: ")]
    assert (
        planner(config_of("Qwen/Qwen3-8B", "learner.quantization=4bit", share.replace(": ", "=")), "rtx5090")
        .plan()
        .fits
    )


def test_a_30b_of_experts_does_not_fit_on_32_gb_and_why():
    made = planner(config_of(MOE, ATTENTION, "learner.quantization=4bit"), "rtx5090")
    weights = {part.name: part for part in made.learner(made.config)}["weights"]
    assert not made.fits(made.config)
    assert weights.bytes > 55 * GIB  # 4 bits or not: experts are not quantized
    assert any("bitsandbytes does not quantize" in note for note in notes(made))
    assert "no change known here makes it fit" in advice(made, made.plan())[0]


def test_a_30b_of_experts_trains_on_two_cards_of_80_gb():
    two = ("learner.device=cuda:1", "engine.vllm.gpu_memory=0.9", ATTENTION)
    made = planner(config_of(MOE, *two), "h100").plan()
    assert made.fits
    assert [card.holds for card in made.cards] == [("engine",), ("learner",)]


WHOLE = ("model.lora=null", "algorithm.critic.lora=null")


@pytest.mark.parametrize(
    ("path", "gpu", "overrides"),
    [
        ("Qwen/Qwen3-8B", "h200", WHOLE),
        ("meta-llama/Llama-3.1-8B", "rtx5090", ("model.dtype=float32", "learner.quantization=4bit")),
        ("Qwen/Qwen3-8B", "l4", ("learner.quantization=4bit",)),
        ("Qwen/Qwen3-4B", "rtx4090", (*WHOLE, "learner.gradient_checkpointing=false")),
        ("Qwen/Qwen3-0.6B", "l4", ("engine.type=embedded", "engine.max_batch=512")),
    ],
)
def test_whatever_is_advised_fits_when_it_is_done_and_not_with_less(path: str, gpu: str, overrides: tuple[str, ...]):
    for line in advised(path, gpu, *overrides):
        changes = line.removeprefix("it fits with ").replace(
            "a second card (learner.device: cuda:1)", "learner.device: cuda:1"
        )
        assert changes != line
        done = settings(changes)
        assert planner(config_of(path, *overrides, *done), gpu).plan().fits, line
        for change in done:
            fewer = [other for other in done if other is not change]
            assert not planner(config_of(path, *overrides, *fewer), gpu).plan().fits, (line, change)
        for key in ("gradient_checkpointing: false", "engine.vllm.gpu_memory"):
            assert not any(key in further for further in advised(path, gpu, *overrides, *done)), (line, key)


def test_the_largest_batch_and_context_that_do_are_advised():
    embedded = ("engine.type=embedded", "engine.max_batch=512", "sampling.max_tokens=64")
    found = advised("Qwen/Qwen3-0.6B", "l4", *embedded)
    figures = dict(line.removeprefix("it fits with ").split(": ") for line in found)
    for key in ("engine.max_batch", "model.max_length"):
        value = int(figures[key])
        for n in (value, value + 1):
            made = planner(config_of("Qwen/Qwen3-0.6B", *embedded, f"{key}={n}"), "l4").plan()
            assert made.fits == (n == value)


def test_options_of_vllm_that_a_plan_reads_have_to_make_sense():
    for args, said in (
        ("{max_num_batched_tokens: -5}", r"max_num_batched_tokens: -5: expected a whole number of at least 1"),
        ("{max-num-batched-tokens: many}", r"max-num-batched-tokens: many: expected a whole number"),
        ("{max_model_len: abc}", r"max_model_len cannot be set here: set model\.max_length"),
    ):
        with pytest.raises(ConfigError, match=rf"^engine\.vllm\.args: {said}"):
            planner(config_of(E2B, f"engine.vllm.args={args}"), "rtx5090")


def settings(told: str) -> list[str]:
    """Changes that are told, as `--set` takes them."""
    return [re.sub(r" \(.*\)$", "", change).replace(": ", "=", 1) for change in told.split(" and ")]


EVALUATED = "eval.tasks=100"


@pytest.mark.parametrize(
    ("path", "gpu", "overrides"),
    [
        (E2B, "rtx4090", ("learner.quantization=4bit", "async.max_concurrent=22", "train.eval_every=20", EVALUATED)),
        ("Qwen/Qwen3-4B", "rtx5090", ("learner.quantization=4bit", "sampling.max_tokens=64")),
        ("Qwen/Qwen3-8B", "h100", ("engine.max_batch=128", "async.max_concurrent=256", "engine.vllm.gpu_memory=0.3")),
        ("Qwen/Qwen3-4B", "rtx5090", ("learner.quantization=4bit", "train.eval_every=20", EVALUATED)),
    ],
)
def test_what_gives_all_episodes_room_leaves_nothing_to_be_told_when_it_is_done(
    path: str, gpu: str, overrides: tuple[str, ...]
):
    [line] = [line for line in advised(path, gpu, *overrides) if "have room for" in line]
    for told in line.partition("; all have with ")[2].split(", or with "):
        assert told
        made = planner(config_of(path, *overrides, *settings(told)), gpu)
        assert not any("have room for" in line for line in advice(made, made.plan())), told


def test_nothing_takes_less_than_no_memory():
    made = planner(config_of(MOE, ATTENTION), "rtx5090").plan()
    assert made.engine
    keys = made.engine.parts[-1]
    assert (keys.name, keys.bytes) == ("keys and values", 0)
    assert re.fullmatch(
        r"nothing is left of 0.5 of the card: what is above takes [\d.]+ GiB more than that", keys.detail
    )
    assert made.engine.bytes > 55 * GIB
    assert made.engine.lacking > 40 * GIB


def advised(path: str, gpu: str, *overrides: str) -> list[str]:
    made = planner(config_of(path, *overrides), gpu)
    return advice(made, made.plan())


def test_experts_that_cannot_have_adapters_are_planned_with_all_weights_trained():
    made = planner(config_of(MOE, *WHOLE), "b200")
    assert not made.plan().fits
    assert not any("model.lora" in line for line in advice(made, made.plan()))


def test_a_learner_on_the_cpu_is_not_on_the_card():
    config = config_of("Qwen/Qwen3-4B", "learner.device=cpu", "engine.devices=[cuda:0]")
    machine, card = planner(config, "rtx5090").plan().cards
    assert (machine.device, machine.holds, card.device, card.holds) == ("cpu", ("learner",), "cuda:0", ("engine",))
    assert "CUDA context" not in [part.name for part in planner(config, "rtx5090").plan().learner]


def test_the_largest_that_fit_are_the_largest():
    config = config_of("Qwen/Qwen3-4B", "learner.quantization=4bit")
    made = planner(config, "rtx5090")
    largest = made.plan().largest
    for change, key, fits in (
        (concurrent, "async.max_concurrent", made.holds_all),
        (lengthened, "model.max_length", made.holds_all),
        (budgeted, "learner.micro_batch_tokens", made.fits),
    ):
        value = largest[key]
        assert value
        assert fits(change(config, value))
        assert not fits(change(config, value + 1))


def test_engines_take_the_devices_in_turn():
    config = config_of("Qwen/Qwen3-4B", "engine.replicas=2", "engine.devices=[cuda:1, cuda:2]", "learner.device=cuda:0")
    cards = planner(config, "rtx4090").plan().cards
    assert [(card.device, card.holds) for card in cards] == [
        ("cuda:0", ("learner",)),
        ("cuda:1", ("engine",)),
        ("cuda:2", ("engine",)),
    ]


def test_a_config_for_the_cpu_is_planned_for_this_machines_memory_and_by_its_measured_speed():
    policy = str(Path(__file__).parents[3] / "examples" / "calculator" / "policy")
    small = ("model.device=cpu", "model.dtype=float32", "engine.type=embedded", "model.max_length=256")
    of = planner(config_of(policy, *small), None)
    made = of.plan()
    assert made.gpu == "this machine's memory"
    assert "CUDA context" not in [part.name for part in made.learner]
    assert made.speed
    assert made.speed.decoding.source == "this processor, measured here: 1 thread, float32"
    assert made.speed == of.plan().speed
    [knob] = advice(of, made)
    assert knob.startswith(f"{made.speed.bottleneck} takes longer than ")
    assert Planner(of.config, None).plan().speed is None


def test_each_part_goes_by_the_speed_of_where_it_computes():
    config = config_of("Qwen/Qwen3-0.6B", "learner.device=cpu", "engine.devices=[cuda:0]")
    slow = Rates(1e10, 1e11, "a processor")
    speed = Planner(config, gpu_named("rtx5090"), lambda threads, dtype: slow).plan().speed
    assert speed
    assert (speed.decoding.bandwidth, speed.training) == (1792e9, slow)


def test_without_a_gpu_one_has_to_be_named():
    with pytest.raises(ConfigError, match="name one with --gpu: rtx5090, rtx4090"):
        planner(config_of(E2B), None)
    with pytest.raises(ConfigError, match="--gpu gtx1080: unknown; known are rtx5090"):
        planner(config_of(E2B), "gtx1080")


def test_search_finds_the_last_that_fits():
    assert search(lambda n: n <= 37, 1000) == 37
    assert search(lambda n: True, 1000) == 1000
    assert search(lambda n: False, 1000) is None


def test_twice_the_bandwidth_decodes_at_most_twice_as_fast():
    config = config_of("Qwen/Qwen3-4B", "learner.device=cuda:1")
    speeds = [planner(config, gpu).plan().speed for gpu in ("rtx4090", "h100")]
    assert speeds[0]
    assert speeds[1]
    assert speeds[0].decoded < speeds[1].decoded
    assert speeds[0].trained < speeds[1].trained


def test_the_command_prints_a_table_and_a_verdict(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "env: {id: calculator-v0}\n"
        "model: {path: Qwen/Qwen3-0.6B, max_length: 1024, dtype: bfloat16, device: cuda, lora: {}}\n"
        "engine: {type: vllm, vllm: {gpu_memory: 0.5}}\n"
        "algorithm: {preset: grpo}\n"
        "learner: {gradient_checkpointing: true}\n"
    )
    result = CliRunner().invoke(cli, ["plan", str(file), "--gpu", "rtx4090"])
    assert result.exit_code == 0, result.output
    assert "rtx4090 cuda:0: " in result.output
    assert ": fits" in result.output
    larger = ["plan", str(file), "--gpu", "rtx4090", "--set", "model.path=Qwen/Qwen3-32B", "--json"]
    result = CliRunner().invoke(cli, larger)
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["fits"] is False
    assert told["advice"]
