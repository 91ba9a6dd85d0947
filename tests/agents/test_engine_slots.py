"""Whose tokens are cached where."""

from hypothesis import given
from hypothesis import strategies as st

from moonmill.agents.engine.slots import SlotTable, common_prefix


def serve(table: SlotTable, version: str, prompt: list[int], sampled: list[int]) -> int:
    """A request from its start to its end; returns its slot. The last token sampled is never computed."""
    placement = table.place(version, prompt)
    assert placement is not None
    prompt += sampled
    placement.slot.length = len(prompt) - 1
    table.release(placement.slot)
    return placement.slot.index


def test_the_next_turn_of_a_conversation_continues_its_slot() -> None:
    table = SlotTable(3)
    serve(table, "a", [9, 9, 9], [9])
    home = serve(table, "a", [1, 2, 3], [4, 5])
    placement = table.place("a", [1, 2, 3, 4, 5, 6, 7])
    assert placement is not None
    assert (placement.slot.index, placement.cached, placement.source) == (home, 4, None)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    table = SlotTable(1)
    serve(table, "a", [1, 2, 3], [4, 5])
    placement = table.place("a", [1, 2, 3])
    assert placement is not None
    assert placement.cached == 2


def test_versions_never_share() -> None:
    table = SlotTable(1)
    serve(table, "a", list(range(50)), [1, 2])
    placement = table.place("b", list(range(50)))
    assert placement is not None
    assert (placement.cached, placement.source) == (0, None)


def test_a_forgotten_version_leaves_nothing() -> None:
    table = SlotTable(1)
    serve(table, "a", [1, 2, 3], [4])
    table.forget("a")
    placement = table.place("a", [1, 2, 3, 4])
    assert placement is not None
    assert placement.cached == 0


def test_an_empty_slot_is_taken_before_a_conversation_is_lost() -> None:
    table = SlotTable(2)
    home = serve(table, "a", [1, 2, 3], [4])
    placement = table.place("a", [7, 8, 9])
    assert placement is not None
    assert placement.slot.index != home


def test_without_an_empty_slot_the_one_idle_longest_is_lost() -> None:
    table = SlotTable(2)
    oldest = serve(table, "a", [1, 2, 3], [4])
    serve(table, "a", [5, 6, 7], [8])
    placement = table.place("a", [9, 9, 9])
    assert placement is not None
    assert placement.slot.index == oldest


def test_a_long_shared_prompt_is_copied_from_a_slot_in_use() -> None:
    table = SlotTable(2)
    prompt = list(range(40))
    first = table.place("a", [*prompt])
    assert first is not None
    first.slot.length = 40
    second = table.place("a", [*prompt, 77])
    assert second is not None
    assert second.slot is not first.slot
    assert (second.cached, second.source) == (40, first.slot)


def test_a_long_conversation_is_not_cut_for_a_short_common_beginning() -> None:
    table = SlotTable(2)
    system = list(range(30))
    long = serve(table, "a", [*system, *range(100, 200)], [1])
    placement = table.place("a", [*system, 7, 7])
    assert placement is not None
    assert placement.slot.index != long
    assert placement.source is table.slots[long]
    assert placement.cached == 30


def test_there_is_no_place_when_all_are_busy() -> None:
    table = SlotTable(1)
    assert table.place("a", [1, 2]) is not None
    assert table.place("a", [3, 4]) is None


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20))
def test_the_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    limit = min(len(a), len(b))
    expected = next((i for i in range(limit) if a[i] != b[i]), limit)
    assert common_prefix(a, b, limit) == expected
