"""`dashboard/chronicle.py`: the log of a home, followed for pages that look back."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from poise.client import Client
from poise.config import Home
from poise.dashboard import chronicle as module
from poise.dashboard import past
from poise.dashboard.chronicle import Chronicle
from poise.dashboard.past import LookingBack
from poise.drivers.past import Moment
from poise.drivers.sqlite import SqliteStore
from poise.errors import Busy, Conflict, NotFound
from poise.kernel.ledger import Ledger
from poise.kernel.slices import Slices
from poise.model.events import Event, TrainingTold, decode_event, encode_event
from poise.model.reports.access import WhoReport
from poise.model.reports.jobs import TrainingReport
from poise.model.tenants import HOME
from poise.model.training import Training
from poise.testing import WALL, World
from unit.kernel.test_training import running, said

PATIENCE = 30.0


def store_of(home: Home, keep: int = 10**9) -> SqliteStore[Event]:
    home.root.mkdir(exist_ok=True)
    return SqliteStore(home.log, encode_event, decode_event, keep=keep)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(module, "PATIENCE", PATIENCE)
    return Home(tmp_path / "home")


def busy(count: int = 12) -> World:
    world = World().nodes(2, cpu=1)
    for number in range(count):
        world.job(f"x{number}").round().start(f"x{number}").after("1s").finish(f"x{number}", run="1s")
    return world


def test_it_tells_what_the_log_says_and_goes_on_with_it(home: Home) -> None:
    world = busy()
    with closing(store_of(home)) as store:
        store.append(world.log, expected=0)
        chronicle = Chronicle(home)
        assert chronicle.ask(lambda book: book.ledger.encode()) == world.ledger.encode()
        told = chronicle.ask(lambda book: book.window(world.now, 0, world.now, bearer=HOME))
        assert sum(len(row.slices) for row in told.rows) >= 12
        assert chronicle.ask(lambda book: len(book.rounds.latest())) >= 12
        known = len(world.log)
        world.job("more").round()
        store.append(world.log[known:], expected=known)
        until(lambda: chronicle.ask(lambda book: book.ledger.revision) == len(world.log))
        assert chronicle.ask(lambda book: book.ledger.encode()) == world.ledger.encode()


def test_a_past_moment_is_the_same_from_whatever_state_it_starts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_EVERY", 5)
    monkeypatch.setattr(module, "AT_ONCE", 3)
    monkeypatch.setattr(module, "WAYPOINTS", 4)
    world = busy()
    with closing(store_of(home)) as store:
        store.append(world.log, expected=0)
    chronicle = Chronicle(home)
    assert chronicle.ask(lambda book: book.ledger.revision) == len(world.log)
    assert 0 < len(chronicle._waypoints) <= 4
    ledger = Ledger()
    for revision, event in enumerate(world.log, start=1):
        ledger.apply(event)
        assert chronicle.at(Moment(revision=revision)).ledger.encode() == ledger.encode()
    assert chronicle.at(Moment(WALL + 3.5)).wall == WALL + 3.5
    with pytest.raises(NotFound, match="nothing was recorded"):
        chronicle.at(Moment(WALL - 10))


def test_the_latest_part_is_there_first_and_the_rest_follows(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    world, middle = busy(), 40
    ledger = Ledger()
    with closing(store_of(home)) as store:
        for revision, event in enumerate(world.log, start=1):
            ledger.apply(event)
            store.append([event], expected=revision - 1)
            if revision == middle:
                store.checkpoint(revision, ledger.compressed())
    started = threading.Event()
    monkeypatch.setattr(Chronicle, "_complete", held_back(Chronicle._complete, started))
    chronicle = Chronicle(home)
    recent = chronicle.ask(lambda book: (book.ledger.encode(), book.known_since))
    assert recent == (world.ledger.encode(), world.log[middle - 1].at)
    started.set()
    until(lambda: chronicle.ask(lambda book: book.known_since) == world.log[0].at)
    assert chronicle.ask(lambda book: book.ledger.encode()) == world.ledger.encode()


def held_back(function: Callable[..., None], start: threading.Event) -> Callable[..., None]:
    """It begins only when it may."""

    def held(*given: object) -> None:
        start.wait()
        function(*given)

    return held


def test_a_log_that_was_begun_anew_is_read_anew(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.0)
    long, short = busy(), busy(1)
    with closing(store_of(home)) as store:
        store.append(long.log, expected=0)
    chronicle = Chronicle(home)
    assert chronicle.ask(lambda book: book.ledger.revision) == len(long.log)
    until(lambda: chronicle._thread is None)
    for file in home.root.iterdir():
        file.unlink()
    with closing(store_of(home)) as store:
        store.append(short.log, expected=0)
    assert chronicle.ask(lambda book: book.ledger.encode()) == short.ledger.encode()


def test_records_that_were_removed_meanwhile_are_passed_over(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.0)
    world = busy()
    with closing(store_of(home, keep=1)) as store:
        store.append(world.log[:10], expected=0)
        chronicle = Chronicle(home)
        assert chronicle.ask(lambda book: book.ledger.revision) == 10
        until(lambda: chronicle._thread is None)
        ledger = Ledger()
        for revision, event in enumerate(world.log, start=1):
            ledger.apply(event)
            if revision > 10:
                store.append([event], expected=revision - 1)
                store.checkpoint(revision, ledger.compressed())
        assert store.first_revision() > 11
        monkeypatch.setattr(module, "LINGER", 60.0)
        told = chronicle.ask(lambda book: (book.ledger.encode(), book.known_since))
        assert told[0] == world.ledger.encode() and told[1] > world.log[9].at


def test_a_guest_and_an_empty_home_are_told_why_there_is_nothing(home: Home, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no log"):
        Chronicle(home).ask(lambda book: None)
    with pytest.raises(Conflict, match="owner"):
        Chronicle(Home(tmp_path, tmp_path / "shared.sock")).at(Moment(1.0))


class Viewer:
    """A client of the home's owner."""

    def whoami(self) -> WhoReport:
        return WhoReport(tenant="default", role="admin", token="", name="", expires=0.0)


