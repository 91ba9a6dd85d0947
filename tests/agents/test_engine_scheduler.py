"""Decoding many requests together gives what each would get alone."""

import random
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from moonmill.agents.engine import scheduler as scheduler_module
from moonmill.agents.engine.models import load_model, load_version
from moonmill.agents.engine.sampling import processed_logprobs
from moonmill.agents.engine.scheduler import Delta, Params, Request, Scheduler

CPU = torch.device("cpu")
MAX_LENGTH = 512


@pytest.fixture(scope="module")
def base(model_dir: Path) -> PreTrainedModel:
    return load_model(str(model_dir), "float32", "cpu")


@pytest.fixture(scope="module")
def other(base: PreTrainedModel, other_dir: Path) -> PreTrainedModel:
    return load_version(base, other_dir)


@pytest.fixture
def scheduler(base: PreTrainedModel, other: PreTrainedModel) -> Scheduler:
    return Scheduler({"a": base, "b": other}, max_batch=4, max_length=MAX_LENGTH, device=CPU)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 100) for _ in range(length)]


class Asked:
    """A request that was submitted, and what came of it."""

    def __init__(self, scheduler: Scheduler, prompt: list[int], version: str = "a", **params: object) -> None:
        self.prompt = prompt
        self.deltas: list[Delta] = []
        params.setdefault("max_tokens", 12)
        params.setdefault("seed", 1)
        self.request = Request(version, prompt, Params(**params), self.deltas.append)  # type: ignore[arg-type]
        scheduler.submit(self.request)

    @property
    def tokens(self) -> list[int]:
        return [t for d in self.deltas for t in d.tokens]

    @property
    def logprobs(self) -> list[float]:
        return [v for d in self.deltas for v in d.logprobs]

    @property
    def finish(self) -> str | None:
        return self.deltas[-1].finish if self.deltas else None


def finish(scheduler: Scheduler) -> None:
    with torch.inference_mode():
        while not scheduler.idle:
            scheduler.step()


def steps(scheduler: Scheduler, count: int) -> None:
    with torch.inference_mode():
        for _ in range(count):
            scheduler.step()


