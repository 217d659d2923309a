"""Row 8: the wall clock jumps, and processes stand still."""

import contextlib
import sys
import time
from pathlib import Path

import harness
from system.damage import NotHere
from system.living import PATIENCE, alive, until

from chaos.turns import SLEEP, SMALL, Observer, Stage, Turn, program, running, stopped, untouched
from poise.drivers.logfile import open_log
from poise.model.events import Began, decode_event

HOUR = 3600
FAKETIME = "usr/lib/*/faketime/libfaketimeMT.so.1"
PLACES = (Path(sys.prefix) / "debian", Path("/"))
"""Where Debian's libfaketime may be: unpacked by `make servers`, or installed."""

STARTED = {"control": ("-m", "poise.control", "--port", "0"), "agent": ("-m", "poise.agent")}
"""Each by itself: under libfaketime Python cannot sleep, as their supervisor does; they wait in their loops."""

LONGER_THAN_A_LEASE = 12.0


def wall_clock_jumps(living: Stage) -> Turn:
    """An hour ahead, an hour back behind where it was, and to where it was, under running work, exclusive work and
    leases; after each jump the control plane and the agent are killed once, so that others begin under that clock.
    *recovered*: from each jump until a command that is submitted then has run.
    """
    library = next((str(found) for place in PLACES for found in place.glob(FAKETIME)), "")
    if not library:
        raise NotHere("libfaketime is not there: `make servers` fetches it from Debian's packages")
    offset = living.work / "offset"
    _jump(offset, 0)
    fake = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    processes = {
        what: program(living, *arguments, str(living.home.root), **fake) for what, arguments in STARTED.items()
    }
    until(lambda: harness.ready(living.home, processes["control"].pid), "it is ready", living.messages)
    observer = Observer(living)
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    fenced = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    exclusive = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}, "lease": "exclusive"})
    recovered = []
    for hours in (1, -1, 0):
        jumped = time.monotonic()
        _jump(offset, hours)
        client = living.client()
        assert client.wait(client.submit(SMALL), PATIENCE).status == "done"
        recovered.append(time.monotonic() - jumped)
        time.sleep(LONGER_THAN_A_LEASE if hours == 1 else 1.0)
        for what, arguments in STARTED.items():
            processes[what].kill()
            processes[what].wait()
            processes[what] = program(living, *arguments, str(living.home.root), **fake)
        until(lambda: harness.ready(living.home, processes["control"].pid), "it is back", living.messages)
        until(lambda: living.pid("agent") == processes["agent"].pid, "the agent is back", living.messages)
        for work in (fenced, exclusive):
            untouched(living, *work)
    assert not observer.saw("lost"), "a node was given up"
    with open_log(living.home.root, decode_event) as recording:
        began = [(event.at, event.wall - event.at / 1e9) for event in recording.events if isinstance(event, Began)]
    seen = [round((anchor - began[0][1]) / HOUR) for _, anchor in began]
    assert seen == [0, 1, -1, 0], f"the control planes saw {seen} hours"
    return Turn([], recovered)


def _jump(offset: Path, hours: int) -> None:
    draft = offset.with_suffix(".next")
    draft.write_text(f"{hours * HOUR:+d}")
    draft.replace(offset)


def stands_still(what: str, seconds: float, living: Stage) -> Turn:
    """What runs goes on, by whomever it was started; what ended meanwhile is told, once, when it goes on. *noticed*: of
    an agent, that its node is given up. *recovered*: from when it goes on until a command has run.
    """
    living.up()
    observer = Observer(living)
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    ends, _ = running(living, {"run": ["sleep", f"{seconds / 2:g}"], "resources": {"cpu": 0.1}})
    long, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    keepers = living.keepers() if what == "keeper" else [living.pid(what)]
    turn = Turn()
    begun = time.monotonic()
    with contextlib.ExitStack() as still:
        for process in keepers:
            still.enter_context(stopped(process))
        if what == "agent":
            turn.noticed.append(observer.until("lost")[0] - begun)
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        assert alive(pid), "what ran has ended"
    went_on = time.monotonic()
    client = living.client()
    assert client.wait(client.submit(SMALL), PATIENCE).status == "done"
    report = client.wait(ends, PATIENCE)
    turn.recovered.append(time.monotonic() - went_on)
    assert (report.status, report.tasks[0].epoch, report.tasks[0].attempts) == ("done", 1, ()), report
    untouched(living, long, pid)
    assert what == "agent" or not observer.saw("lost"), "a node was given up"
    return turn
