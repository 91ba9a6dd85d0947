"""Environments in TRL's own `GRPOTrainer`: tools are called, rewards arrive, a step is made."""

import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import trl
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from moonmill import ConfigError, MultiTurnEnv, Rollout, Task, make, register, reward, tool
from moonmill.envs import Endpoint, ForeignEnv, metric
from moonmill.envs.adapters.trl import ForTrl
from moonmill.errors import MoonmillError

CALLS = [f'{{"name": "guess", "arguments": {{"number": {n}}}}}' for n in (1, 2)]
SAYS = ["<tool_call>", CALLS[0], "</tool_call>", "<|im_end|>"]
"""A call, token by token; where the first call stands the second is as likely."""


class Guess(MultiTurnEnv):
    """Guess a number."""

    def tasks(self, split: str) -> Iterator[Task]:
        while True:
            yield Task("Guess 1 or 2.", answer=1)

    @tool
    def guess(self, number: int, mood: Literal["sure", "unsure"] = "sure", notes: list[str] | None = None) -> str:
        """Guess
        it.

        Args:
            number: one of the two
            mood: how it felt
            notes: what else there is to say
        """
        if number > 9:
            raise MoonmillError("the judge is gone")
        self.finish(reward=float(number == self.task.answer))
        return "noted"

    @reward
    def polite(self, rollout: Rollout) -> float:
        return 0.5 if "please" in rollout.final_text() else 0.0

    @metric
    def said(self, rollout: Rollout) -> float:
        return float(rollout.turns)


register("guess-v0", Guess)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    tags = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<pad>"]
    words = [*tags, *CALLS, "\n", "<unknown>", *map(chr, range(32, 127))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_tokens(CALLS)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unknown>",
        pad_token="<pad>",
        eos_token="<|im_end|>",
        extra_special_tokens=tags[:-1],
        chat_template=template,
    )


@pytest.fixture
def caller(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A random model, made to call the tool whatever it is asked."""
    torch.manual_seed(0)
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    assert size <= config.hidden_size
    ids = tokenizer.get_vocab()
    successors = {ids[a]: ids[b] for a, b in pairwise(SAYS)} | {ids[CALLS[1]]: ids["</tool_call>"]}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        for token in range(size):
            model.model.embed_tokens.weight[token, token] = 1.0
            model.lm_head.weight[successors.get(token, ids["<tool_call>"]), token] = 2.0
        model.lm_head.weight[ids[CALLS[1]], ids["<tool_call>"]] = 2.0
    return model


def test_grpo_trains_on_it(caller: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    args = trl.GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=32,
        max_tool_calling_iterations=1,
        max_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    before = {name: weight.detach().clone() for name, weight in caller.named_parameters()}
    with ForTrl("guess-v0") as guess:
        trainer = trl.GRPOTrainer(
            model=caller,
            args=args,
            processing_class=tokenizer,
            train_dataset=guess.dataset(4),
            environment_factory=guess.environment,
            reward_funcs=guess.reward,
        )
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(steps) == 2
    assert all(step["tools/call_frequency"] >= 1 and step["tools/failure_frequency"] == 0 for step in steps)
    assert all(0 < step["reward"] < 1 for step in steps)  # some guesses are right
    assert all(step["said"] == 1 for step in steps)
    assert any((weight != before[name]).any() for name, weight in trainer.model.named_parameters())


@pytest.mark.parametrize("env_id", ["guess-v0", "calculator-v0"])
def test_a_tool_is_described_to_the_model_as_by_moonmill(env_id: str) -> None:
    with ForTrl(env_id) as adapted:
        played: Any = adapted.environment()
        for spec in make(env_id).tool_specs:
            function = get_json_schema(getattr(played, spec.name))["function"]
            assert function["description"] == " ".join(spec.description.split())
            told, ours = function["parameters"]["properties"], spec.parameters["properties"]
            assert function["parameters"].get("required", []) == spec.parameters["required"]
            assert {n: p.get("enum") for n, p in told.items()} == {n: p.get("enum") for n, p in ours.items()}
            assert {n: p["type"] for n, p in told.items() if "type" in ours[n]} == {
                n: p["type"] for n, p in ours.items() if "type" in p
            }


def test_an_episode_is_scored_by_its_turns_and_its_last_message() -> None:
    with ForTrl("guess-v0") as guess:
        right, polite, silent, broken = (guess.environment() for _ in range(4))
        for env in (right, polite, silent, broken):
            env.reset(task=0)
        assert right._call("guess", {"number": 1}) == "noted"
        assert right._call("guess", {"number": 1}) == "the episode is over: no tool can be called any more"
        assert "wrong arguments" in polite._call("guess", {"number": "two"})
        with pytest.raises(MoonmillError):
            broken._call("guess", {"number": 10})
        asks = {"role": "assistant", "content": "", "tool_calls": [{}]}
        answers = {"role": "assistant", "content": "one, please"}
        told: list[tuple[str, float]] = []
        rewards = guess.reward(
            [[asks], [asks, answers], [asks], [asks]],
            [right, polite, silent, broken],
            log_metric=lambda *pair: told.append(pair),
        )
        assert rewards == [1.0, 0.5, 0.0, None]
        assert told == [("said", pytest.approx((1 + 2 + 0) / 3))]


def test_the_page_gives_trl_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Trainer:
        def __init__(self, **kwargs: Any) -> None:
            given.update(inspect.signature(trl_trainer).bind(**kwargs).arguments)

        def train(self) -> None:
            env = given["environment_factory"]()
            env.reset(**given["train_dataset"][0])
            assert given["reward_funcs"]([[]], [env]) == [0.0]

    trl_trainer = trl.GRPOTrainer
    monkeypatch.setattr(trl, "GRPOTrainer", Trainer)
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code.replace('GRPOConfig("grpo-calculator", ', 'GRPOConfig("grpo-calculator", use_cpu=True, bf16=False, '))
    assert len(given["train_dataset"]) == 1000


def test_a_task_begins_as_its_row_of_the_dataset_says() -> None:
    with ForTrl("calculator-v0", levels=[1]) as calculator:
        rows = calculator.dataset(3)
        env = calculator.environment()
        for row in rows:
            env.reset(**row)
            assert [{"role": m.role, "content": m.content} for m in env._messages] == row["prompt"]
        assert len({str(row["prompt"]) for row in rows}) == 3


def test_what_trl_cannot_play_is_refused() -> None:
    class Program(ForeignEnv):
        def tasks(self, split: str) -> Iterator[Task]:
            yield Task("?")

        def play(self, task: Task, model: Endpoint, seed: int) -> None: ...

    class Resets(Guess):
        @tool(name="reset")
        def again(self) -> None:
            """Begin again."""

    register("program-v0", Program)
    register("resets-v0", Resets)
    with pytest.raises(ConfigError, match="is played by a program"):
        ForTrl("program-v0")
    with pytest.raises(ConfigError, match="a tool 'reset'"):
        ForTrl("resets-v0")
