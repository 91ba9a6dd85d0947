"""Make the starter policy of the calculator example: `python make_policy.py --out policy --seed 0`.

A Llama of 0.17M parameters over characters, warmed up on what a scripted expert says (`demonstrate`), on tasks of all
levels, on the tokens of its turns alone. Training stops as soon as the policy, sampled at temperature 1 on held-out
tasks, solves `TARGET` of them: good enough that every level is solved now and then, and bad enough that reinforcement
learning has something to do. The success passes from 5% to 60% within a minute, so it is measured, not scheduled.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moonmill.agents.compact import END, TAGS
from moonmill.agents.rendering import MODEL_FILE, ModelFile, TurnRenderer, load_renderer
from moonmill.envs.library.calculator import Calculator, demonstrate
from moonmill.types import Message, Task

TARGET = 0.35
BATCH = 64
"""Conversations per update."""
LR, LR_WARMUP = 2e-3, 50
"""AdamW's learning rate, and the updates over which it rises."""
MAX_UPDATES = 3000
CHECK_EVERY, CHECK_FROM = 20, 400
"""Success is measured every so many updates, once it can be anything but zero."""
SAMPLES = 600
MAX_TURN_TOKENS = 32
PAD, UNKNOWN = "<pad>", "<unknown>"


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "policy", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Decides weights, demonstrations and measurements.")
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
def main(out: Path, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    shutil.rmtree(out, ignore_errors=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    (out / MODEL_FILE).write_bytes(msgspec.json.encode(ModelFile("moonmill.agents.compact:CompactRenderer")))
    renderer = load_renderer(out)
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    warm_up(model, renderer, seed)
    model.save_pretrained(out)
    for temperature in (1.0, 0.0):
        solved = measure(model, renderer, temperature, seed + 1)
        levels = ", ".join(f"{level}: {_mean(solved, level):.2f}" for level in sorted({level for level, _ in solved}))
        print(f"temperature {temperature:g}: {_mean(solved):.3f} of {len(solved)} (by level: {levels})")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable character and each tag."""
    words = [PAD, UNKNOWN, *TAGS, "\n", *map(chr, range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[tag for tag in TAGS if tag != END],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def warm_up(model: LlamaForCausalLM, renderer: TurnRenderer, seed: int) -> None:
    """Train on demonstrations until `TARGET` is measured.

    Raises:
        SystemExit: the target was not reached in `MAX_UPDATES`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.01)
    demonstrations = _demonstrations(renderer, seed)
    for update in range(1, MAX_UPDATES + 1):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, update / LR_WARMUP)
        loss = _loss(model, list(islice(demonstrations, BATCH)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update < CHECK_FROM or update % CHECK_EVERY:
            continue
        success = _mean(measure(model, renderer, 1.0, seed))
        print(f"update {update}: loss {loss.item():.3f}, success {success:.3f}", flush=True)
        if success >= TARGET:
            return
    raise SystemExit(f"the policy did not solve {TARGET:.0%} of the tasks within {MAX_UPDATES} updates")


def measure(model: LlamaForCausalLM, renderer: TurnRenderer, temperature: float, seed: int) -> list[tuple[str, bool]]:
    """Level and outcome of `SAMPLES` held-out tasks that the policy plays by itself."""
    torch.manual_seed(seed)
    episodes = [_Episode(task, renderer) for task in islice(Calculator().tasks("eval"), SAMPLES)]
    while running := [episode for episode in episodes if not episode.over]:
        answers = _sample(model, [episode.context for episode in running], temperature)
        for episode, answer in zip(running, answers, strict=True):
            episode.act(answer)
    return [(episode.task.level, episode.solved) for episode in episodes]


class _Episode:
    """One task, played on the environment itself."""

    def __init__(self, task: Task, renderer: TurnRenderer) -> None:
        self.task = task
        self.over = False
        self.env = Calculator()
        self._renderer = renderer
        observation, _ = self.env.reset(seed=0, options={"task": task})
        self.messages: list[Message] = list(observation)
        self.context = renderer.prompt(self.messages, self.env.tool_specs)

    def act(self, completion: list[int]) -> None:
        tools = self.env.tool_specs
        message = self._renderer.parse(completion, self.context, tools)
        observation = self.say(message)
        added = None if self.over else self._renderer.extend(self.context, completion, observation, tools)
        self.over = added is None
        self.context = [*self.context, *completion, *(added or ())]

    def say(self, message: Message) -> Sequence[Message]:
        """Let the assistant say `message`; returns what the environment answers."""
        observation, _, terminated, truncated, _ = self.env.step(message)
        self.messages += [message, *observation]
        self.over = terminated or truncated or len(self.messages) > 2 * self.env.max_turns
        return observation

    @property
    def solved(self) -> bool:
        """Whether the last message is an answer, and the right one."""
        last = self.messages[-1]
        return last.role == "assistant" and last.content == str(self.task.answer)


def _sample(model: LlamaForCausalLM, contexts: list[list[int]], temperature: float) -> list[list[int]]:
    """One turn behind each context."""
    longest = max(map(len, contexts))
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    ids = torch.tensor([[pad] * (longest - len(c)) + c for c in contexts])
    choice: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    config = GenerationConfig(max_new_tokens=MAX_TURN_TOKENS, eos_token_id=end, pad_token_id=pad, **choice)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=(ids != pad).long(), generation_config=config)
    turns: list[list[int]] = out[:, longest:].tolist()
    return [turn[: turn.index(end) + 1] if end in turn else turn for turn in turns]


def _demonstrations(renderer: TurnRenderer, seed: int) -> Iterator[tuple[list[int], list[bool]]]:
    """Tokens of what the expert does on one training task after the other, and which of them it says."""
    for task in Calculator().tasks("train"):
        episode = _Episode(task, renderer)
        while not episode.over:
            episode.say(demonstrate(episode.messages))
        yield renderer.transcript(episode.messages, episode.env.tool_specs)


def _loss(model: LlamaForCausalLM, batch: list[tuple[list[int], list[bool]]]) -> torch.Tensor:
    """Mean negative log-likelihood of the tokens that the assistant says."""
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.full((len(batch), longest), model.config.pad_token_id)
    labels = torch.full((len(batch), longest), -100)
    for row, (tokens, said) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.where(torch.tensor(said), ids[row, : len(tokens)], -100)
    loss: torch.Tensor = model(input_ids=ids, attention_mask=(labels.new_ones(ids.shape)), labels=labels).loss
    return loss


def _mean(solved: list[tuple[str, bool]], level: str | None = None) -> float:
    outcomes = [ok for at, ok in solved if level in (None, at)]
    return sum(outcomes) / len(outcomes) if outcomes else math.nan


if __name__ == "__main__":
    main()
