"""Rows of the fault matrix done live, as `make chaos` does them, those that are soon over; and that the judge of a turn
finds what was broken.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.kernel.ledger import Ledger
from poise.model.events import Event, Finished, JobSubmitted, NodeJoined, Placed, QuotaSet, Started, decode_event
from poise.model.quotas import Quota
from system.living import Living

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
import live_faults
from chaos import soak, verdict

from poise.drivers.logfile import open_log

SIZES = live_faults.Sizes(kills=8, pause=4.0)
SOON_OVER = (
    "the control plane killed 8 times, under load",
    "one device of three goes and comes back",
    "an agent stands still for 4 s",
    "kill -9 of a command",
    "a network is cut, both ways",
    "another machine under the same name",
    "a node's disk is full, its agent and keepers killed",
    "kill -9 of a replica in the midst of a batch",
    "kill -9 of the agent",
)
"""As five workers take them in turn, so that all are over at about the same time: the fifth, which is the longest, has
no second.
"""

CASES = {case.fault: case for case in live_faults.cases(SIZES)}


@pytest.mark.timed
@pytest.mark.parametrize("fault", SOON_OVER)
def test_every_promise_is_kept(fault: str) -> None:
    *_, broken = live_faults.done(CASES[fault], 1)
    if not broken.values:
        pytest.skip(broken.note)
    assert broken.values == [0.0], broken.note
    assert {*verdict.FROM_THE_LOG, *verdict.AFTERWARDS} <= set(broken.note.removeprefix(live_faults.KEPT).split())


# --- the judge -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> Iterator[list[Event]]:
    """Of a job that is tried again, a gang, and one that goes on."""
    living = Living()
    try:
        living.up()
        client = living.client()
        run = "test $POISE_EPOCH = 2 || kill -9 $$"
        again = client.submit({"run": run, "resources": {"cpu": 0.5}, "retry": {"backoff": "10ms"}}, key="again")
        gang = client.submit({"run": ["sleep", "0.5"], "workers": 2, "resources": {"cpu": 0.5}}, key="gang")
        assert [client.wait(job).status for job in (again, gang)] == ["done", "done"]
        with open_log(living.home.root, decode_event) as recording:
            yield list(recording.events)
        assert living.poise("down").code == 0
    except BaseException:
        living.destroy()
        raise
    living.close()


def judged(events: list[Event], loaded: list[Event] | None = None) -> dict[str, str]:
    """Promises that are found broken, and how."""
    ledger = Ledger()
    with contextlib.suppress(AssertionError, LookupError):  # the judge has to say so
        for event in loaded if loaded is not None else events:
            ledger.apply(event)
    return {promise: story for promise, story in verdict.of_events(events, ledger).items() if story}


def changed(events: list[Event], kind: type[Any], which: int = 0, /, **fields: Any) -> list[Event]:
    """With other fields in one record of a kind."""
    places = [place for place, event in enumerate(events) if isinstance(event, kind)]
    found = list(events)
    found[places[which]] = msgspec.structs.replace(found[places[which]], **fields)
    return found


def of_the_gang(events: list[Event]) -> int:
    return next(
        number
        for number, event in enumerate(event for event in events if isinstance(event, Placed))
        if len(event.spots) == 2
    )


def less_room(events: list[Event]) -> list[Event]:
    node = next(event.node for event in events if isinstance(event, NodeJoined))
    return changed(events, NodeJoined, node=msgspec.structs.replace(node, cpu=400))


def half_a_gang(events: list[Event]) -> list[Event]:
    which = of_the_gang(events)
    spots = [event.spots for event in events if isinstance(event, Placed)][which]
    return changed(events, Placed, which, spots=spots[:1])


def submitted_twice(events: list[Event]) -> list[Event]:
    jobs = [event for event in events if isinstance(event, JobSubmitted)]
    return changed(events, JobSubmitted, 1, key=jobs[0].key)


def skipped_epoch(events: list[Event]) -> list[Event]:
    return changed(events, Placed, epoch=7)


def of_another_epoch(events: list[Event]) -> list[Event]:
    return changed(events, Finished, -1, epoch=5)


def started_twice(events: list[Event]) -> list[Event]:
    place = next(place for place, event in enumerate(events) if isinstance(event, Started))
    return [*events[: place + 1], events[place], *events[place + 1 :]]


def beyond_its_quota(events: list[Event]) -> list[Event]:
    first = next(place for place, event in enumerate(events) if isinstance(event, JobSubmitted))
    tenant = next(event.job.tenant for event in events if isinstance(event, JobSubmitted))
    quota = QuotaSet(at=events[first].at, tenant=tenant, quota=Quota(cpu=100))
    return [*events[:first], quota, *events[first:]]


def otherwise_decided(events: list[Event]) -> list[Event]:
    why = next(event.why for event in events if isinstance(event, Placed))
    return changed(events, Placed, why=msgspec.structs.replace(why, policy="somebody"))


def test_nothing_is_found_in_a_log_that_is_right(log: list[Event]) -> None:
    assert judged(log) == {}


@pytest.mark.parametrize(
    ("breaks", "promises"),
    [
        (less_room, {"S1", "ledger"}),
        (half_a_gang, {"S2"}),
        (submitted_twice, {"S3"}),
        (skipped_epoch, {"S4"}),
        (of_another_epoch, {"S4"}),
        (started_twice, {"S4", "ledger"}),
        (beyond_its_quota, {"S6"}),
        (otherwise_decided, {"S7"}),
    ],
)
def test_what_is_broken_is_found(
    log: list[Event], breaks: Callable[[list[Event]], list[Event]], promises: set[str]
) -> None:
    found = judged(breaks(log))
    assert len(found) == 1 and set(found) <= promises, found


def test_a_state_that_the_log_does_not_make_is_found(log: list[Event]) -> None:
    assert set(found := judged(log, loaded=log[:-1])) == {"S7"}, found


def test_what_runs_and_should_not_is_found(living: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "AGREED_WITHIN", 0.5)
    living.up()
    stray = subprocess.Popen(
        ["sleep", "60"], env=living.environment(POISE_TASK="j9.main", POISE_JOB="j9", POISE_EPOCH="1")
    )
    try:
        found = verdict.of(living, "")
    finally:
        stray.kill()
        stray.wait()
    assert [promise for promise, story in found.items() if story] == ["L2"]


def test_growth_is_found_whatever_grows_and_nothing_that_stays() -> None:
    samples = [soak.Held(memory=100e6 + 1e6 * (number % 3), threads=9, files=40, processes=5) for number in range(40)]
    assert soak.growth(samples) == []
    for name in soak.Held._fields:
        rises = [sample._replace(**{name: getattr(sample, name) * (1 + of / 40)}) for of, sample in enumerate(samples)]
        assert soak.growth(rises) == [name]
