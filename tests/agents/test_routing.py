"""Which engine a request goes to, by hand-made loads and times."""

from collections import Counter

from moonmill.agents.pending import Run
from moonmill.agents.routing import Route, Router
from moonmill.types import Sampling

URLS = ["http://a", "http://b", "http://c"]


def send(router: Router, session: str = "", now: float = 0.0) -> Route:
    """A request that stays in flight."""
    route = router.choose(session, (), now)
    assert route is not None
    load(route, 1)
    return route


def load(route: Route, count: int) -> None:
    route.runs |= {Run([1], Sampling(), 0, frozenset(), "") for _ in range(count)}


def test_requests_go_to_the_engine_with_the_fewest_in_flight() -> None:
    router = Router(URLS)
    load(router.routes[1], 30)
    assert Counter(send(router).url for _ in range(40)) == {"http://a": 20, "http://c": 20}


def test_one_after_another_they_take_turns() -> None:
    router = Router(URLS)
    seen = Counter(route.url for _ in range(30) if (route := router.choose("", (), 0.0)))
    assert set(seen.values()) == {10}


def test_a_session_stays_while_its_engine_is_not_much_busier() -> None:
    router = Router(URLS)
    home = send(router, "s")
    load(home, 3)
    assert send(router, "s") is home, "4 ahead"
    assert send(router, "s") is not home, "5 ahead"
    assert send(router, "s") is not home, "it has a new home"


def test_among_busy_engines_more_ahead_is_still_near() -> None:
    router = Router(URLS[:2])
    home = send(router, "s")
    load(home, 99)
    load(router.routes[1], 80)
    assert send(router, "s") is home, "100 to 80 is a quarter more"


def test_an_engine_that_is_closed_gets_nothing_until_it_is_moved() -> None:
    router = Router(URLS[:2])
    home = send(router, "s")
    (run,) = home.runs
    assert router.close(0) == (run,)
    assert {send(router, "s").url for _ in range(20)} == {"http://b"}
    router.move(0, "http://d/")
    assert send(router).url == "http://d"


def test_where_all_are_closed_there_is_none() -> None:
    router = Router(URLS[:1])
    router.close(0)
    assert router.choose("", (), 0.0) is None
    assert not router.has_other((), 0.0)


def test_one_that_was_missed_is_passed_over_and_then_tried_with_one_request() -> None:
    router = Router(URLS[:2])
    missed = router.routes[0]
    missed.miss(10.0)
    assert [send(router, now=11.0).url for _ in range(3)] == ["http://b"] * 3
    assert [send(router, now=13.0).url for _ in range(3)] == ["http://a", "http://b", "http://b"]
    missed.answered()
    assert send(router, now=13.0) is missed


def test_what_was_tried_is_tried_again_only_where_there_is_no_other() -> None:
    router = Router(URLS[:2])
    first, second = router.routes
    assert router.has_other({first}, 0.0)
    assert router.choose("", {first}, 0.0) is second
    second.miss(0.0)
    assert not router.has_other({first}, 1.0)
    assert router.choose("", {first}, 1.0) is not None


def test_many_sessions_cost_no_memory_without_bound() -> None:
    router = Router(URLS)
    for number in range(20_000):
        router.choose(f"s{number}", (), 0.0)
    assert len(router._homes) < 10_000
