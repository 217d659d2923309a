"""Which promises were kept in a turn: the log is judged as the fault simulator judges its own, and then what is there.

The judge of the simulator believes neither the controller nor its ledger. Here the log is its only witness: what it
says of nodes, starts and endings is held against books of its own (S1, S2, S4, S6, the rules), and it is gone through
once more from its first record, state and decisions (S7). What the log cannot know, whether a copy ran twice or what
was acknowledged, turns look at themselves, by what jobs have written down.

Where a control plane still answers, faults are over by then: what waits must have reasons (L3), what should run and
what runs must be the same (L2), what is short must come to its end (L4), and one job more must start at once (L1).
"""

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence

from system.living import PATIENCE, Living, until

from chaos.turns import ONE_ROUND, SLEEP, SMALL
from poise.drivers.logfile import open_log, read_home
from poise.engine.host import load_ledger
from poise.engine.promises import Judge, Violation
from poise.kernel.ledger import Ledger
from poise.kernel.replay import replay
from poise.model.events import Event, Finished, NodeJoined, Placed, Resized, Started, decode_event
from poise.model.jobs import Ending
from poise.model.messages import Attempt, Launch
from poise.model.resources import Shape
from poise.units import SECOND

FROM_THE_LOG = ("S1", "S2", "S4", "S6", "S7")
AFTERWARDS = ("L1", "L2", "L3", "L4")
PROMISES = (*(f"S{number}" for number in range(1, 11)), *AFTERWARDS)
AGREED_WITHIN = 10.0
"""Seconds, of L2."""

SEEN_WITHIN = 2 * ONE_ROUND
"""Seconds, of L1 and L3."""

DEEP_LOOKS = 50
"""At most, how often all invariants of the ledger are worked out over a log."""

Verdict = dict[str, str]
"""By promise, how it was broken; empty where it was kept. A promise that is not in it was not looked at."""