@pytest.mark.parametrize("since", ["-1e300", "1e300", "0"])
@pytest.mark.parametrize("until", ["-1e300", "1e300", ""])
def test_a_picture_of_any_time_is_one_of_the_time_there_was(home: Home, since: str, until: str) -> None:
    with closing(store_of(home)) as store:
        store.append(busy().log, expected=0)
    told = LookingBack(home).timeline(cast(Client, Viewer()), {"since": since, "until": until})
    assert told.length <= time.time() * 1e6
    with pytest.raises(NotFound):
        LookingBack(home).state(cast(Client, Viewer()), {"at": "-1e300"})


def test_a_trace_that_is_too_large_is_refused_before_it_is_made(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(store_of(home)) as store:
        store.append(busy().log, expected=0)
    back, client, asked = LookingBack(home), cast(Client, Viewer()), {"since": "0"}
    assert back.trace(client, asked)["traceEvents"]
    monkeypatch.setattr(past, "MOST_TRACED", 11)
    monkeypatch.setattr(Slices, "window", lambda *_, **__: pytest.fail("it is made"))
    with pytest.raises(Busy, match="too large"):
        back.trace(client, asked)


def test_training_is_that_of_the_log_up_to_a_moment_and_of_now_as_it_is_said(home: Home) -> None:
    world = said(said(running()).after("60s"), step=900, phase="convergence").after("60s")
    with closing(store_of(home)) as store:
        store.append(world.log, expected=0)
    first, last = [event for event in world.log if isinstance(event, TrainingTold)]
    wall = world.ledger.leader.wall

    class Live(Viewer):
        def job(self, name: str) -> Any:
            now = TrainingReport(unit="j1.main", heard=wall(world.now), said=Training(step=950))
            return SimpleNamespace(training=(now,) if name == "j1" else ())

    back, client = LookingBack(home), cast(Client, Live())
    assert back.training(client, {"at": str(wall(first.at) - 1)}) == []
    (then,) = back.training(client, {"at": str(wall(last.at) - 1)})
    assert (then.unit, then.name, then.said.step, [point[1] for point in then.points]) == (
        "j1.main",
        "train",
        100,
        [100],
    )
    (now,) = back.training(client, {"job": "train"})
    assert (now.said.step, [point[1] for point in now.points], now.runs) == (950, [100, 900, 950], True)
