"""The exporter of traces: it sends all that the log has, once, whatever becomes of the collector or of itself."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from poise.config import Home
from poise.drivers import sockets, tracing
from poise.drivers.otlp import Collector, Unsent
from poise.drivers.spans import Telling, read_exported, settle_traces
from poise.drivers.sqlite import SqliteStore
from poise.drivers.tracing import Exporter
from poise.model.events import Event, decode_event, encode_event
from poise.model.traces import Context, Link, Span
from poise.testing import World

PATIENCE = 60.0


class Keeping:
    """A collector that keeps what it is sent, unless `fails` says why it does not take it."""

    url = "http://collector/v1/traces"

    every = 0.01

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.fails: list[Unsent] = []
        self.refuses = 0

    def send(self, spans: Sequence[Span], seconds: float = 0.0) -> int:
        if self.fails:
            raise self.fails.pop(0)
        self.spans += spans
        return self.refuses

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(tracing, "PAUSES", (0.01,))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With a longer path than the name of a socket may have."""
    root = tmp_path / ("long" * 30)
    root.mkdir()
    return Home(root)


@pytest.fixture
def kept() -> Keeping:
    return Keeping()


def write(home: Home, events: Sequence[Event], after: int = 0) -> None:
    store = SqliteStore(home.log, encode_event, decode_event, call_soon=lambda call, *of: call(*of))
    store.append(list(events), expected=after)
    store.close()


def export(home: Home, kept: Keeping, until: Callable[[], bool]) -> None:
    """Run an exporter until something holds."""
    deadline = time.monotonic() + PATIENCE
    reads, writes = os.pipe()

    def stopping() -> bool:
        assert time.monotonic() < deadline, [span.name for span in kept.spans]
        return until()

    home.traces.mkdir(exist_ok=True)
    exporter = Exporter(home, cast(Collector, kept), stopping=stopping, wake=reads)
    try:
        exporter.run()
    finally:
        exporter.close()
        os.close(reads)
        os.close(writes)


def reached(home: Home, revision: int) -> Callable[[], bool]:
    return lambda: (known := read_exported(home)) is not None and known.revision >= revision


def world() -> World:
    return World().nodes(1, cpu=1).job("a").round().start("a").after("2s").finish("a", run="2s")


def test_all_is_sent_once_and_the_next_exporter_goes_on_where_this_one_ended(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, 0, traced=True)
    export(home, kept, reached(home, len(of.log)))
    names = ["submit", "queued main", "launch main", "run main"]
    assert [span.name for span in kept.spans] == [*names, "job a"]
    seen = len(of.log)
    of.job("b").round().start("b").after("1s").finish("b")
    write(home, of.log[seen:], after=seen)
    export(home, kept, reached(home, len(of.log)))
    assert [span.name for span in kept.spans[5:]] == [*names, "job b"]
    known = read_exported(home)
    assert known is not None and (known.sent, known.refused, known.lost, known.error) == (10, 0, 0, "")


def test_what_ended_before_traces_were_turned_on_is_not_sent(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, len(of.log), traced=True)
    seen = len(of.log)
    of.job("b").round()
    write(home, of.log[seen:], after=seen)
    settle_traces(home, len(of.log), traced=True)  # a later start changes nothing
    export(home, kept, reached(home, len(of.log)))
    assert [span.name for span in kept.spans] == ["submit", "queued main"]
    settle_traces(home, len(of.log), traced=False)
    assert read_exported(home) is None


def test_a_collector_that_is_away_is_waited_for(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, 0, traced=True)
    kept.fails = [Unsent("nobody there", again=True), Unsent("503", again=True, after=0.02)]
    export(home, kept, reached(home, len(of.log)))
    assert len({span.context.span for span in kept.spans}) == len(kept.spans) == 5


def test_what_it_does_not_take_is_counted_and_passed_over(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, 0, traced=True)
    kept.fails = [Unsent("400", again=False)]
    export(home, kept, reached(home, len(of.log)))
    known = read_exported(home)
    assert kept.spans == [] and known is not None and (known.sent, known.refused) == (0, 5)


def test_another_log_is_sent_from_its_beginning(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, 10_000, traced=True)
    export(home, kept, lambda: len(kept.spans) >= 5)
    assert len(kept.spans) == 5


def test_what_an_exporter_could_not_send_before_its_end_the_next_one_sends(home: Home, kept: Keeping) -> None:
    of = world()
    write(home, of.log)
    settle_traces(home, 0, traced=True)
    kept.fails = [Unsent("nobody there", again=True) for _ in range(1000)]
    export(home, kept, lambda: len(kept.fails) < 998)
    known = read_exported(home)
    assert kept.spans == [] and known is not None and known.revision == 0 and known.error == "nobody there"
    kept.fails = []
    export(home, kept, reached(home, len(of.log)))
    assert len(kept.spans) == 5


@pytest.fixture
def requests(home: Home) -> Iterator[Telling]:
    settle_traces(home, 0, traced=True)
    yield Telling(home)


def request(number: int) -> Span:
    return Span(context=Context(b"\1" * 16, number.to_bytes(8, "big")), name="POST /predict", start=1, end=2)


def test_spans_of_requests_come_in_datagrams(home: Home, kept: Keeping, requests: Telling) -> None:
    write(home, world().log)
    said = False

    def tell() -> bool:
        nonlocal said
        if not said:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                sockets.send(other, b"no spans", home.traces / "socket")
            assert (home.traces / "socket").stat().st_mode & 0o077 == 0
            many = tuple(Link(request(of).context, {"poise.link": "request"}) for of in range(128))
            requests.tell([msgspec.structs.replace(request(number), links=many) for number in range(1, 9)])
            said = True
        return len(kept.spans) >= 5 + 8

    export(home, kept, tell)
    assert [len(span.links) for span in kept.spans if span.name == "POST /predict"] == [128] * 8


def test_of_requests_only_the_latest_wait_for_a_collector(
    home: Home, kept: Keeping, requests: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MOST_REQUESTS", 3)
    write(home, world().log)
    said = False

    def tell() -> bool:
        nonlocal said
        if not said:
            requests.tell([request(number) for number in range(1, 11)])
            said = True
        return (known := read_exported(home)) is not None and known.lost >= 7

    export(home, kept, tell)
    numbers = [span.context.span[-1] for span in kept.spans if span.name == "POST /predict"]
    assert numbers == [8, 9, 10]


def test_a_gateway_without_an_exporter_loses_its_spans_and_nothing_else(home: Home) -> None:
    Telling(home).tell([request(1)])
