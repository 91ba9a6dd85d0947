"""What a program asked for, as contexts: every sampled token an action once, in whatever order things were asked."""

from hypothesis import given
from hypothesis import strategies as st

from moonmill import Action, Completion, Message, ToolCall
from moonmill.agents.recording import Recording, fingerprints
from moonmill.envs import ToolSpec

# Of few tokens, so that prompts collide: each answer continues an earlier one (or none), after cutting some of it.
asked = st.lists(
    st.tuples(
        st.integers(-1, 6),
        st.integers(0, 2),
        st.lists(st.integers(0, 1), max_size=2),
        st.lists(st.integers(0, 1), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@given(asked)
def test_every_sampled_token_is_an_action_once_in_the_context_it_was_sampled_in(drawn):
    recording = Recording()
    contexts: list[tuple[int, ...]] = []
    for number, (behind, cut, added, sampled) in enumerate(drawn):
        earlier = contexts[behind] if 0 <= behind < len(contexts) else (9,)
        prompt = (*earlier[: len(earlier) - cut], *added) or (9,)
        # A log-probability that names its token.
        logprobs = tuple(-1.0 - number - i / 10 for i in range(len(sampled)))
        recording.add(number, prompt, Completion(tuple(sampled), logprobs, (number,) * len(sampled), "stop"))
        contexts.append((*prompt, *sampled))
    found: dict[float, tuple[int, ...]] = {}
    for context in recording.contexts():
        before: tuple[int, ...] = ()
        for i, segment in enumerate(context):
            if isinstance(segment, Action):
                for j, logprob in enumerate(segment.logprobs):
                    assert logprob not in found
                    found[logprob] = before + segment.tokens[: j + 1]
            assert isinstance(segment, Action) == bool(i % 2)
            before += segment.tokens
        assert isinstance(context[-1], Action)
        assert before in contexts
    for number, (drawn_one, whole) in enumerate(zip(drawn, contexts, strict=True)):
        for i in range(len(drawn_one[3])):
            end = len(whole) - len(drawn_one[3]) + i + 1
            assert found.pop(-1.0 - number - i / 10) == whole[:end]
    assert not found


def test_a_client_that_writes_what_it_was_told_in_its_own_way_means_the_same():
    told = Message("assistant", "well\n", (ToolCall("c", "f", {"a": 1, "b": 2}),), reasoning="hm")
    back = Message("assistant", "well", (ToolCall("c", "f", {"b": 2, "a": 1}),))
    tool = ToolSpec("f", "does f", {"type": "object"})
    user = Message("user", "go")
    assert fingerprints([user, told], [tool]) == fingerprints([user, back], [tool])
    assert fingerprints([user, told], [tool]) != fingerprints([user, told], [])
    assert fingerprints([user, told], [])[0] != fingerprints([Message("user", "go ")], [])[0]
