"""Incidents: which symptoms become one, which cause is suspected, when it is told and closed."""

from collections.abc import Iterable
from random import Random
from typing import get_args

import msgspec
import pytest

from poise.engine.storms import rage, storm_of
from poise.errors import NotFound
from poise.kernel.incidents import (
    MOST_INCIDENTS,
    MOST_SHOWN,
    MOST_WAIT,
    MOST_WAITING,
    QUIET,
    SETTLES,
    STALE,
    Incidents,
    State,
)
from poise.model.decisions import Spot, Why
from poise.model.events import (
    Began,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    IncidentTold,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    Noticed,
    Placed,
    PolicyFailed,
    StopAsked,
)
from poise.model.incidents import IncidentReport, SymptomKind
from poise.model.jobs import Ending, Job, Outcome, Task, Unit
from poise.model.resources import Device, Node
from poise.units import MINUTE, SECOND, format_duration

WHY = Why(policy="poise")


class Log:
    """Events as they come, one a line; times in seconds."""

    def __init__(self, racks: int = 3, nodes: int = 4) -> None:
        self.events: list[Event] = []
        self.jobs = 0
        for rack in range(1, racks + 1):
            for number in range(1, nodes + 1):
                self.join(f"r{rack}n{number}", f"r{rack}")

    def add(self, event: Event) -> "Log":
        self.events.append(event)
        return self

    def join(self, name: str, rack: str, at: float = 0) -> "Log":
        devices = tuple(Device(index=index) for index in range(4))
        node = Node(name=name, incarnation="0", cpu=8000, memory=2**30, zone="z", rack=rack, devices=devices)
        return self.add(NodeJoined(at=int(at * SECOND), node=node))

    def lose(self, *names: str, at: float) -> "Log":
        for name in names:
            self.add(NodeSuspected(at=int(at * SECOND), name=name))
            self.add(NodeLost(at=int((at + 1) * SECOND), name=name))
        return self

    def run(self, program: str, node: str, outcome: Outcome, at: float, *, user: str = "ann", device: int = 0) -> "Log":
        """A job of one task that ends so."""
        self.jobs += 1
        job, now = f"j{self.jobs}", int(at * SECOND)
        unit = Unit(name="main", tasks=(Task(name="main", argv=("x",)),), kind=program)
        self.add(JobSubmitted(at=now, job=Job(id=job, units=(unit,), user=user)))
        spot = Spot(node, (device,) if device else ())
        self.add(Placed(at=now, unit=f"{job}.main", epoch=1, spots=(spot,), why=WHY))
        return self.add(Finished(at=now, task=f"{job}.main", epoch=1, ending=Ending(outcome=outcome, code=1)))

    def read(self, until: float) -> list[IncidentReport]:
        return read(self.events, until)


def taken(events: Iterable[Event]) -> Incidents:
    made = Incidents()
    for revision, event in enumerate(events, start=1):
        made.take(revision, event)
    return made


def read(events: Iterable[Event], until: float) -> list[IncidentReport]:
    made = taken(events)
    made.tick(int(until * SECOND))
    return reports(made)


def reports(made: Incidents) -> list[IncidentReport]:
    return [made.report(name, lambda at: at / SECOND) for name in made.ids()]


@pytest.mark.parametrize("ends", [40, 60])
def test_work_that_ends_after_its_deadline_belongs_to_the_fault_that_hit_it(ends: int) -> None:
    log = Log()
    for name, node in (("j1", "r1n1"), ("j2", "r3n1")):
        unit = Unit(name="main", tasks=(Task(name="main", argv=("x",)),), kind="p", deadline=50 * SECOND)
        log.add(JobSubmitted(at=0, job=Job(id=name, units=(unit,))))
        log.add(Placed(at=0, unit=f"{name}.main", epoch=1, spots=(Spot(node),), why=WHY))
    log.lose("r1n1", "r1n2", "r1n3", "r1n4", at=10)
    log.add(Finished(at=12 * SECOND, task="j1.main", epoch=1, ending=Ending(outcome="lost")))
    log.add(Placed(at=13 * SECOND, unit="j1.main", epoch=2, spots=(Spot("r2n1"),), why=WHY))
    for name, epoch in (("j1", 2), ("j2", 1)):
        log.add(Finished(at=ends * SECOND, task=f"{name}.main", epoch=epoch, ending=Ending(outcome="done")))
    [one] = log.read(300)
    assert str(one.cause.element) == "rack z/r1"
    assert one.symptoms.get("deadline-missed", 0) == (ends > 50), "that of j2 has another reason"
    late = f"j1.main ended {format_duration(10 * SECOND)} after its deadline"
    assert (late in [step.text for step in one.timeline]) == (ends > 50)


