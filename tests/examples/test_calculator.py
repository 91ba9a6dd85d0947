"""The calculator example: its recipe, and the starter policy that it made."""

import importlib.util
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from moonmill.agents.rendering import TurnRenderer, load_renderer
from moonmill.config_io import load_config
from moonmill.registry import make
from moonmill.types import Message

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
POLICY = EXAMPLE / "policy"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_policy", EXAMPLE / "make_policy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def course(recipe: ModuleType) -> Any:
    expert = recipe.load_expert("moonmill.envs.library.calculator:demonstrate")
    return recipe.Course(partial(make, "calculator-v0"), expert, 0.35, 256)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def renderer() -> TurnRenderer:
    return load_renderer(POLICY)


@pytest.fixture(scope="module")
def policy() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(POLICY)


# What is shipped


def test_the_policy_is_small_and_in_full_precision(policy: LlamaForCausalLM) -> None:
    assert sum(path.stat().st_size for path in POLICY.iterdir()) < 1_000_000
    assert policy.num_parameters() < 250_000
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


def test_the_policy_is_middling_and_better_when_greedy(
    recipe: ModuleType, course: Any, policy: LlamaForCausalLM, renderer: TurnRenderer
) -> None:
    outcomes = recipe.measure(policy, renderer, course, 1.0, seed=100, samples=300)
    success = sum(solved for _, solved in outcomes) / 300
    assert 0.25 < success < 0.45
    assert {level for level, solved in outcomes if solved} == {"1", "2", "3", "4"}
    greedy = recipe.measure(policy, renderer, course, 0.0, seed=100, samples=100)
    assert sum(solved for _, solved in greedy) / 100 > success + 0.1


def test_the_demo_runs_the_policy_on_the_environment_within_its_limits(
    recipe: ModuleType, course: Any, renderer: TurnRenderer
) -> None:
    config = load_config(EXAMPLE / "demo.yaml")
    assert Path(config.model.path).resolve() == POLICY
    make(config.env.id, **config.env.args)
    assert (config.model.max_length, config.sampling.max_tokens) == (course.max_length, recipe.MAX_TURN_TOKENS)
    longest = max(len(ids) for ids, _ in islice(recipe._demonstrations(renderer, course, 0), 300))
    assert longest <= 107 < config.model.max_length // 2


# The recipe


def test_the_recipe_makes_the_shipped_tokenizer(recipe: ModuleType, tmp_path: Path) -> None:
    recipe.make_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_text() == (POLICY / name).read_text()


def test_every_character_an_environment_may_show_is_a_token_of_its_own(renderer: TurnRenderer) -> None:
    text = "".join(map(chr, range(32, 127))) + "\n"
    ids = renderer.prompt([Message("user", text)])[1:-1]
    assert len({*ids}) == len(ids) == len(text)
    assert renderer.decode(ids) == text


def test_demonstrations_teach_what_the_expert_says_and_nothing_else(
    recipe: ModuleType, course: Any, renderer: TurnRenderer
) -> None:
    for ids, said in islice(recipe._demonstrations(renderer, course, 0), 50):
        heard = renderer.decode([token for token, flag in zip(ids, said, strict=True) if not flag])
        spoken = renderer.decode([token for token, flag in zip(ids, said, strict=True) if flag])
        assert heard.startswith("<user>")
        assert "<call>" not in heard
        assert "<tool>" not in spoken
        assert spoken.endswith("<end>")


def test_small_passes_have_the_gradient_of_one_padded_batch(
    recipe: ModuleType, course: Any, policy: LlamaForCausalLM, renderer: TurnRenderer
) -> None:
    batch = list(islice(recipe._demonstrations(renderer, course, 0), 40))
    policy.zero_grad()
    value = recipe._backward(policy, batch)
    found = [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    longest = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in batch])
    said = torch.tensor([flags + [False] * (longest - len(flags)) for _, flags in batch])
    policy.zero_grad()
    loss = policy(input_ids=ids, labels=torch.where(said, ids, -100)).loss
    loss.backward()
    expected = [p.grad for p in policy.parameters() if p.grad is not None]

    assert value == pytest.approx(loss.item(), rel=1e-5)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_a_cut_turn_and_an_endless_episode_are_no_success(
    recipe: ModuleType, course: Any, renderer: TurnRenderer
) -> None:
    task = next(recipe._tasks(course, "eval", 0))
    answer = renderer._tokenizer.encode(str(task.answer), add_special_tokens=False)
    whole, cut, endless = (recipe._Episode(task, renderer, course) for _ in range(3))
    whole.act([*answer, *renderer.stop_token_ids])
    assert whole.solved
    cut.act(answer)
    assert cut.over
    assert not cut.solved
    for _ in range(20):
        if not endless.over:
            endless.act(renderer._tokenizer.encode("<call>1+</call><end>", add_special_tokens=False))
    assert endless.over
    assert not endless.solved
