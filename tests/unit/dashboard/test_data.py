"""Data functions: each answer is asked for once by all that ask the same, and wears the viewer's token."""

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from poise.client import Client
from poise.config import Home
from poise.dashboard import data
from poise.dashboard.data import Asked, Kept, LogTail
from poise.dashboard.mirror import SHARE, Pace
from poise.errors import NotFound, SpecError, Unreachable
from poise.model.decisions import Reason
from poise.model.reports.questions import WhyNot
from poise.model.reports.streams import LogEnd, LogLine, LogPiece


class Counting:
    """A data function that counts, and waits until it may answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = threading.Event()

    def __call__(self, client: Client, asked: Asked) -> int:
        self.asked += 1
        assert self.may.wait(120)
        return self.asked


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setitem(data.ROUTES, "counting", found)
    return found


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], Client]:
    return lambda: Client(Home(tmp_path), token=str(tmp_path), patience=0.0)


def test_many_that_ask_the_same_share_one_answer(counting: Counting, connect: Callable[[], Client]) -> None:
    kept = Kept()
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(kept.answer, "counting", "one", {"job": "j1"}, connect) for _ in range(8)]
        counting.may.set()
        assert {one.result() for one in asking} == {b"1"}
    assert kept.answer("counting", "one", {"job": "j1"}, connect) == b"1"


def test_another_token_or_another_question_gets_its_own(counting: Counting, connect: Callable[[], Client]) -> None:
    kept = Kept()
    counting.may.set()
    told = [
        kept.answer("counting", token, asked, connect)
        for token, asked in (("one", {"a": "b"}), ("two", {"a": "b"}), ("one", {"a": "c"}), ("one", {}))
    ]
    assert told == [b"1", b"2", b"3", b"4"]


def test_nothing_is_kept_of_a_token_that_was_revoked(counting: Counting, connect: Callable[[], Client]) -> None:
    kept = Kept()
    counting.may.set()
    kept.answer("counting", "one", {}, connect)
    kept.forget("one")
    assert kept.answer("counting", "one", {}, connect) == b"2"


def test_answers_that_are_kept_are_bounded(
    counting: Counting, connect: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MAX_KEPT", 3)
    kept = Kept()
    counting.may.set()
    for number in range(10):
        kept.answer("counting", "one", {"job": str(number)}, connect)
    assert len(kept._known) == 3


def test_errors_are_those_of_the_client(connect: Callable[[], Client]) -> None:
    kept = Kept()
    with pytest.raises(NotFound):
        kept.answer("nothing", "one", {}, connect)
    with pytest.raises(SpecError):
        kept.answer("job", "one", {}, connect)
    with pytest.raises(Unreachable):
        kept.answer("job", "one", {"job": "j1"}, connect)
    with pytest.raises(Unreachable):
        kept.answer("job", "one", {"job": "j1"}, connect)


def test_a_data_function_that_fails_can_be_asked_again(
    connect: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(client: Client, asked: Asked) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(data.ROUTES, "failing", failing)
    kept = Kept()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kept.answer("failing", "one", {}, connect)


class Talking:
    """A client of a job that has written long lines."""

    def __init__(self, pieces: int, size: int) -> None:
        self._pieces, self._size = pieces, size

    def logs(self, job: str, *, task: str, tail: int) -> Iterator[LogLine]:
        for number in range(self._pieces):
            yield LogPiece("j1.main", 1, "out", f"{number:0{self._size}}".encode())
        yield LogEnd(None)


def test_the_end_of_a_log_takes_no_more_room_than_is_shown() -> None:
    tracemalloc.start()
    try:
        told = data.log(cast(Client, Talking(64, 1 << 20)), {"job": "j1"})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == LogTail(f"{63:0{data.TAIL_BYTES}}", cut=True)
    assert most < 16 << 20
    assert data.log(cast(Client, Talking(2, 3)), {"job": "j1"}) == LogTail("000001", cut=False)


@pytest.mark.parametrize("name", sorted(data.ROUTES))
def test_every_data_function_names_its_command(name: str) -> None:
    assert (data.ROUTES[name].__doc__ or "").startswith("`poise ")


def test_a_question_that_took_long_is_followed_by_a_long_pause() -> None:
    pace = Pace(least=1.0)
    assert pace.left() == 0
    pace.took(0.001)
    assert 0 < pace.left() <= 1.0
    pace.took(1.0)
    assert SHARE - 1 < pace.left() <= SHARE
    pace.hasten()
    assert SHARE - 1 < pace.left() <= SHARE, "nothing makes it more than its share"
    pace.took(0.0)
    pace.hasten()
    assert pace.left() == 0


def test_reasons_are_worded_as_on_the_command_line() -> None:

    told = WhyNot(
        job="j1",
        unit="j1.main",
        node="n1",
        revision=1,
        fits=False,
        reasons=(Reason(code="CPU_BUSY", subject="n1", need="4", have="2"),),
    )
    worded = data._worded(told)
    assert worded["reasons"] == ["n1: 2 CPU free, 4 needed"]
    assert json.dumps(worded)