def test_a_rack_that_goes_is_one_incident_and_closes_when_it_is_back() -> None:
    log = Log().lose("r1n1", "r1n2", at=10).lose("r1n3", "r1n4", at=12)
    [one] = log.read(30)
    assert (str(one.cause.element), one.tied, one.nodes) == ("rack z/r1", (), ("r1n1", "r1n2", "r1n3", "r1n4"))
    assert one.symptoms == {"node-silent": 4, "node-lost": 4}
    assert one.evidence == ("explains 8 of 8 symptoms", "4 of 4 nodes are affected")
    assert not one.closed
    for number in range(1, 5):
        log.join(f"r1n{number}", "r1", at=100)
    [one] = log.read(100 + QUIET / SECOND - 1)
    assert not one.closed
    [one] = log.read(100 + QUIET / SECOND)
    assert one.closed == 100 + QUIET / SECOND
    assert [step.text for step in one.timeline][-2:] == ["node r1n4 is back", "closed"]


def test_nodes_that_never_come_back_are_an_incident_until_there_was_no_news_for_long() -> None:
    log = Log().lose("r1n1", "r1n2", "r1n3", "r1n4", at=10)
    log.join("r1n3", "r1", at=1000)
    [one] = log.read(1000 + STALE / SECOND - 1)
    assert not one.closed
    [one] = log.read(1000 + STALE / SECOND)
    assert one.closed == 1000 + STALE / SECOND


def test_an_incident_is_told_within_half_a_minute_of_its_first_symptom() -> None:
    log = Log().lose("r1n1", at=10)
    assert log.read(11 + SETTLES / SECOND - 1) == []
    assert len(log.read(11 + SETTLES / SECOND)) == 1
    for second in range(12, 40):  # something new each second
        log.add(NodeSuspected(at=second * SECOND, name=f"r{second % 2 + 2}n{second % 4 + 1}"))
    assert len(log.read(10 + MOST_WAIT / SECOND)) >= 1


def beside_chance(log: Log, until: float) -> list[IncidentReport]:
    """What is known by then where a fifth of all attempts, two a second, fails as well, on all nodes."""
    random = Random(7)  # noqa: S311 — the same attempts each time
    for half in range(120):
        node = f"r{random.randint(1, 3)}n{random.randint(1, 4)}"
        outcome: Outcome = "failed" if random.random() < 0.2 else "done"
        log.run(f"p{random.randrange(5)}", node, outcome, at=half / 2, user=f"u{random.randrange(7)}")
    log.events.sort(key=lambda event: event.at)
    return read([event for event in log.events if event.at <= until * SECOND], until)


def test_attempts_that_fail_by_chance_do_not_delay_what_is_known_of_a_node() -> None:
    told = 37 + SETTLES / SECOND
    assert beside_chance(Log().lose("r2n2", at=36), told - 1) == []
    [one] = beside_chance(Log().lose("r2n2", at=36), told)
    assert str(one.cause.element) == "node r2n2"


def test_a_node_that_flaps_is_told_within_half_a_minute_of_its_first_silence() -> None:
    log = Log()
    for second in range(20, 60, 6):
        log.add(NodeSuspected(at=second * SECOND, name="r2n2"))
        log.add(NodeTrusted(at=(second + 2) * SECOND, name="r2n2"))
    [one] = beside_chance(log, 20 + 30)
    assert str(one.cause.element) == "node r2n2"


def test_two_causes_at_the_same_time_are_two_incidents() -> None:
    log = Log().lose("r1n1", "r1n2", "r1n3", "r1n4", at=10).lose("r2n3", at=11)
    assert [str(one.cause.element) for one in log.read(60)] == ["rack z/r1", "node r2n3"]


def test_half_of_a_rack_is_two_nodes() -> None:
    log = Log().lose("r1n1", "r1n2", at=10)
    assert sorted(str(one.cause.element) for one in log.read(60)) == ["node r1n1", "node r1n2"]


