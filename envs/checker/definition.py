"""What an environment's class says of itself: its methods, its tools, its scores."""

import inspect

from moonmill.blame import blaming
from moonmill.envs.base import MultiTurnEnv
from moonmill.envs.checker.findings import Finding, error, place, warning
from moonmill.envs.checker.subject import Subject
from moonmill.envs.docstrings import parse_docstring
from moonmill.envs.limits import limits_of
from moonmill.envs.tools import Tool
from moonmill.errors import EnvCodeError

_CALLED = {"reset": ((), ("seed", "options")), "step": (("action",), ()), "tasks": (("split",), ())}
"""How each of an author's methods is called: by position, by name."""
_LARGE_SCHEMA = 4000
"""Characters of a tool as the model is told it."""


async def signatures(subject: Subject) -> list[Finding]:
    """An author's methods can be called as Moonmill calls them, and the limits are limits."""
    owner, found = type(subject.env), []
    for name, (positional, named) in _CALLED.items():
        method = getattr(owner, name)
        signature = inspect.signature(method)
        try:
            signature.bind(subject.env, *positional, **dict.fromkeys(named))
        except TypeError as e:
            wanted = ", ".join(("self", *positional, *["*"][: len(named)], *(f"{n}=None" for n in named)))
            found.append(
                error(
                    f"{owner.__name__}.{name} cannot be called as it is: {e}",
                    f"write `def {name}({wanted})`",
                    where=place(method),
                    value=f"{name}{signature}",
                )
            )
    try:
        with blaming(subject.env_id, "its limits"):
            limits_of(subject.env)
    except EnvCodeError as e:
        found.append(error(str(e), "set it in the class or in the constructor", where=place(owner)))
    return found


async def documentation(subject: Subject) -> list[Finding]:
    """Whoever lists the environment, and the model that is given its tools, is told what they are."""
    owner, found = type(subject.env), []
    if not (owner.__doc__ or "").strip():
        found.append(
            warning(
                f"{owner.__name__} has no docstring, and `moonmill envs list` shows its first line",
                "say in one line what the model is to do",
                where=place(owner),
            )
        )
    for tool in subject.env._moonmill_class.tools.values():
        found += _documentation_of(owner, tool)
    return found


def _documentation_of(owner: type, tool: Tool) -> list[Finding]:
    method, spec, found = getattr(owner, tool.method), tool.spec, []
    where = place(method)
    if not spec.description:
        found.append(
            warning(
                f"the tool {spec.name} has no description, and it is all the model knows of it",
                "give the method a docstring: its first paragraph is the description",
                where=where,
            )
        )
    told = parse_docstring(method.__doc__ or "").args
    parameters = tool.arguments.__struct_fields__
    found += [
        warning(
            f"the docstring of the tool {spec.name} explains {name!r}, which is no parameter of it",
            f"name one of its parameters ({', '.join(parameters) or 'none'}), or remove it",
            where=where,
        )
        for name in told
        if name not in parameters
    ]
    silent = [n for n, schema in spec.parameters.get("properties", {}).items() if not schema.get("description")]
    if silent:
        found.append(
            warning(
                f"the tool {spec.name} does not say what {' and '.join(silent)} {'is' if len(silent) == 1 else 'are'}",
                "add a line `NAME: what it is` below `Args:` in its docstring",
                where=where,
            )
        )
    return found


async def schemas(subject: Subject) -> list[Finding]:
    """What chat APIs and models' formats take."""
    owner, found = type(subject.env), []
    for tool in subject.env._moonmill_class.tools.values():
        where, parameters = place(getattr(owner, tool.method)), tool.spec.parameters
        if "$defs" in parameters:
            found.append(
                warning(
                    f"the schema of the tool {tool.spec.name} refers to itself, which many models' formats cannot say",
                    "take a list of plain values, or a text that the tool reads itself",
                    where=where,
                    value=", ".join(parameters["$defs"]),
                )
            )
        size = len(str(tool.spec.to_openai()))
        if size > _LARGE_SCHEMA:
            found.append(
                warning(
                    f"the tool {tool.spec.name} takes {size} characters of every prompt",
                    "shorten its description, or take fewer parameters",
                    where=where,
                )
            )
    return found


def _rewards_turns(owner: type[MultiTurnEnv]) -> bool:
    """Whether a method of the author's speaks of a turn's reward, or gives it, as a `step` of its own does."""
    methods = [
        (name, inspect.unwrap(method))
        for cls in owner.__mro__[: owner.__mro__.index(MultiTurnEnv)]
        for name, method in vars(cls).items()
        if inspect.isfunction(method)
    ]
    return any(name == "step" or {"add_reward", "finish"} & {*method.__code__.co_names} for name, method in methods)


async def scores(subject: Subject) -> list[Finding]:
    """There is something to learn from: a reward of the episode, or of a turn."""
    owner = type(subject.env)
    marked = any(mark.kind == "reward" for mark in subject.env._moonmill_class.marks)
    if marked or any(reward for trace in subject.traces for reward in trace.turn_rewards) or _rewards_turns(owner):
        return []
    return [
        warning(
            f"{owner.__name__} has no @reward method, and no turn of {len(subject.traces)} episodes earned anything",
            "write a method with @reward, or call `self.add_reward(…)` or `self.finish(reward=…)` in a tool, or return "
            "it from a `step` of your own",
            where=place(owner),
        )
    ]
