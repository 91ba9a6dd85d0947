"""Make a starter policy: that of the calculator example, or of another environment with an expert.

A Llama of 0.22M parameters over characters, warmed up on what a scripted expert says, on training tasks, on the tokens
of its turns alone. It stops as soon as the policy, sampled at temperature 1 on held-out tasks, solves a share of them:
good enough that every level is solved now and then, bad enough that reinforcement learning has something to do. Success
passes from 5% to 50% within a few dozen updates: it is measured, not scheduled.
"""

import math
import runpy
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moonmill.agents.compact import END, TAGS
from moonmill.agents.rendering import MODEL_FILE, ModelFile, TurnRenderer, load_renderer
from moonmill.envs import MultiTurnEnv, Taskset
from moonmill.envs.scoring import score
from moonmill.registry import make
from moonmill.types import Message, Rollout, Status, StopReason, Task

BATCH, MICRO_BATCH = 64, 16
"""Conversations per update, and per forward pass: those of similar length, so that little padding is computed."""
LR, LR_WARMUP = 2e-3, 50
"""AdamW's learning rate rises for so many updates and then stays: one that falls leaves a policy that is right but
unsure (80% greedy at 38%), of which reinforcement learning makes less."""
MAX_UPDATES = 2000
CHECK_FROM, CHECK_EVERY = 300, 5
"""Success is measured every so many updates, once it can be anything but zero."""
CHECK_SAMPLES, SAMPLES = 300, 600
"""Held-out tasks of such a check, and of the figures printed at the end."""
MAX_TURN_TOKENS = 32
"""Limit of a turn, the one of `demo.yaml`."""
PAD, UNKNOWN = "<pad>", "<unknown>"

Expert = Callable[[Sequence[Message]], Message]
"""What it says next in a conversation."""
Demonstration = tuple[list[int], list[bool]]
"""Tokens of a conversation, and which of them the assistant says."""