def test_a_cause_widens_as_more_of_a_rack_goes() -> None:
    log = Log().lose("r1n1", at=10)
    [first] = log.read(40)
    assert str(first.cause.element) == "node r1n1"
    [one] = log.lose("r1n2", "r1n3", "r1n4", at=50).read(90)
    assert (one.id, str(one.cause.element)) == (first.id, "rack z/r1")
    assert "suspected cause: rack z/r1, before: node r1n1" in [step.text for step in one.timeline]


def test_where_nothing_tells_two_causes_apart_both_are_told() -> None:
    """The only program on the only node that ran anything lately."""
    log = Log(racks=1, nodes=1)
    for number in range(8):
        log.run("resnet", "r1n1", "hung", at=10 + number / 10)
    [one] = log.read(60)
    named = {str(suspect.element) for suspect in (one.cause, *one.tied)}
    assert {"program resnet", "node r1n1"} <= named
    assert max(suspect.score for suspect in (one.cause, *one.tied)) < 0.6


def test_a_program_that_fails_everywhere_is_the_cause_and_not_its_nodes() -> None:
    log = Log()
    for number in range(6):
        log.run("good", f"r{number % 3 + 1}n1", "done", at=10 + number)
        log.run("bad", f"r{number % 3 + 1}n{number % 4 + 1}", "failed", at=10 + number)
    [one] = log.read(60)
    assert (str(one.cause.element), one.tied) == ("program bad", ())
    assert (len(one.jobs), one.hint) == (6, "read the output: `poise logs j2`")


def test_a_node_on_which_everything_fails_is_the_cause_and_not_the_programs() -> None:
    log = Log()
    for number in range(6):
        log.run(f"p{number}", "r1n1", "failed", at=10 + number, user=f"u{number}")
        log.run(f"p{number}", "r2n1", "done", at=10 + number, user=f"u{number}")
    [one] = log.read(60)
    assert (str(one.cause.element), one.hint.endswith("`poise drain r1n1`")) == ("node r1n1", True)


@pytest.mark.parametrize("kind", [kind for kind in get_args(SymptomKind) if kind != "new-template"])
def test_each_symptom_can_be_judged(kind: SymptomKind) -> None:
    """Also where nothing but that was ever seen of it."""
    log = Log()
    for second in (10, 11):
        log.add(Noticed(at=second * SECOND, kind=kind, subject="r1n1", text=kind))
    for one in log.read(60):
        assert one.symptoms == {kind: 2}


@pytest.mark.parametrize(
    ("subject", "service", "cause"),
    [("r1n1", False, "node r1n1"), ("", False, "control plane"), ("ann:chat", True, "service ann:chat")],
)
def test_what_a_rule_notes_is_an_incident_until_the_rule_is_over(subject: str, service: bool, cause: str) -> None:
    text = "rule hot: 91 degrees"
    log = Log().add(Noticed(at=10 * SECOND, kind="rule-fired", subject=subject, text=text, service=service))
    [one] = log.read(600)
    assert (str(one.cause.element), one.closed) == (cause, 0.0)
    log.add(Noticed(at=700 * SECOND, kind="rule-fired", subject=subject, text="rule hot: over", over=True))
    [one] = log.read(700 + QUIET / SECOND)
    assert one.closed
    assert [step.text for step in one.timeline] == ["rule hot: 91 degrees", "rule hot: over", "closed"]


def new_line(log: Log, task: str, at: float) -> Log:
    text = f"{task} writes a line that is new for p: CUDA error"
    return log.add(Noticed(at=int(at * SECOND), kind="new-template", subject=task, text=text))


def test_a_new_line_joins_an_incident_and_opens_none() -> None:
    log = Log()
    for number in range(1, 5):
        unit = Unit(name="main", tasks=(Task(name="main", argv=("x",)),), kind="p")
        log.add(JobSubmitted(at=0, job=Job(id=f"j{number}", units=(unit,), user="ann")))
        log.add(Placed(at=0, unit=f"j{number}.main", epoch=1, spots=(Spot("r1n1"),), why=WHY))
    for second in range(10, 40):
        new_line(log, f"j{second % 4 + 1}.main", second)
    assert log.read(100) == []
    log.lose("r1n1", at=300)
    [one] = new_line(log, "j1.main", 302).read(400)
    assert (str(one.cause.element), one.symptoms["new-template"]) == ("node r1n1", 1)
    assert one.title.startswith("node r1n1: node lost")


