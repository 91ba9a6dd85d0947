"""Episodes: nothing breaks, and equal seeds make equal episodes, alone, side by side, and one after another."""

import re
from collections.abc import Iterator

from moonmill.blame import text_of
from moonmill.envs.checker.findings import Finding, error, place, warning
from moonmill.envs.checker.subject import Subject, Trace
from moonmill.envs.differences import Difference
from moonmill.types import StopReason

_EPISODES = 6
"""Played to see whether something breaks."""
_TOLD = ("invalid_arguments", "unknown_tool")
"""Faults that are the player's."""
_SIDE_BY_SIDE = (0, 1)
_PLACE = re.compile(r"(.*) \(([^()]*:\d+[^()]*)\)", re.DOTALL)


async def episodes(subject: Subject) -> list[Finding]:
    """Whatever the player does, the environment's code does not break, and every call is answered."""
    found: dict[str, Finding] = {}
    for index in range(_EPISODES):
        trace = await subject.play(index)
        for finding in (*_broken(trace), *_unanswered(subject, trace), *_faults(trace)):
            found.setdefault(finding.where or finding.what, finding)
    return list(found.values())


async def rewards(subject: Subject) -> list[Finding]:
    """What the episodes were worth lies within the bounds."""
    found: dict[str, Finding] = {}
    for trace in subject.traces:
        rollout = trace.rollout
        if rollout is None or rollout.error is None:
            continue
        is_wrong = rollout.stop_reason is StopReason.SCORING_ERROR
        tell, advice = (
            (error, "return a finite number within reward_bounds, which the class sets")
            if is_wrong
            else (warning, "return a number: a rollout without a reward is counted and shown, but not trained on")
        )
        answer = trace.turns[-1][0].content if trace.turns else ""
        finding = tell(rollout.error, advice, where=place(type(subject.env)), value=f"the answer was {answer!r}")
        found.setdefault(finding.what, finding)
    return list(found.values())


async def determinism(subject: Subject) -> list[Finding]:
    """The same task and seed make the same episode."""
    parted = (await subject.play(0)).difference(await subject.play(0))
    if parted is None:
        return []
    return [
        _differs(
            subject,
            parted,
            "the same task, seed and actions made two episodes",
            "draw from `self.rng` alone, use no clock and no uuid, and keep the episode's state in `self`",
        )
    ]


async def interleaving(subject: Subject) -> list[Finding]:
    """Two episodes that go on at once, a turn of the one and a turn of the other, are what they are alone."""
    alone = [await subject.play(index) for index in _SIDE_BY_SIDE]
    first, second = _SIDE_BY_SIDE
    async with subject.episode(first) as one, subject.episode(second) as other:
        for episode in (one, other):
            await episode.reset()
        while not (one.trace.over and other.trace.over):
            for episode in (one, other):
                await episode.turn()
        for episode in (one, other):
            await episode.score()
    for before, episode in zip(alone, (one, other), strict=True):
        if parted := before.difference(episode.trace):
            return [
                _differs(
                    subject,
                    parted,
                    "an episode went otherwise because another went on beside it",
                    "keep the episode's state in `self`: what stands in the class or the module is shared by all",
                )
            ]
    return []


async def reset(subject: Subject) -> list[Finding]:
    """A second `reset` of the same instance begins as a new one would."""
    new = await subject.play(1)
    async with subject.episode(0) as episode:
        await episode.finish()
        episode.trace.task, episode.trace.seed = new.task, new.seed
        if episode.trace.error is None:
            await episode.reset()
            await episode.finish()
    if episode.trace.error is not None and new.error is None:
        said = text_of(episode.trace.error)
        return [
            error(f"a second reset of one instance raised: {said}", "let `close` leave what `setup` can open again")
        ]
    if parted := new.difference(episode.trace):
        return [
            _differs(
                subject,
                parted,
                "an episode after a second `reset` is not what a new instance would make of it",
                "change nothing that the constructor was given, nor the class or the module: copy it into `self`",
            )
        ]
    return []


def _differs(subject: Subject, parted: Difference, what: str, advice: str) -> Finding:
    shared = ", ".join(_shared(type(subject.env)))
    return error(
        f"{what}: {parted.where} differs",
        f"{advice}; the class has {shared}, which can be changed" if shared else advice,
        where=place(type(subject.env)),
        value=f"{parted.first} then, {parted.second} now",
    )


def _shared(owner: type) -> Iterator[str]:
    """What an author's classes hold that all their episodes could change."""
    for cls in owner.__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, list | dict | set | bytearray) and not name.startswith("__"):
                yield f"{cls.__name__}.{name}"


def _broken(trace: Trace) -> list[Finding]:
    if trace.error is None:
        return []
    doing = ", ".join(call.name for call in trace.turns[-1][0].tool_calls) if trace.turns else "nothing yet"
    said, where = _apart(text_of(trace.error))
    return [
        error(
            f"the environment's own code broke: {said}",
            "mend it, or catch what is the model's fault: such a rollout fails and is not trained on",
            where=where,
            value=f"task {trace.task.id}; the last turn called {doing or 'no tool'}",
        )
    ]


def _unanswered(subject: Subject, trace: Trace) -> list[Finding]:
    for said, answers in trace.turns if not trace.over or trace.terminated else trace.turns[:-1]:
        wanted = [call.id for call in said.tool_calls]
        given = [message.tool_call_id for message in answers if message.role == "tool"]
        if given != wanted:
            return [
                error(
                    "a turn's calls are not answered one by one, in their order, and chat formats insist on that",
                    "let an override of `step` return what `super().step(action)` gives, or a Message('tool', …, "
                    "tool_call_id=call.id) for each call",
                    where=place(type(subject.env).step),
                    value=f"called {', '.join(wanted)}; answered {', '.join(map(str, given)) or 'nothing'}",
                )
            ]
    return []


def _faults(trace: Trace) -> list[Finding]:
    """What tools raised. A fault is counted by tool and kind alone, so the call is looked for by its answer."""
    found = []
    for fault in trace.faults:
        if fault.kind in _TOLD:
            continue
        said = f"error: {fault.kind}: "
        answers = (m for _, new in trace.turns for m in new if m.name == fault.tool and m.content.startswith(said))
        raised = ((call, m) for m in answers if (call := trace.right.get(m.tool_call_id or "")))
        if (first := next(raised, None)) is not None:
            call, answer = first
            found.append(
                warning(
                    f"the tool {fault.tool} raised {fault.kind} at arguments that its schema allows",
                    "answer with what was wrong with them, so that the model can do better, or say in the types what "
                    "is allowed",
                    where=_apart(fault.example)[1],
                    value=f"{call.name}({call.arguments}): {answer.content.removeprefix(said)}",
                )
            )
    return found


def _apart(said: str) -> tuple[str, str]:
    """What an error says, and the place behind it, if there is one."""
    found = _PLACE.fullmatch(said)
    return (found[1], found[2]) if found else (said, "")