class Course(NamedTuple):
    """What a policy is to learn."""

    env: Callable[[], MultiTurnEnv]
    expert: Expert
    target: float
    """Share of held-out tasks solved, at which it is enough."""
    max_length: int
    """Tokens of an episode."""


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "policy", show_default=True)
@click.option("--env", "env_id", default="calculator-v0", show_default=True, help="An id, or file.py:Class.")
@click.option(
    "--expert",
    default="moonmill.envs.library.calculator:demonstrate",
    show_default=True,
    help="A function from the messages so far to the expert's next: module:function, or file.py:function.",
)
@click.option("--target", default=0.35, show_default=True, help="Share of held-out tasks at which it is enough.")
@click.option("--max-length", default=256, show_default=True, help="Tokens of an episode.")
@click.option("--seed", default=0, show_default=True, help="Decides weights, demonstrations and measurements.")
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
def main(out: Path, env_id: str, expert: str, target: float, max_length: int, seed: int, threads: int) -> None:
    """Make, warm up, save and measure a policy."""
    course = Course(partial(make, env_id), load_expert(expert), target, max_length)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    shutil.rmtree(out, ignore_errors=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    tools = {tool.name: (*tool.parameters["properties"],) for tool in course.env().tool_specs}
    told = ModelFile("moonmill.agents.compact:CompactRenderer", knows_tools=tools)
    (out / MODEL_FILE).write_bytes(msgspec.json.encode(told) + b"\n")
    renderer = load_renderer(out)
    model = make_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    warm_up(model, renderer, course, seed)
    model.save_pretrained(out)
    for temperature in (1.0, 0.0):
        outcomes = measure(model, renderer, course, temperature, seed + 1, SAMPLES)
        levels = ", ".join(f"{level}: {_mean(outcomes, level):.2f}" for level in sorted({at for at, _ in outcomes}))
        print(f"temperature {temperature:g}: {_mean(outcomes):.3f} of {len(outcomes)} solved; by level {levels}")


def load_expert(place: str) -> Expert:
    """The function at `module:function`, or `file.py:function`."""
    where, _, name = place.rpartition(":")
    found: Expert = runpy.run_path(where)[name] if where.endswith(".py") else getattr(import_module(where), name)
    return found


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
        extra_special_tokens=[tag for tag in TAGS if tag != END],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The model, untrained."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=32,  # vLLM's attention on a CPU takes no 16.
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def warm_up(model: LlamaForCausalLM, renderer: TurnRenderer, course: Course, seed: int) -> None:
    """Train on demonstrations until the course's target is measured.

    Raises:
        SystemExit: it was not reached in `MAX_UPDATES`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.01)
    demonstrations = _demonstrations(renderer, course, seed)
    for update in range(1, MAX_UPDATES + 1):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, update / LR_WARMUP)
        optimizer.zero_grad()
        loss = _backward(model, list(islice(demonstrations, BATCH)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update >= CHECK_FROM and update % CHECK_EVERY == 0:
            success = _mean(measure(model, renderer, course, 1.0, seed, CHECK_SAMPLES))
            print(f"update {update}: loss {loss:.3f}, success {success:.3f}", flush=True)
            if success >= course.target:
                return
        elif update % 50 == 0:
            print(f"update {update}: loss {loss:.3f}", flush=True)
    raise SystemExit(f"the policy did not solve {course.target:.0%} of the tasks within {MAX_UPDATES} updates")


def measure(
    model: LlamaForCausalLM, renderer: TurnRenderer, course: Course, temperature: float, seed: int, samples: int
) -> list[tuple[str, bool]]:
    """Level and success of held-out tasks that the policy plays by itself."""
    torch.manual_seed(seed)
    episodes = [_Episode(task, renderer, course) for task in islice(_tasks(course, "eval", seed), samples)]
    while running := [episode for episode in episodes if not episode.over]:
        turns = _sample(model, [episode.context for episode in running], temperature)
        for episode, tokens in zip(running, turns, strict=True):
            episode.act(tokens)
    return [(episode.env.task.level, episode.solved) for episode in episodes]


class _Episode:
    """One task, played on the environment itself."""

    def __init__(self, task: Task, renderer: TurnRenderer, course: Course) -> None:
        self.env = course.env()
        self._max_length = course.max_length
        self.over = False
        self._renderer = renderer
        observation, _ = self.env.reset(options={"task": task})
        self.context = renderer.prompt(observation, self.env.tool_specs)
        self._completed = False

    def act(self, tokens: list[int]) -> None:
        """Take a sampled turn."""
        tools = self.env.tool_specs
        self.env.finish_reason = "stop" if tokens[-1] in self._renderer.stop_token_ids else "length"
        observation = self.say(self._renderer.parse(tokens, self.context, tools))
        if not self.over:
            self.context += [*tokens, *(self._renderer.extend(self.context, tokens, observation, tools) or ())]
            self.over = len(self.context) > self._max_length

    def say(self, message: Message) -> Sequence[Message]:
        """Let the assistant say `message`; returns what the environment answers."""
        observation: Sequence[Message]
        observation, _, self._completed, truncated, _ = self.env.step(message)
        self.over = self._completed or truncated
        return observation

    @property
    def solved(self) -> bool:
        status = Status.FINISHED if self._completed else Status.TRUNCATED
        rollout = Rollout("", "", self.env.task, status, StopReason.ANSWERED, messages=tuple(self.env.messages))
        return score(self.env, "", rollout).reward == 1


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


def _tasks(course: Course, split: str, seed: int) -> Iterator[Task]:
    taskset = Taskset(course.env, split, seed)
    return (taskset.task(index) for index in count())


def _demonstrations(renderer: TurnRenderer, course: Course, seed: int) -> Iterator[Demonstration]:
    """What the expert does on one training task after the other."""
    for task in _tasks(course, "train", seed):
        episode = _Episode(task, renderer, course)
        while not episode.over:
            episode.say(course.expert(episode.env.messages))
        yield renderer.transcript(episode.env.messages, episode.env.tool_specs)


def _backward(model: LlamaForCausalLM, batch: list[Demonstration]) -> float:
    """Gradient and value of the mean negative log-likelihood of the tokens that the assistant says."""
    total = sum(sum(said) for _, said in batch)
    batch = sorted(batch, key=lambda demonstration: len(demonstration[0]))
    value = 0.0
    for micro in (batch[start : start + MICRO_BATCH] for start in range(0, len(batch), MICRO_BATCH)):
        longest = len(micro[-1][0])
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in micro])
        said = torch.tensor([flags + [False] * (longest - len(flags)) for _, flags in micro])
        logits = model(input_ids=ids).logits[:, :-1][said[:, 1:]]
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][said[:, 1:]], reduction="sum") / total
        loss.backward()  # type: ignore[no-untyped-call]
        value += loss.item()
    return value


def _mean(outcomes: list[tuple[str, bool]], level: str | None = None) -> float:
    chosen = [solved for at, solved in outcomes if level in (None, at)]
    return sum(chosen) / len(chosen) if chosen else math.nan


if __name__ == "__main__":
    main()