def test_a_new_line_does_not_delay_what_is_known_of_a_fault() -> None:
    log = Log().lose("r1n1", at=10)
    for second in range(12, 30):
        new_line(log, "j1.main", second)
    [one] = log.read(11 + MOST_WAIT / SECOND)
    assert one.opened == 10


def test_one_failed_job_of_a_user_is_no_incident() -> None:
    assert Log().run("mine", "r1n1", "failed", at=10).run("mine", "r1n2", "failed", at=12).read(100) == []


def test_a_node_that_was_silent_for_a_moment_is_no_incident_and_one_that_flaps_is() -> None:
    log = Log()
    for number in range(2):
        log.add(NodeSuspected(at=(10 + 4 * number) * SECOND, name="r1n1"))
        log.add(NodeTrusted(at=(11 + 4 * number) * SECOND, name="r1n1"))
    assert log.read(100) == []
    for number in range(2, 6):
        log.add(NodeSuspected(at=(10 + 4 * number) * SECOND, name="r1n1"))
        log.add(NodeTrusted(at=(11 + 4 * number) * SECOND, name="r1n1"))
    [one] = log.read(60)
    assert str(one.cause.element) == "node r1n1"


def test_a_drained_node_may_go() -> None:
    log = Log().add(NodeDrained(at=5 * SECOND, name="r1n1", on=True))
    log.add(NodeLost(at=10 * SECOND, name="r1n1"))
    assert log.read(100) == []


def test_a_failed_device_is_told_with_what_its_code_means_until_it_is_opened() -> None:
    log = Log().add(DeviceCordoned(at=10 * SECOND, node="r1n1", device=2, id="u", code="XID 79"))
    [one] = log.read(40)
    assert (str(one.cause.element), one.nodes) == ("device r1n1:2", ("r1n1",))
    assert one.timeline[0].text == "device r1n1:2 failed: XID 79, GPU has fallen off the bus"
    assert one.hint == (
        "switch the machine off and on; replace the device if it happens again; "
        "then open it: `poise drain r1n1:2 --undo`"
    )
    assert not log.read(600)[0].closed
    log.add(DeviceDrained(at=700 * SECOND, node="r1n1", device=2, id="u", on=False))
    assert log.read(800)[0].closed == 730


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (Noticed(at=10 * SECOND, kind="slow-store", text="a commit took 2.0 s"), "store"),
        (Noticed(at=10 * SECOND, kind="clock-step", text="the wall clock was set"), "clock"),
        (PolicyFailed(at=10 * SECOND, policy="mine", error="KeyError"), "policy mine"),
    ],
)
def test_parts_of_the_control_plane(event: Event, cause: str) -> None:
    [one] = Log().add(event).read(40)
    assert (str(one.cause.element), one.hint.count("`")) == (cause, 2)


