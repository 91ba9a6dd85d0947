"""The tasks: there are some, they are the same whenever they are made, and what is held out is held out."""

import msgspec

from moonmill.blame import blaming, text_of
from moonmill.config import ModelConfig
from moonmill.envs.checker.findings import Finding, error, place, warning
from moonmill.envs.checker.subject import SPLITS, Subject, as_recorded
from moonmill.envs.differences import first_difference
from moonmill.envs.lifecycle import prompt_of
from moonmill.envs.tasks import filled_in_seed
from moonmill.errors import MoonmillError
from moonmill.types import Task

_MANY_SHARED = 0.1
"""Of the tasks in `eval`: more than so many that are in `train` as well is no accident."""
_COMPARED = 20
"""Tasks of a split that are made a second time."""
_TOKEN_CHARS = 4
"""Characters of a token of English, about."""


async def tasks(subject: Subject) -> list[Finding]:
    """Both splits have tasks, and each asks for something."""
    found = []
    for split in SPLITS:
        try:
            subject.tasks[split] = await subject.fetch(split)
        except MoonmillError as e:
            found.append(
                error(
                    f"the tasks of the split {split!r} cannot be had: {text_of(e)}",
                    "mend `tasks`; what it yields must be a Task of texts, numbers, lists and dicts",
                    where=place(type(subject.env).tasks),
                )
            )
    if found:
        return found
    where = place(type(subject.env).tasks)
    found = [
        warning(
            f"there are no tasks in the split {split!r}",
            f"yield some from `tasks({split!r})`, unless it is to be without",
            where=where,
        )
        for split in SPLITS
        if not subject.tasks[split]
    ]
    if len(found) == len(SPLITS):
        return [error("there are no tasks at all", "yield some from `tasks`", where=where)]
    for task in _all(subject):
        if not any(message.content.strip() for message in task.messages()):
            return [*found, error(f"task {task.id} has an empty prompt", "say in it what the model is to do")]
    return found


async def splits(subject: Subject) -> list[Finding]:
    """No problem is in both splits, whatever it is called."""
    train, held_out = (_problems(subject, split) for split in SPLITS)
    known = dict(train)
    shared = [(task, known[problem]) for problem, task in held_out if problem in known]
    if not shared:
        return []
    task, other = shared[0]
    tell = error if len(shared) > _MANY_SHARED * len(held_out) else warning
    return [
        tell(
            f"{len(shared)} of the first {len(held_out)} tasks of `eval` are among the first {len(train)} of `train`: "
            "an evaluation would measure memory",
            "decide by the problem itself where it belongs, as by a hash of its text; another seed alone does not keep "
            "splits apart. Where the prompt does not tell the problem, put what does into the task's answer, info or "
            "seed",
            where=place(type(subject.env).tasks),
            value=f"{task.id} is {other.id}: {task.messages()[-1].content}",
        )
    ]


async def stability(subject: Subject) -> list[Finding]:
    """The same tasks from another instance."""
    for split in SPLITS:
        again = await subject.fetch(split, _COMPARED)
        first = subject.tasks[split][: len(again)]
        if parted := first_difference(_told(first), _told(again[: len(first)])):
            return [
                error(
                    f"the tasks of the split {split!r} are other ones each time they are made: {parted.where} differs",
                    "draw from `self.task_rng(split)` alone, and leave nothing in `self`, the class or the module "
                    "that changes what comes next",
                    where=place(type(subject.env).tasks),
                    value=f"{parted.first} then, {parted.second} now",
                )
            ]
    return []


async def prompts(subject: Subject) -> list[Finding]:
    """Prompt and tools leave room for an answer. Without a model tokens are guessed, at four characters each."""
    env, usual = subject.env, ModelConfig("").max_length
    tools = sum(len(str(tool.to_openai())) for tool in env.tool_specs)
    sizes = {}
    for task in _all(subject):
        env.task = task
        with blaming(subject.env_id, "its system_prompt"):
            told = sum(len(message.content) for message in prompt_of(env))
        sizes[task.id] = (told + tools) // _TOKEN_CHARS
    longest = max(sizes, key=lambda name: sizes[name])
    tokens, value = sizes[longest], f"about {sizes[longest]} tokens, {tools // _TOKEN_CHARS} of them for the tools"
    if env.max_tokens is not None and tokens >= env.max_tokens:
        return [
            error(
                f"the prompt of task {longest} is longer than max_tokens ({env.max_tokens}): the episode would end at "
                "its first turn",
                "shorten the prompt, or raise max_tokens",
                where=place(type(env)),
                value=value,
            )
        ]
    if tokens >= usual:
        return [
            warning(
                f"the prompt of task {longest} may not fit: a model's context has {usual} tokens unless "
                "model.max_length says otherwise",
                "set model.max_length in the config, or shorten the prompt",
                where=place(type(env)),
                value=value,
            )
        ]
    return []


async def recording(subject: Subject) -> list[Finding]:
    """A task that was written into a log and read again plays as it did: so episodes can be replayed."""
    task = subject.task(0)
    before = await subject.play(0)
    if not (parted := before.difference(await subject.play(0, task=as_recorded(task)))):
        return []
    return [
        error(
            f"task {task.id} plays otherwise once it has been in a log: {parted.where} differs",
            "read `self.task.answer` and `info` as JSON has them: a tuple or set comes back as a list, a Struct as a "
            "dict (`msgspec.convert(self.task.answer, Type)` takes both)",
            where=place(type(subject.env)),
            value=f"{parted.first} before, {parted.second} after",
        )
    ]


def _all(subject: Subject) -> list[Task]:
    return [task for split in SPLITS for task in subject.tasks[split]]


def _problems(subject: Subject, split: str) -> list[tuple[bytes, Task]]:
    """The tasks of a split, each behind what makes it the problem it is."""
    found = []
    for index, task in enumerate(subject.tasks[split]):
        # A seed that its author gave decides what is played; one that is filled in makes no problem another.
        seed = task.seed if task.seed != filled_in_seed(subject.seed, split, index) else None
        parts = (task.messages(), task.answer, task.info, seed)
        found.append((msgspec.json.encode(parts, order="deterministic"), task))
    return found


def _told(tasks: list[Task]) -> list[tuple[str, str]]:
    return [(f"task {task.id}", msgspec.json.encode(task, order="deterministic").decode()) for task in tasks]
