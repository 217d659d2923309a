"""When servers would answer a prompt, by what they keep of it and by what they read and write."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise.units import MILLISECOND, SECOND
from poise_serve.model.estimates import Estimates, Known
from poise_serve.model.routing import Asked, Prompt
from poise_serve.policy.route import router_named


def prompt(*blocks: int, block: float = 100.0, writes: float = 50.0, streams: bool = True) -> Asked:
    tokens = len(blocks) * block
    return Asked(size=tokens + writes, prompt=Prompt(tokens, writes, blocks, block, streams))


class Machine:
    """Servers that read a token in 1 ms and write an answer in 200 ms, and estimates of them."""

    def __init__(self, *names: str) -> None:
        self.now, self.number = 0, 0
        self.names = names
        self.estimates = Estimates()
        for name in names:
            self.estimates.add(name, 0)

    def send(self, name: str, asked: Asked) -> str:
        self.number += 1
        self.estimates.sent(name, str(self.number), asked, self.now)
        return str(self.number)

    def answer(self, name: str, asked: Asked, reads: float) -> None:
        """One request by itself."""
        request = self.send(name, asked)
        self.now += round(reads * MILLISECOND)
        self.estimates.began(name, request, self.now)
        self.now += 200 * MILLISECOND
        self.estimates.answered(name, request, self.now)

    def goes(self, asked: Asked) -> str:
        servers = [Known(name, 1.0, 0, has_room=True) for name in self.names]
        view = self.estimates.view(asked, servers, 0, self.now)
        return router_named("expected-delay").decide(view).replica


def warm(*names: str) -> Machine:
    machine = Machine(*names)
    for turn in range(20):
        for name in names:
            blocks = [1000 * turn + 100 * names.index(name) + block for block in range(1 + turn % 4)]
            machine.answer(name, prompt(*blocks), reads=100.0 * len(blocks))
    return machine


def test_a_conversation_goes_on_where_it_was() -> None:
    machine = warm("a", "b")
    machine.answer("b", prompt(1, 2, 3), reads=300)
    assert machine.goes(prompt(1, 2, 3, 4)) == "b"
    machine.answer("a", prompt(7, 8, 9), reads=300)
    assert machine.goes(prompt(7, 8, 9, 10)) == "a"


def test_unless_its_server_has_so_much_to_read_that_it_is_sooner_read_elsewhere() -> None:
    machine = warm("a", "b")
    machine.answer("b", prompt(1, 2, 3), reads=300)
    machine.send("b", prompt(*range(50, 60)))
    assert machine.goes(prompt(1, 2, 3, 4)) == "a"


def test_what_is_kept_is_not_read_again() -> None:
    machine = warm("a")
    machine.answer("a", prompt(1, 2, 3, 4), reads=400)
    new = machine.estimates.known("a", prompt(5, 6, 7, 8), machine.now).cost
    again = machine.estimates.known("a", prompt(1, 2, 3, 4), machine.now).cost
    assert (new - 200 * MILLISECOND) / MILLISECOND == pytest.approx(400, rel=0.3)
    assert (again - 200 * MILLISECOND) / MILLISECOND < 100


def test_a_prompt_that_is_read_is_not_waited_for_any_more() -> None:
    """Reading 10 blocks is in the way of others, writing the answer is not."""
    machine = warm("a")
    request = machine.send("a", prompt(*range(50, 60)))
    before = machine.estimates.known("a", prompt(1), machine.now).backlog
    machine.now += SECOND
    machine.estimates.began("a", request, machine.now)
    after = machine.estimates.known("a", prompt(1), machine.now).backlog
    assert before > 700 * MILLISECOND
    assert after < 300 * MILLISECOND


def test_an_answer_in_one_piece_is_one_piece_of_work() -> None:
    machine = Machine("a")
    for turn in range(20):
        asked = prompt(turn, writes=0.0, streams=False)
        request = machine.send("a", asked)
        machine.estimates.began("a", request, machine.now)
        machine.now += 300 * MILLISECOND
        machine.estimates.answered("a", request, machine.now)
    assert machine.estimates.known("a", prompt(99, writes=0.0, streams=False), machine.now)[1] == pytest.approx(
        300 * MILLISECOND, rel=0.1
    )


def test_without_a_prompt_it_is_the_size_that_counts() -> None:
    machine = Machine("a")
    for _ in range(20):
        request = machine.send("a", Asked(size=5.0))
        machine.now += 100 * MILLISECOND
        machine.estimates.answered("a", request, machine.now)
    assert machine.estimates.known("a", Asked(size=5.0), machine.now) == (0, 100 * MILLISECOND, 0)
    assert machine.estimates.lasting("a", Asked(size=5.0), machine.now) == 100 * MILLISECOND


def test_a_server_that_tells_that_it_kept_nothing_is_believed() -> None:
    machine = warm("a", "b")
    for _ in range(40):
        for blocks in ((1, 2, 3), (4, 5, 6)):
            request = machine.send("b", prompt(*blocks))
            machine.now += 500 * MILLISECOND
            machine.estimates.answered("b", request, machine.now, cached=0.0)
    assert machine.estimates.prefixes("b").size < 1000
    assert machine.estimates.prefixes("a").size > 100_000


def test_of_what_was_given_up_nothing_is_in_flight() -> None:
    machine = warm("a")
    for begins in (False, True):
        request = machine.send("a", prompt(1, 2, 3))
        if begins:
            machine.estimates.began("a", request, machine.now)
        machine.estimates.dropped("a", request, machine.now)
        assert machine.estimates.known("a", prompt(9), machine.now)[0] == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sent", "began", "answered", "dropped"]),
            st.integers(0, 5),
            st.lists(st.integers(0, 5), max_size=5),
            st.booleans(),
            st.one_of(st.none(), st.floats(0, 1)),
        ),
        max_size=60,
    )
)
def test_whatever_is_told_what_is_foreseen_is_a_time(
    steps: list[tuple[str, int, list[int], bool, float | None]],
) -> None:
    estimates, flying = Estimates(), set[int]()
    estimates.add("r", 0)
    for now, (what, request, blocks, streams, cached) in enumerate(steps):
        asked = prompt(*dict.fromkeys(blocks), streams=streams)
        if what == "sent" and request not in flying:
            estimates.sent("r", str(request), asked, now)
            flying.add(request)
        elif what == "began":
            estimates.began("r", str(request), now)
        elif what == "answered":
            estimates.answered("r", str(request), now, cached=cached)
            flying.discard(request)
        elif what == "dropped":
            estimates.dropped("r", str(request), now)
            flying.discard(request)
        backlog, cost, delays = estimates.known("r", asked, now)
        assert min(backlog, cost, delays) >= 0
        assert flying or backlog == delays == 0