class Services(Log):
    """Services of one replica each, on these nodes."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        self.names = [f"s{number}" for number in range(1, len(nodes) + 1)]
        for number, node in enumerate(nodes, start=1):
            unit = Unit(name="main", tasks=(Task(name="main", argv=("x",)),), kind=f"s{number}-replica")
            self.add(JobSubmitted(at=0, job=Job(id=f"j{number}", units=(unit,))))
            self.add(Placed(at=0, unit=f"j{number}.main", epoch=1, spots=(Spot(node),), why=WHY))

    def miss(self, *names: str, at: float, over: bool = False) -> "Services":
        for name in names:
            jobs = () if over else (f"j{name[1:]}",)
            text = f"service {name} misses its objective: P99 310 ms, objective 200 ms"
            noticed = Noticed(
                at=int(at * SECOND), kind="objective-missed", subject=name, text=text, over=over, jobs=jobs
            )
            self.add(noticed)
        return self


def test_a_service_that_misses_its_objective_is_an_incident_until_it_meets_it() -> None:
    log = Services("r1n1").miss("s1", at=10)
    [one] = log.read(40)
    assert (str(one.cause.element), one.title) == ("service s1", "service s1: objective missed")
    assert one.hint == "compare its latency with its load and its replicas: `poise services s1`"
    assert not log.read(600)[0].closed
    log.miss("s1", at=700, over=True)
    assert log.read(800)[0].closed == 730


@pytest.mark.parametrize("first", ["node", "service"])
def test_a_missed_objective_belongs_to_the_node_that_was_lost_under_a_replica(first: str) -> None:
    log = Services("r1n1", "r2n1")
    if first == "service":
        log.miss("s1", at=5)
    log.lose("r1n1", at=20)
    log.add(Finished(at=21 * SECOND, task="j1.main", epoch=1, ending=Ending(outcome="lost")))
    log.add(Placed(at=22 * SECOND, unit="j1.main", epoch=2, spots=(Spot("r3n3"),), why=WHY))
    if first == "node":
        log.miss("s1", at=60)
    [one] = log.read(120)
    assert (str(one.cause.element), one.symptoms["objective-missed"]) == ("node r1n1", 1)
    [one, other] = log.miss("s2", at=130).read(160)
    assert str(other.cause.element) == "service s2", "its replica is elsewhere"


def test_services_of_one_node_that_miss_their_objectives_accuse_the_node_and_services_of_a_rack_no_rack() -> None:
    [one] = Services("r1n1", "r1n1", "r1n1").miss("s1", "s2", "s3", at=10).read(40)
    assert (str(one.cause.element), one.symptoms) == ("node r1n1", {"objective-missed": 3})
    apart = Services("r1n1", "r1n2", "r1n3").miss("s1", "s2", "s3", at=10).read(40)
    assert sorted(str(one.cause.element) for one in apart) == ["service s1", "service s2", "service s3"]


def test_what_lasts_of_a_kind_is_known_before_and_after_its_cause_is() -> None:
    for until in (0, 40):
        made = taken(Services("r1n1", "r2n1").miss("s1", "s2", at=10).miss("s2", at=11, over=True).events)
        made.tick(until * SECOND)
        assert (made.going("objective-missed"), made.going("node-lost")) == (["s1"], [])


def test_a_control_plane_that_is_killed_twice_is_an_incident_and_one_that_is_stopped_is_none() -> None:
    log, stopped = Log(), Log()
    for made in (log, stopped):
        made.add(Began(at=0, term=1, policy="poise", history=10, version="1"))
        made.run("p", "r1n1", "done", at=1).add(
            Placed(at=SECOND, unit="j9.main", epoch=1, spots=(Spot("r1n1"),), why=WHY)
        )
        made.add(
            JobSubmitted(
                at=SECOND, job=Job(id="j9", units=(Unit(name="main", tasks=(Task(name="main", argv=("x",)),)),))
            )
        )
        made.add(Placed(at=SECOND, unit="j9.main", epoch=1, spots=(Spot("r1n1"),), why=WHY))
    for term in (2, 3, 4):
        stopped.add(StopAsked(at=10 * term * SECOND))
        for made in (log, stopped):
            made.add(Began(at=10 * term * SECOND, term=term, policy="poise", history=10, version="1"))
    assert [str(one.cause.element) for one in log.read(100)] == ["control plane"]
    assert stopped.read(100) == []


def test_an_incident_of_attempts_closes_when_they_end_well_again() -> None:
    log = Log()
    for number in range(6):
        log.run("bad", f"r{number % 3 + 1}n1", "failed", at=10 + number)
    for number in range(20):
        log.run("bad", f"r{number % 3 + 1}n1", "done", at=60 + number)
    log.run("bad", "r1n1", "failed", at=85)
    [one] = log.read(200)
    assert one.symptoms == {"attempt-failed": 6}
    assert one.closed == 45


def test_what_was_told_to_whom_is_known_from_the_log_and_moments_come_in_order() -> None:
    log = Log().lose("r1n1", at=10)
    made = Incidents()
    for revision, event in enumerate(log.events, start=1):
        made.take(revision, event)
    made.tick(40 * SECOND)
    [name] = made.ids()
    assert list(made.untold(["a", "b"], 0)) == [(name, "opened", "a"), (name, "opened", "b")]
    revision = len(log.events) + 1
    made.take(revision, IncidentTold(at=41 * SECOND, incident=name, moment="opened", target="a"))
    made.take(revision + 1, log.join("r1n1", "r1", at=42).events[-1])
    made.tick(5 * MINUTE)
    assert list(made.untold(["a", "b"], 0)) == [(name, "closed", "a"), (name, "opened", "b")]
    assert list(made.untold(["a"], 5 * MINUTE)) == [], "too old"


def test_targets_of_a_rule_are_told_of_its_incident_alone() -> None:
    log = Log().join("r1n1", "r1", at=1)
    log.events.append(Noticed(at=9 * SECOND, kind="rule-fired", subject="r1n1", text="rule full", targets=("mine",)))
    made = Incidents()
    for revision, event in enumerate(log.events, start=1):
        made.take(revision, event)
    made.tick(50 * SECOND)
    [name] = made.ids()
    assert list(made.untold(["a", "mine"], 0)) == [(name, "opened", "a"), (name, "opened", "mine")]
    assert list(made.untold([], 0)) == [(name, "opened", "mine")]


def test_the_same_log_gives_the_same_however_it_is_read() -> None:
    events = rage(storm_of(1))
    at_once, ticked, saved = Incidents(), Incidents(), Incidents()
    for revision, event in enumerate(events, start=1):
        at_once.take(revision, event)
        for step in range(4):
            ticked.tick(ticked.state().now + step * (event.at - ticked.state().now) // 4)
        ticked.take(revision, event)
        if revision % 500 == 0:
            saved = Incidents(msgspec.msgpack.decode(msgspec.msgpack.encode(saved.state()), type=State))
        saved.take(revision, event)
    for made in (at_once, ticked, saved):
        made.tick(events[-1].at + 10 * MINUTE)
    assert reports(at_once)
    assert reports(at_once) == reports(ticked) == reports(saved)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_storms_on_a_simulated_fleet(seed: int) -> None:
    storm = storm_of(seed)
    events = rage(storm)
    found = {str(one.cause.element) for one in read(events, events[-1].at / SECOND + 300)}
    assert {str(fault.cause) for fault in storm.faults} <= found


def test_what_is_kept_has_a_limit() -> None:
    log = Log(racks=1, nodes=1)
    for number in range(MOST_INCIDENTS + 10):
        log.add(PolicyFailed(at=(10 + 200 * number) * SECOND, policy=f"p{number}", error="x"))
    assert len(log.read(200 * (MOST_INCIDENTS + 20))) == MOST_INCIDENTS


def test_a_program_that_fails_for_ever_takes_no_more_room_than_one_that_fails_often() -> None:
    log = Log()
    for number in range(3 * MOST_SHOWN):
        log.run("train", f"r1n{1 + number % 4}", "failed", at=1 + number / 20)
    made = taken(log.events)
    [name] = made.ids()
    assert len(made.attempts(name)) <= MOST_SHOWN
    report = made.report(name, float)
    assert (report.cause.name, report.symptoms) == ("train", {"attempt-failed": 3 * MOST_SHOWN})
    assert made.attempts(name)[-1] == f"j{log.jobs}.main"


@pytest.mark.parametrize("jobs", [10, MOST_WAITING])
def test_a_storm_of_failures_that_wait_for_a_cause_is_bounded_and_postpones_no_look(jobs: int) -> None:
    log = Log()
    for number in range(jobs):
        log.run("train", f"r1n{1 + number % 4}", "failed", at=1)
    for number in range(MOST_WAITING + 10):
        at, ending = 1 * SECOND + number, Ending(outcome="failed", code=1)
        log.add(Finished(at=at, task=f"j{1 + number % jobs}.main", epoch=2, ending=ending))
    made = taken(log.events)
    assert len(made.state().waiting) <= MOST_WAITING
    assert made.due() == made.state().waiting[-1].at + SETTLES
    assert made.state().waiting[0].at == 1 * SECOND
    again = Incidents(msgspec.msgpack.decode(msgspec.msgpack.encode(made.state()), type=State))
    assert again.due() == made.due()


def test_failures_of_jobs_that_are_no_longer_known_leave_nothing() -> None:
    made = taken(Finished(at=1, task=f"j{number}.main", epoch=1, ending=Ending(outcome="lost")) for number in range(9))
    assert made.state().facts.hit == {}


def test_an_incident_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="no such incident"):
        Incidents().report("i7", float)
