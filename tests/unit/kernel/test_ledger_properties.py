"""What holds of the ledger whatever happens: events at random through a real controller, checked after every step."""

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poise.errors import InputError, NotFound
from poise.kernel.ledger import Ledger, queues
from poise.kernel.ledger.queues import OWN
from poise.kernel.messages import CancelJobs
from poise.model.events import Finished, Placed
from poise.model.jobs import Ending, Outcome
from poise.model.messages import DeviceFault
from poise.testing import World, node, replay

OUTCOMES: tuple[Outcome, ...] = ("done", "failed", "killed", "signal", "oom", "hung", "lost", "stopped", "unstartable")
RETRIES: tuple[dict[str, Any], ...] = (
    {},
    {"limit": 0},
    {"limit": 2, "when": ["failed", "oom", "lost"], "backoff": "100ms"},
    {"limit": 5, "when": ["failed", "killed", "signal", "oom", "lost"], "backoff": "3s"},
)
MOST_CPUS = 4
OFFERS: tuple[dict[str, Any], ...] = (
    {"cpu": 2},
    {"cpu": MOST_CPUS, "gpus": 2, "gpu_memory": ("16GiB", "80GiB")},
    {"cpu": 1},
)


class Story(RuleBasedStateMachine):
    """Jobs come and go, nodes are lost, rebooted and drained, the control plane is killed; no promise is broken."""

    @initialize(
        policy=st.sampled_from(["poise", "poise", "fifo", "round-robin", "static"]),
        count=st.integers(1, 3),
        own=st.sampled_from([OWN, 1]),
    )
    def begin(self, policy: str, count: int, own: int) -> None:
        queues.OWN = own
        self.world = World(policy, history=3)
        self.epochs: dict[str, int] = {}
        self.boots = 0
        for number in range(count):
            self.world.join(node(f"n{number}", **OFFERS[number]))

    # --- what people do ----------------------------------------------------------------------------------------------

    @rule(
        cpu=st.sampled_from(["0.5", 1, 1, 2]),
        gpu=st.sampled_from([0, 0, 0, 1]),
        workers=st.sampled_from([1, 1, 2, 3, "1..3", "2..4"]),
        priority=st.sampled_from(["urgent", "medium", "low"]),
        retry=st.sampled_from(RETRIES),
        kind=st.sampled_from(["x", "y", "z"]),
        deadline=st.sampled_from([None, "10s", {"by": "2s", "if-late": "cancel"}]),
        after=st.booleans(),
    )
    def submit_job(self, after: bool, **fields: Any) -> None:
        fields["class"] = fields.pop("kind")
        if after and self.world.ledger.jobs:
            fields["after"] = list(self.world.ledger.jobs)[-2:]
        self._submit({**fields, "run": "true"})

    @rule(
        shape=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6),
        parts=st.sampled_from([0, 3]),
        retry=st.sampled_from(RETRIES),
        deadline=st.sampled_from(["1h", {"by": "3s", "if-late": "cancel"}]),
    )
    def submit_graph(self, shape: list[tuple[int, int]], parts: int, retry: dict[str, Any], deadline: Any) -> None:
        tasks: dict[str, dict[str, Any]] = {}
        for number, needs in enumerate(shape):
            tasks[f"t{number}"] = {
                "run": "true",
                "needs": sorted({f"t{need}" for need in needs if need < number}),
                "retry": retry,
            }
        if parts:
            tasks["t0"] |= {"parts": parts, "merge": "true", "at_most": 2}
        reordered = dict(reversed(tasks.items()))  # a file may name a task before what it needs
        self._submit({"kind": "graph", "tasks": reordered, "deadline": deadline})

    def _submit(self, document: dict[str, Any]) -> None:
        resources = {field: document.pop(field) for field in ("cpu", "gpu") if field in document}
        if resources:
            document["resources"] = resources
        try:
            self.world.submit(document)
        except InputError as error:
            note(f"refused: {error}")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        jobs = [job for job in self.world.ledger.jobs.values() if not job.ended]
        units = [unit.id for job in jobs for unit in job.units if not unit.over]
        if jobs:
            self.world.cancel(data.draw(st.sampled_from([*(job.id for job in jobs), *units])))

    @rule(data=st.data())
    def cancel_many(self, data: st.DataObject) -> None:
        jobs = list(self.world.ledger.jobs)
        if jobs:
            some = data.draw(st.lists(st.sampled_from(jobs), unique=True, min_size=1))
            self.world.ask(CancelJobs(self.world.request(), tuple(some)))

    @rule(data=st.data(), on=st.booleans())
    def hold(self, data: st.DataObject, on: bool) -> None:
        jobs = [job.id for job in self.world.ledger.jobs.values() if not job.ended]
        if jobs:
            self.world.hold(data.draw(st.sampled_from(jobs)), on)

    @rule(
        data=st.data(),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "priority": st.sampled_from(["urgent", "low"]),
                "cpu": st.sampled_from([1, 2]),
                "deadline": st.sampled_from([None, "1s", {"by": "10s", "if-late": "cancel"}]),
                "preemptible": st.booleans(),
                "expect": st.sampled_from(["1s", "1h"]),
                "retry": st.sampled_from([{"limit": 0}, {"limit": 2}]),
                "weight": st.sampled_from([1, 2]),
            },
        ),
    )
    def change_job(self, data: st.DataObject, fields: dict[str, Any]) -> None:
        jobs = [job for job in self.world.ledger.jobs.values() if not job.ended]
        units = [unit.id for job in jobs for unit in job.units if not unit.over]
        if jobs and fields:
            name = data.draw(st.sampled_from([*(job.id for job in jobs), *units]))
            with suppress(InputError):  # no node may be as large
                self.world.change(name, **fields)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        ended = [job.id for job in self.world.ledger.jobs.values() if job.ended]
        if ended:
            with suppress(InputError):  # all of it may be done
                self.world.retry(data.draw(st.sampled_from(ended)))

    @rule(
        every=st.sampled_from(["5s", "1m", None]),
        overlap=st.sampled_from(["allow", "skip", "replace"]),
        hold=st.booleans(),
        cpu=st.sampled_from([1, MOST_CPUS]),
    )
    def submit_schedule(self, every: str | None, **fields: Any) -> None:
        when = {"every": every} if every else {"cron": "* * * * *", "time-zone": "Europe/Zurich"}
        if len(self.world.ledger.schedules) < 3:
            self._submit({"run": "true", **when, **fields})

    @rule(data=st.data(), what=st.sampled_from(["hold", "release", "remove"]))
    def change_schedule(self, data: st.DataObject, what: str) -> None:
        if not self.world.ledger.schedules:
            return
        name = data.draw(st.sampled_from(list(self.world.ledger.schedules)))
        if what == "remove":
            self.world.remove_schedule(name)
        else:
            self.world.hold_schedule(name, what == "hold")

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        ended = [job.id for job in self.world.ledger.jobs.values() if job.ended]
        if ended:
            self.world.remove(*data.draw(st.lists(st.sampled_from(ended), unique=True, min_size=1)))

    @rule(data=st.data(), on=st.booleans())
    def drain(self, data: st.DataObject, on: bool) -> None:
        if self.world.ledger.nodes:
            self.world.drain(data.draw(st.sampled_from(sorted(self.world.ledger.nodes))), on)

    # --- what nodes do -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), run=st.sampled_from(["10ms", "5s"]))
    def end(self, data: st.DataObject, outcome: Outcome, run: str) -> None:
        held = [(name, attempt) for name, of_node in self.world.held.items() for attempt in of_node]
        held = [(name, attempt) for name, attempt in held if name in self.world.connected]
        if held:
            name, attempt = data.draw(st.sampled_from(sorted(held)))
            nanoseconds = {"10ms": 10**7, "5s": 5 * 10**9}[run]
            self.world.end(name, attempt, Ending(outcome=outcome, run=nanoseconds))

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        held = [
            attempt.task
            for name in sorted(self.world.connected)
            for attempt in self.world.held[name]
            if attempt not in self.world.started and self.world.ledger.jobs.task(attempt.task) is not None
        ]
        if held:
            self.world.start(data.draw(st.sampled_from(held)))

    @rule(data=st.data())
    def finish_twice(self, data: st.DataObject) -> None:
        """What is over, and what was fenced, may be said again and changes nothing."""
        ended = [event for event in self.world.log if isinstance(event, Finished)]
        if ended and self.world.connected:
            event = data.draw(st.sampled_from(ended))
            before = self.world.ledger.encode()
            from poise.model.messages import Attempt

            name = data.draw(st.sampled_from(sorted(self.world.connected)))
            self.world.end(name, Attempt(event.task, event.epoch), Ending(outcome="done"))
            assert self.world.ledger.encode() == before

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.world.connected:
            self.world.lose(data.draw(st.sampled_from(sorted(self.world.connected))))

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        if self.world.connected:
            self.world.disconnect(data.draw(st.sampled_from(sorted(self.world.connected))))

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.world.connect(data.draw(st.sampled_from(sorted(self.world.known))))

    @rule(data=st.data(), shrink=st.booleans())
    def reboot(self, data: st.DataObject, shrink: bool) -> None:
        self.boots += 1
        name = data.draw(st.sampled_from(sorted(self.world.known)))
        offers = OFFERS[int(name[1:])] | ({"gpus": 0, "gpu_memory": "1GiB"} if shrink else {})
        self.world.join(node(name, incarnation=str(self.boots + 1), **offers))

    @rule(data=st.data(), cpu=st.sampled_from([1, 2, MOST_CPUS]))
    def change(self, data: st.DataObject, cpu: int) -> None:
        """The same boot offers more or less than before."""
        name = data.draw(st.sampled_from(sorted(self.world.known)))
        known = self.world.known[name]
        offers = OFFERS[int(name[1:])] | {"cpu": cpu}
        self.world.join(node(name, incarnation=known.incarnation, **offers))

    @rule(data=st.data(), device=st.sampled_from([0, 1]), on=st.sampled_from([None, True, False]))
    def close_device(self, data: st.DataObject, device: int, on: bool | None) -> None:
        """A device fails, or somebody closes it or opens it again."""
        names = [name for name in sorted(self.world.connected) if len(self.world.known[name].devices) > device]
        if names and on is None:
            self.world.fault(data.draw(st.sampled_from(names)), DeviceFault(index=device, code="XID 79"))
        elif names and on is not None:
            name = data.draw(st.sampled_from(names))
            with suppress(NotFound):  # the disk was full, or another fleet came up, when the node said that it has it
                self.world.drain(f"{name}:{device}", on)

    # --- what time and faults do -------------------------------------------------------------------------------------

    @rule(duration=st.sampled_from(["1ms", "300ms", "2500ms", "20s"]))
    def wait(self, duration: str) -> None:
        self.world.after(duration)

    @rule(from_checkpoint=st.booleans())
    def restart(self, from_checkpoint: bool) -> None:
        self.world.restart(from_checkpoint=from_checkpoint)

    @precondition(lambda self: len(self.world.ledger.nodes) > 1)
    @rule(data=st.data())
    def come_up_with_another_fleet(self, data: st.DataObject) -> None:
        """One node is no longer part of it, and may yet come back. Not the last: without any, all work is accepted."""
        gone = data.draw(st.sampled_from(sorted(self.world.ledger.nodes)))
        self.world.disconnect(gone)
        self.world.restart(declared=(*sorted({*self.world.known} - {gone}), "another"))
        assert gone not in self.world.ledger.nodes

    @precondition(lambda self: self.world.log)
    @rule()
    def remember_everything(self) -> None:
        """S7: the log, replayed, makes the same bytes."""
        assert replay(self.world.log).encode() == self.world.ledger.encode()
        again = Ledger.decode(self.world.ledger.encode())
        assert again.snapshot(self.world.now) == self.world.ledger.snapshot(self.world.now)

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def epochs_only_grow(self) -> None:
        if not hasattr(self, "world"):
            return
        for job in self.world.ledger.jobs.values():
            for unit in job.units:
                assert unit.epoch >= self.epochs.get(unit.id, 0)
                self.epochs[unit.id] = unit.epoch

    @invariant()
    def no_device_has_two_holders(self) -> None:
        if not hasattr(self, "world"):
            return
        for name, of_node in self.world.held.items():
            if name in self.world.connected:
                devices = [device for launch in of_node.values() for device in launch.devices]
                assert len(devices) == len(set(devices)), (name, of_node)

    def teardown(self) -> None:
        """Faults stop: whatever can run does, and every job ends."""
        queues.OWN = OWN
        if not hasattr(self, "world"):
            return
        world = self.world
        for name in sorted(world.known):
            offers = OFFERS[int(name[1:])] | {"cpu": MOST_CPUS}  # what was accepted when it had as many can run
            world.join(node(name, incarnation=world.known[name].incarnation, **offers))
            world.drain(name, False)
            for device in world.known[name].devices:
                world.drain(f"{name}:{device.index}", False)
        for schedule in list(world.ledger.schedules):
            world.remove_schedule(schedule)
        for job in world.ledger.jobs.values():
            if job.hold and not job.ended:
                world.hold(job.id, False)
            if not job.ended and any(unit.barred for unit in job.units):  # there may be no other device for it
                world.cancel(job.id)
        world.after("1s")
        for job in world.ledger.jobs.values():
            for unit in job.units:
                if unit.status in ("waiting", "pending"):
                    codes = world.codes(unit.id)
                    assert codes and "NEXT_ROUND" not in codes, (unit.id, unit.status, codes)
        world.finish_all()
        assert all(job.ended for job in world.ledger.jobs.values())
        assert replay(world.log).encode() == world.ledger.encode()
        epochs = [(event.unit, event.epoch) for event in world.log if isinstance(event, Placed)]
        assert len(epochs) == len(set(epochs))
        done = [(event.task, event.epoch) for event in world.log if isinstance(event, Finished)]
        assert len(done) == len(set(done))


TestStory = Story.TestCase
