"""TRL's GRPOTrainer, an update at a time: what `bench_learner.py --trl PYTHON` starts with that Python.

    python trl_update.py FOLDER THREADS

FOLDER has a model and `rollouts.json`: `{"lr": …, "rollouts": [{"prompt", "completion", "mask", "logprobs", "reward",
"group"}]}`, the mask telling the completion's sampled tokens. Generation costs nothing: a `rollout_func` hands out the
rollouts as they were recorded. Every line on stdin is answered, on stdout, by an update's `{"seconds", "norm"}`: from
having the rollouts (padding, rewards, advantages) to updated weights; `_generate`, with its copies and decoding of text
for the log, is not counted. It imports nothing of Moonmill.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": sys.argv[2], "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # What a trainer prints is not for the one who asks.

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from transformers import AutoConfig, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class InTurns(TrainerCallback):
    """Waits for a line before each update, and answers after it."""

    trainer: "Measured"

    def on_step_begin(self, args, state, control, **kwargs):
        if not sys.stdin.readline():
            os._exit(0)
        self.trainer.generating = 0.0
        self.begin = time.perf_counter()

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.norm = 0.0
        if state.global_step == 0:
            self.norm = float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.begin - self.trainer.generating
        answers.write(json.dumps({"seconds": seconds, "norm": self.norm}) + "\n")


class Measured(GRPOTrainer):
    """Tells how long an update waited for its rollouts."""

    generating = 0.0

    def _generate(self, prompts):
        begin = time.perf_counter()
        result = super()._generate(prompts)
        self.generating += time.perf_counter() - begin
        return result


def main(folder: Path, threads: int) -> None:
    """Train until stdin closes."""
    torch.set_num_threads(threads)
    given = json.loads((folder / "rollouts.json").read_text())
    groups: dict[str, list[dict]] = {}
    for rollout in given["rollouts"]:
        groups.setdefault(rollout["group"], []).append(rollout)

    def recorded(prompts, trainer):
        left = {group: iter(members) for group, members in groups.items()}
        taken = [next(left[prompt]) for prompt in prompts]
        return {
            "prompt_ids": [r["prompt"] for r in taken],
            "completion_ids": [r["completion"] for r in taken],
            "logprobs": [r["logprobs"] for r in taken],
            "env_mask": [r["mask"] for r in taken],
            "given": [r["reward"] for r in taken],
        }

    size = len(given["rollouts"])
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=size,
        num_generations=size // len(groups),
        max_completion_length=max(len(rollout["completion"]) for rollout in given["rollouts"]),
        max_steps=1_000_000,
        loss_type="grpo",
        learning_rate=given["lr"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1e9,
        model_init_kwargs={"dtype": "float32"},
        seed=0,
    )
    turns = InTurns()
    trainer = Measured(
        model=str(folder),
        reward_funcs=[lambda completions, given, **others: given],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": group} for group in groups]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1"),
        rollout_func=recorded,
        callbacks=[turns],
    )
    turns.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