class Witness(Judge):
    """The judge, told by the log alone what ran where. An attempt runs from when it is said to have started until it
    has ended, or is given up for a newer one. What one report says of a node is of one instant: what ended makes room
    for what has started. What was so short that only its end was said takes none: nobody knows beside what it ran.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self._every = max(1, length // DEEP_LOOKS)
        self._looked = 0
        self._now = 0
        self._begun_now: dict[Attempt, tuple[int, ...]] = {}
        self._where: dict[Attempt, tuple[str, Launch]] = {}

    def look_deep(self) -> None:
        """Not as often in a long log."""
        if self.ledger.revision >= self._looked + self._every:
            self._looked = self.ledger.revision
            super().look_deep()

    def hear(self, event: Event) -> None:
        """The next record of the log."""
        if event.at != self._now:
            self.rest()
            self._now = event.at
        if isinstance(event, NodeJoined):
            self.offers(event.node)
        elif isinstance(event, Placed | Resized):
            self._give_up(event)
        elif isinstance(event, Started):
            attempt = Attempt(event.task, event.epoch)
            if attempt in self._begun_now:
                raise Violation("S4", f"{attempt} was started twice")
            self._begun_now[attempt] = event.cpus
        elif isinstance(event, Finished):
            self._finish(Attempt(event.task, event.epoch), event.ending)
        self.durable((event,))

    def has_begun(self, attempt: Attempt) -> bool:
        """Nobody but the log tells of it."""
        return True

    def rest(self) -> None:
        """All of this instant has been heard."""
        for attempt, cpus in self._begun_now.items():
            self._begin(attempt, cpus)
        self._begun_now.clear()

    def _finish(self, attempt: Attempt, ending: Ending) -> None:
        if attempt not in self._where:
            self._begun_now.pop(attempt, None)
            if any(other.task == attempt.task for other in self._where):
                return  # it is not the one that counts
            self._begin(attempt, (), Shape(cpu=0))
        self._end(attempt, ending)

    def _begin(self, attempt: Attempt, cpus: tuple[int, ...], shape: Shape | None = None) -> None:
        found = self.ledger.jobs.task(attempt.task)
        if found is None:
            raise Violation("S4", f"{attempt} was started, and nobody has submitted it")
        unit, task = found
        devices = task.devices if shape is None else ()
        launch = Launch(attempt=attempt, argv=(), shape=shape or unit.shape, slots=1, devices=devices)
        self._where[attempt] = task.node, launch
        self.started(task.node, launch, cpus)

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        node, launch = self._where.pop(attempt)
        self.ended(node, launch, ending)

    def _give_up(self, event: Placed | Resized) -> None:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is None:
            return
        joins = {index for index, _ in event.joins} if isinstance(event, Resized) else range(len(unit.tasks))
        tasks = {f"{unit.job}.{unit.spec.tasks[index].name}" for index in joins}
        for attempt in [attempt for attempt in self._where if attempt.task in tasks]:
            self._end(attempt, Ending(outcome="lost"))


def of(living: Living, checks: str) -> Verdict:
    """Of a home when its turn is over. `checks` are promises that the turn itself has found kept."""
    found = dict.fromkeys(checks.split(), "")
    if living.pid("control"):
        found |= afterwards(living)
    if living.home.log.exists() or living.home.store.exists():
        found |= of_the_log(living)
    return found


def of_the_log(living: Living) -> Verdict:
    """S1, S2, S4, S6, S7 and the rules, by every record of the log of a home. Where earlier records are gone, S7 alone:
    what they gave to whom is not known.
    """
    with contextlib.closing(read_home(living.home, decode_event)) as reader:
        loaded = load_ledger(reader)
    with open_log(living.home.root, decode_event, loaded.revision) as recording:
        events = list(recording.events)
        start = recording.start
    if start is None:
        return of_events(events, loaded)
    return _kept({"S7": lambda: _same(events, Ledger.decode(start.state), loaded)})


def of_events(events: Sequence[Event], loaded: Ledger) -> Verdict:
    """The same by all events of a log, of which a control plane would make what was `loaded`."""
    found = dict.fromkeys(FROM_THE_LOG, "")
    witness = Witness(len(events))
    try:
        for event in events:
            witness.hear(event)
        witness.rest()
        witness.ledger.check()
        witness.taken_up(loaded)
        _same(events, Ledger(), loaded)
    except Violation as broken:
        found[broken.promise] = str(broken)
    except (AssertionError, LookupError, TypeError, ValueError) as broken:  # of records that do not follow
        found["ledger"] = f"{type(broken).__name__}: {broken}"
    return found


def _same(events: Sequence[Event], ledger: Ledger, loaded: Ledger) -> None:
    """Gone through once more they make the same state, and every round is decided as it was."""
    told = replay(events, ledger=ledger)
    if not told.same:
        raise Violation("S7", f"{told.different} rounds are decided otherwise now: {told.difference}")
    if ledger.encode() != loaded.encode():
        raise Violation("S7", f"what is loaded at revision {loaded.revision} is not what the log makes")


# --- when faults are over --------------------------------------------------------------------------------------------


def afterwards(living: Living) -> Verdict:
    """L1 to L4 of a home whose control plane answers. What only holds room (`SLEEP`) is cancelled."""
    checks = {"L3": _reasons, "L2": _agree, "L4": _drain, "L1": _start}
    return _kept({promise: functools.partial(check, living) for promise, check in checks.items()})


def _kept(checks: Mapping[str, Callable[[], None]]) -> Verdict:
    found: Verdict = {}
    for promise, check in checks.items():
        try:
            check()
            found[promise] = ""
        except AssertionError as story:
            found[promise] = f"{promise}: {story}"
    return found


def _reasons(living: Living) -> None:
    """Whatever waits has reasons by the second round."""
    client = living.client()

    def untold() -> list[str]:
        waits = {job.id: client.explain(job.id).waiting for job in client.jobs() if job.counts.get("pending")}
        return [job for job, waiting in waits.items() if not waiting or not all(of.reasons for of in waiting)]

    until(lambda: not untold(), "reasons are told of all that waits", untold, seconds=SEEN_WITHIN)


def _agree(living: Living) -> None:
    """What should run and what runs are the same."""
    client = living.client()

    def desired() -> set[tuple[str, int]]:
        jobs = [client.job(job.id) for job in client.jobs() if job.exit_code is None]
        return {(task.task, task.epoch) for job in jobs for task in job.tasks if task.status == "running"}

    def differ() -> str:
        wanted, there = desired(), living.attempts()
        return "" if wanted == there == desired() else f"wanted {sorted(wanted)}, there {sorted(there)}"

    until(lambda: not differ(), "what should run and what runs are the same", differ, seconds=AGREED_WITHIN)


def _drain(living: Living) -> None:
    """All comes to its end."""
    client = living.client()
    held = " ".join(SLEEP)
    for job in client.jobs():
        if job.exit_code is None and job.command == held:
            client.cancel(job.id)
    until(lambda: client.status().unfinished == 0, "all has ended", client.jobs, seconds=PATIENCE)


def _start(living: Living) -> None:
    """One job more is placed within two rounds, by the log's own time."""
    client = living.client()
    before = client.status().revision
    job = client.submit(SMALL)
    assert client.wait(job, PATIENCE).status == "done", job
    events = [json.loads(line)["event"] for line in client.events(after=before, follow=False)]
    submitted = next(event["at"] for event in events if event["type"] == "submitted" and event["job"]["id"] == job)
    placed = next(event["at"] for event in events if event["type"] == "placed" and event["unit"] == f"{job}.main")
    waited = (placed - submitted) / SECOND
    assert waited <= SEEN_WITHIN, f"{job} waited for {waited:.2f} s"