def assert_logprobs_of(model: PreTrainedModel, asked: Asked, **how: float) -> None:
    """The log-probabilities are those of a plain forward over the whole context, within 1e-4."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*asked.prompt, *asked.tokens]]), use_cache=False).logits[0]
    tokens = torch.tensor(asked.tokens)
    expected = processed_logprobs(logits[len(asked.prompt) - 1 : -1], **how)  # type: ignore[arg-type]
    expected = expected.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    assert (expected - torch.tensor(asked.logprobs)).abs().max().item() < 1e-4


@pytest.mark.parametrize("how", [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}], ids=str)
def test_logprobs_are_a_full_forwards(scheduler: Scheduler, reference: PreTrainedModel, how: dict[str, float]) -> None:
    asked = [Asked(scheduler, prompt_of(length, length), max_tokens=30, seed=length, **how) for length in (1, 7, 8, 40)]
    finish(scheduler)
    for one in asked:
        assert_logprobs_of(reference, one, **how)


def test_tokens_do_not_depend_on_what_else_is_decoded(scheduler: Scheduler) -> None:
    alone = Asked(scheduler, prompt_of(9), seed=5, max_tokens=40)
    finish(scheduler)
    crowd = [
        Asked(scheduler, prompt_of(9 + i, seed=i), seed=i, max_tokens=5 + 7 * i, temperature=i / 4, top_k=i)
        for i in range(9)
    ]
    again = Asked(scheduler, prompt_of(9), seed=5, max_tokens=40)
    finish(scheduler)
    assert again.tokens == alone.tokens
    assert again.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert all(len(c.tokens) == c.request.params.max_tokens for c in crowd)


def test_requests_of_different_parameters_keep_theirs(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    hows: list[dict[str, float]] = [{"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 3}]
    asked = [Asked(scheduler, prompt_of(6, i), seed=i, **how) for i, how in enumerate(hows)]
    finish(scheduler)
    for one, how in zip(asked, hows, strict=True):
        assert_logprobs_of(reference, one, **how)


def test_greedy_takes_the_likeliest(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    asked = Asked(scheduler, prompt_of(6), temperature=0.0, max_tokens=10)
    Asked(scheduler, prompt_of(6, 1), max_tokens=10)
    finish(scheduler)
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([[*asked.prompt, *asked.tokens]]), use_cache=False).logits[0]
    assert asked.tokens == logits[5:-1].argmax(-1).tolist()


def test_without_a_seed_two_requests_differ(scheduler: Scheduler) -> None:
    one, two = (Asked(scheduler, prompt_of(6), seed=None, max_tokens=30) for _ in range(2))
    finish(scheduler)
    assert one.tokens != two.tokens


def test_a_conversation_goes_on_from_its_cache(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    first = Asked(scheduler, prompt_of(20))
    finish(scheduler)
    computed = scheduler.counters.prompt_tokens - scheduler.counters.cached_tokens
    second = Asked(scheduler, [*first.prompt, *first.tokens, 5, 6, 7])
    finish(scheduler)
    # The last token that was sampled is computed now, with the three that are new.
    assert scheduler.counters.prompt_tokens - scheduler.counters.cached_tokens - computed == 4
    assert_logprobs_of(reference, second)


def test_a_prompt_in_use_is_shared_by_copy(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    one = Asked(scheduler, prompt_of(60), max_tokens=40)
    steps(scheduler, 3)
    two = Asked(scheduler, [*prompt_of(60), 8], seed=2)
    finish(scheduler)
    assert scheduler.counters.cached_tokens == 60
    assert_logprobs_of(reference, one)
    assert_logprobs_of(reference, two)


def test_versions_share_no_cache(scheduler: Scheduler, reference: PreTrainedModel, other: PreTrainedModel) -> None:
    asked = [Asked(scheduler, prompt_of(40), version=v, seed=i) for i, v in enumerate("abab")]
    finish(scheduler)
    for _ in range(2):
        asked += [Asked(scheduler, [*prompt_of(40), 3], version=v, seed=9) for v in "ba"]
        finish(scheduler)
    plain = _plain(other)
    for one in asked:
        assert_logprobs_of(reference if one.request.version == "a" else plain, one)
    with pytest.raises(AssertionError):
        assert_logprobs_of(plain, asked[0])


def test_long_prompts_are_computed_in_chunks(
    scheduler: Scheduler, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_PROMPT_TOKENS_PER_STEP", 32)
    decoding = Asked(scheduler, prompt_of(5), max_tokens=30)
    steps(scheduler, 1)
    long = [Asked(scheduler, prompt_of(n, n), seed=n) for n in (100, 45)]
    steps(scheduler, 2)
    assert len(decoding.request.news.tokens) == 3, "decoding goes on meanwhile"
    finish(scheduler)
    for one in (decoding, *long):
        assert_logprobs_of(reference, one)


def test_a_long_prompt_is_computed_in_chunks_where_nothing_else_is_decoded(
    scheduler: Scheduler, reference: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_PROMPT_TOKENS_PER_STEP", 32)
    long = Asked(scheduler, prompt_of(100))
    finish(scheduler)
    assert_logprobs_of(reference, long)


def test_gaps_between_slots_do_no_harm(base: PreTrainedModel, reference: PreTrainedModel) -> None:
    scheduler = Scheduler({"a": base}, max_batch=12, max_length=MAX_LENGTH, device=CPU)
    asked = [Asked(scheduler, prompt_of(10, i), seed=i, max_tokens=3 if i % 5 else 40) for i in range(12)]
    steps(scheduler, 10)
    asked += [Asked(scheduler, prompt_of(20, 50 + i), seed=i, max_tokens=20) for i in range(3)]
    finish(scheduler)
    for one in asked:
        assert_logprobs_of(reference, one)


def test_more_requests_than_slots_wait_their_turn(scheduler: Scheduler) -> None:
    asked = [Asked(scheduler, prompt_of(5, i), seed=i) for i in range(11)]
    steps(scheduler, 1)
    assert (len(scheduler.running), len(scheduler.waiting)) == (4, 7)
    finish(scheduler)
    assert all(a.finish == "length" for a in asked)


def test_a_stop_token_ends_a_request_and_is_part_of_it(scheduler: Scheduler) -> None:
    free = Asked(scheduler, prompt_of(6), max_tokens=20)
    finish(scheduler)
    stop = free.tokens[4]
    end = free.tokens.index(stop) + 1
    named = Asked(scheduler, prompt_of(6), max_tokens=20, stop_token_ids=frozenset({stop}))
    implied = Asked(scheduler, prompt_of(6), max_tokens=20, eos_token_ids=frozenset({stop}))
    finish(scheduler)
    assert named.tokens == implied.tokens == free.tokens[:end]
    assert (named.finish, named.deltas[-1].stop_token) == ("stop", stop)
    assert (implied.finish, implied.deltas[-1].stop_token) == ("stop", None)


def test_news_come_every_interval_and_at_the_end(scheduler: Scheduler) -> None:
    asked = Asked(scheduler, prompt_of(6), max_tokens=10, interval=4)
    finish(scheduler)
    assert [len(d.tokens) for d in asked.deltas] == [4, 4, 2]
    assert [d.finish for d in asked.deltas] == [None, None, "length"]


def test_the_likeliest_tokens_are_told_where_asked(scheduler: Scheduler) -> None:
    asked = Asked(scheduler, prompt_of(6), temperature=0.0, top_logprobs=3)
    plain = Asked(scheduler, prompt_of(6, 1))
    finish(scheduler)
    top = asked.deltas[-1].top
    assert [row[0] for row in top] == list(zip(asked.tokens, asked.logprobs, strict=True))
    assert all(len(row) == 3 for row in top)
    assert plain.deltas[-1].top == []


def test_an_aborted_request_frees_its_slot_and_says_no_more(scheduler: Scheduler) -> None:
    asked = [Asked(scheduler, prompt_of(5, i), max_tokens=100, interval=1) for i in range(6)]
    steps(scheduler, 2)
    for one in (asked[0], asked[5]):
        scheduler.abort(one.request)
        scheduler.abort(one.request)
    said = len(asked[0].deltas)
    steps(scheduler, 1)
    assert (len(scheduler.running), len(scheduler.waiting)) == (4, 0)
    assert len(asked[0].deltas) == said
    assert asked[5].deltas == []


def test_forgetting_a_version_ends_its_requests_with_abort(base: PreTrainedModel, other: PreTrainedModel) -> None:
    models = {"a": base, "b": other}
    scheduler = Scheduler(models, max_batch=2, max_length=MAX_LENGTH, device=CPU)
    asked = [Asked(scheduler, prompt_of(5), version=v) for v in "abab"]
    steps(scheduler, 3)
    del models["b"]
    scheduler.forget("b")
    late = Asked(scheduler, prompt_of(5), version="b")
    finish(scheduler)
    assert [a.finish for a in asked] == ["length", "abort", "length", "abort"]
    assert len(asked[1].tokens) == 3, "what it had is told"
    assert late.finish == "abort"


def test_a_model_that_computes_nan_fails_the_request(base: PreTrainedModel, tmp_path: Path, other_dir: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(other_dir / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "model.safetensors")
    scheduler = Scheduler({"bad": load_version(base, tmp_path)}, max_batch=2, max_length=MAX_LENGTH, device=CPU)
    asked = Asked(scheduler, prompt_of(5), version="bad")
    finish(scheduler)
    assert asked.finish == "error"
    assert "nan" in str(asked.deltas[-1].error)


def test_after_a_failed_step_nothing_cached_is_used(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    one = Asked(scheduler, prompt_of(30))
    steps(scheduler, 2)
    scheduler.fail("the device is lost")
    assert (one.finish, one.deltas[-1].error) == ("error", "the device is lost")
    two = Asked(scheduler, prompt_of(30))
    finish(scheduler)
    assert scheduler.counters.cached_tokens == 0
    assert_logprobs_of(reference, two)


@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_other_families_work_too(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    model: PreTrainedModel
    if family == "gemma3":  # five layers of six look back no further than four tokens
        model = Gemma3ForCausalLM(Gemma3TextConfig(**shape, num_hidden_layers=6, sliding_window=4))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, num_hidden_layers=2))
    model.eval().save_pretrained(tmp_path)
    scheduler = Scheduler({"a": load_model(str(tmp_path), "float32", "cpu")}, 4, MAX_LENGTH, CPU)
    asked = [Asked(scheduler, prompt_of(n, n), seed=n, max_tokens=20) for n in (3, 17, 30)]
    finish(scheduler)
    for one in asked:
        assert_logprobs_of(model, one)


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights, run by transformers alone."""
    from transformers import LlamaForCausalLM

    twin = LlamaForCausalLM(model.config.__class__(**model.config.to_dict()))
    twin.set_attn_implementation("eager")
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def test_one_by_one_a_request_gives_the_same_bits_whatever_else_is_decoded(base: PreTrainedModel) -> None:
    prompts = [prompt_of(5 + 9 * seed, seed) for seed in range(8)]

    def scheduler_of(slots: int) -> Scheduler:
        return Scheduler({"a": base}, slots, MAX_LENGTH, CPU, one_by_one=True)

    alone = []
    for prompt in prompts:
        scheduler = scheduler_of(1)
        alone.append(Asked(scheduler, prompt, temperature=0.0))
        finish(scheduler)
    scheduler = scheduler_of(5)
    before = [Asked(scheduler, prompt[: len(prompt) // 2], max_tokens=40) for prompt in prompts[::2]]
    steps(scheduler, 3)
    together = [Asked(scheduler, prompt, temperature=0.0) for prompt in reversed(prompts)]
    finish(scheduler)
    assert all(asked.finish for asked in before)
    assert [(a.tokens, a.logprobs) for a in alone] == [(a.tokens, a.logprobs) for a in reversed(together)]
    assert scheduler.counters.cached_tokens == 0
