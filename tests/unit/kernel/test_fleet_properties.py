"""Controller and node machines together, over channels that break and a disk that is slow, full, or lost.

No attempt runs twice, no node runs more than the ledger allows, no two copies of exclusive work run at once, no
acknowledged job is lost, and every job ends once the faults stop.
"""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from poise.kernel.messages import Cancel, Drain
from poise.model.events import JobSubmitted, Started
from poise.testing import node, replay
from poise.units import MILLISECOND, SECOND

from .fleet import Fleet, Site


class Faults(RuleBasedStateMachine):
    """Anything may break; nothing wrong may happen."""

    @initialize(policy=st.sampled_from(["poise", "poise", "fifo", "round-robin"]), two=st.booleans())
    def begin(self, policy: str, two: bool) -> None:
        nodes = [node("n1", cpu=2, gpus=1)] + ([node("n2", cpu=3)] if two else [])
        self.fleet = Fleet(nodes, policy)
        self.boots = 1
        for site in self.fleet.sites.values():
            self.fleet.connect(site)
        self.fleet.run_dry()

    def _site(self, number: int) -> Site:
        sites = list(self.fleet.sites.values())
        return sites[number % len(sites)]

    @rule(
        count=st.integers(1, 6),
        cpu=st.sampled_from([1, 1, 1, 2]),
        gpu=st.sampled_from([0, 0, 1]),
        workers=st.sampled_from([1, 1, 2]),
        kind=st.sampled_from(["brief", "brief", "long"]),
        lease=st.sampled_from(["fenced", "fenced", "exclusive"]),
    )
    def submit(self, count: int, cpu: int, gpu: int, workers: int, kind: str, lease: str) -> None:
        gang: dict[str, Any] = {"workers": workers} if not gpu else {}
        for _ in range(count):
            resources = {"cpu": 1 if gang.get("workers", 1) > 1 else cpu, "gpu": gpu}
            retry = {"limit": 1000, "when": ["failed", "killed", "lost"]}
            self.fleet.submit(
                {"run": "true", "resources": resources, "class": kind, "retry": retry, "lease": lease, **gang}
            )

    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        self.fleet.say(Cancel(1_000_000, f"j{number}"))

    @rule(which=st.integers(0, 1), on=st.booleans())
    def drain(self, which: int, on: bool) -> None:
        self.fleet.say(Drain(1_000_001, self._site(which).node.name, on))

    @rule(which=st.integers(0, 1), steps=st.integers(1, 4))
    def deliver_up(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self.fleet.deliver_up(self._site(which))

    @rule(which=st.integers(0, 1), steps=st.integers(1, 4))
    def deliver_down(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self.fleet.deliver_down(self._site(which))

    @rule(which=st.integers(0, 1), up=st.booleans(), doubled=st.booleans())
    def lose_or_double(self, which: int, up: bool, doubled: bool) -> None:
        site = self._site(which)
        way: Any = site.up if up else site.down
        if way and doubled:
            way.appendleft(way[0])
        elif way:
            way.popleft()

    @rule()
    def run_dry(self) -> None:
        self.fleet.run_dry()

    @rule()
    def sync(self) -> None:
        self.fleet.sync()

    @rule(full=st.booleans())
    def fill_disk(self, full: bool) -> None:
        self.fleet.full = full

    @rule(which=st.integers(0, 1), noticed=st.booleans())
    def break_channel(self, which: int, noticed: bool) -> None:
        self.fleet.break_channel(self._site(which), noticed=noticed)

    @rule(which=st.integers(0, 1))
    def connect(self, which: int) -> None:
        self.fleet.connect(self._site(which))

    @rule()
    def crash(self) -> None:
        self.fleet.crash()

    @rule(which=st.integers(0, 1))
    def kill_agent(self, which: int) -> None:
        site = self._site(which)
        self.fleet.break_channel(site)
        site.restart_agent()

    @rule(which=st.integers(0, 1))
    def reboot(self, which: int) -> None:
        site = self._site(which)
        self.fleet.break_channel(site)
        self.boots += 1
        site.reboot(str(self.boots))

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, 3),
        outcome=st.sampled_from(["done", "done", "done", "failed"]),
        run=st.sampled_from([1, 50, 5_000]),
    )
    def end(self, which: int, count: int, outcome: Any, run: int) -> None:
        site = self._site(which)
        for attempt in list(site.slots.running())[:count]:
            site.end(attempt, outcome, run * MILLISECOND, self.fleet.now)

    @rule(milliseconds=st.sampled_from([1, 250, 1_500, 5_000]))
    def wait(self, milliseconds: int) -> None:
        self.fleet.tick(milliseconds * MILLISECOND)

    @invariant()
    def nothing_wrong_happens(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.fleet.full = False
        self.fleet.run_dry()
        self.fleet.tick(2_000 * MILLISECOND)  # the log is tried again
        for site in self.fleet.sites.values():
            self.fleet.say(Drain(1_000_001, site.node.name, False))
        self.fleet.heal()
        self.fleet.check()
        assert replay(self.fleet.log).encode() == self.fleet.ledger.encode()
        submitted = {event.job.id for event in self.fleet.log if isinstance(event, JobSubmitted)}
        assert set(self.fleet.acknowledged) <= submitted  # S3
        started = [(event.task, event.epoch) for event in self.fleet.log if isinstance(event, Started)]
        ran = {(at.task, at.epoch) for site in self.fleet.sites.values() for at in site.slots.ran}
        assert set(started) <= ran


TestFaults = Faults.TestCase


@pytest.mark.parametrize("agent", ["goes on", "is killed", "comes back"])
@pytest.mark.parametrize("noticed", [True, False])
def test_exclusive_work_of_a_node_that_is_cut_off_never_runs_twice(agent: str, noticed: bool) -> None:
    fleet = Fleet([node("n1", cpu=1), node("n2", cpu=1)])
    for site in fleet.sites.values():
        fleet.connect(site)
    fleet.run_dry()
    fleet.submit({"run": "true", "lease": "exclusive", "retry": {"limit": 9, "when": ["lost"]}})
    fleet.tick(250 * MILLISECOND)
    fleet.run_dry()
    [first] = [site for site in fleet.sites.values() if site.slots.running()]
    for step in range(80):
        fleet.tick(250 * MILLISECOND)
        if step == 10:
            fleet.break_channel(first, noticed=noticed)
            if agent == "is killed":
                first.restart_agent()
        if step == 62 and agent == "comes back":
            fleet.connect(first)
        for attempt in list(first.slots.stopping & first.slots.running().keys()):
            first.end(attempt, "stopped", SECOND, fleet.now)
        fleet.run_dry()
        fleet.check()
    [second] = [site for site in fleet.sites.values() if site.slots.running()]
    assert second is not first
