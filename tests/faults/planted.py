"""Bugs that somebody could write, as switches that exist only here. Each breaks a promise; the simulator has to notice.

PYTHONPATH=tests python -m faults.planted          the table: which seed finds which bug, at most 2,000 tried
PYTHONPATH=tests python -m faults.planted no-fence
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from poise.drivers.nemeses import keep_scenario, shipped
from poise.engine import control, disk, machine, timeline
from poise.engine.host import Host
from poise.engine.scenario import TENANTS, scenario_of
from poise.engine.seeds import nemeses_of, shrink, try_scenario, try_seed
from poise.kernel import verify
from poise.kernel.controller import Controller, attempts, deciding, tellings
from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.jobs import JobRequests
from poise.kernel.controller.membership import Membership
from poise.kernel.controller.outbox import Outbox
from poise.kernel.ledger import Ledger, NodeState
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.lifecycle import Lifecycle
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.seats import Seats
from poise.kernel.ledger.units import UnitState
from poise.kernel.messages import Reply
from poise.kernel.node import NodeMachine
from poise.model.decisions import Hold, Plan
from poise.model.events import Started
from poise.model.jobs import Retry
from poise.model.messages import Attempt
from poise.model.reports.nodes import Drained
from poise.model.resources import Node
from poise.policy.suites import Suite
from poise.units import SECOND

SEEDS = Path(__file__).parent.parent / "seeds"
MOST_SEEDS = 2_000
HASH_SEEDS = ("1", "2")

Plant = Callable[[], contextlib.AbstractContextManager[Any]]


def no_fence() -> Any:
    """A unit that is placed again keeps its epoch."""
    real = verify.verify_place

    def same_epoch(ledger: Ledger, place: Any, now: int) -> Any:
        placed = real(ledger, place, now)
        unit = ledger.jobs.unit(place.unit)
        again = unit is not None and unit.epoch and hasattr(placed, "epoch")
        return msgspec.structs.replace(placed, epoch=unit.epoch) if again and unit else placed

    return patch.object(deciding, "verify_place", same_epoch)


def effect_before_append() -> Any:
    """What is told to the outside does not wait for the log."""

    def at_once(self: Any, effect: Any) -> None:
        self._waiting.append((0, effect))

    return patch.object(Outbox, "later", at_once)


def epoch_not_checked() -> Any:
    """Whatever says that a task has ended is believed, if it is active at all."""

    def current(self: Any, attempt: Attempt, ending: Any, now: int) -> None:
        found = self.ledger.jobs.task(attempt.task)
        real(self, Attempt(attempt.task, found[0].epoch) if found else attempt, ending, now)

    real = LiveAttempts.finish
    return _both(
        patch.object(attempts, "is_current", _is_active),
        patch.object(tellings, "is_current", _is_active),
        patch.object(LiveAttempts, "finish", current),
    )


def stale_plan_committed() -> Any:
    """A plan is believed, though the room it counts on may be taken by now."""
    return patch.object(verify, "_against_room", lambda *_: [])


def acknowledged_before_sync() -> Any:
    """An append counts as durable once it is written."""

    def write(self: Any) -> None:
        real(self)
        if self._disk.records and not self._disk.full:
            self._durable = len(self._disk.records)
            self.on_durable(self._durable)

    real = disk.SimulatedStore._write
    return patch.object(disk.SimulatedStore, "_write", write)


def gang_half_placed() -> Any:
    """Fewer spots than tasks are accepted."""
    real = verify.verify_place

    def halves(ledger: Ledger, place: Any, now: int) -> Any:
        unit = ledger.jobs.unit(place.unit)
        if unit is not None and not unit.spec.least and len(place.spots) < len(unit.tasks):
            with patch.object(unit, "spec", msgspec.structs.replace(unit.spec, least=1)):
                return real(ledger, place, now)
        return real(ledger, place, now)

    return patch.object(deciding, "verify_place", halves)


def lease_on_wall_clock() -> Any:
    """The clock that leases, losses and rounds go by is the one that people set."""

    def now(self: Any) -> int:
        offset: int = self._offset
        return int((self.wall() - timeline.WALL) * SECOND) + offset

    return patch.object(timeline.SimulatedClock, "now", now)


def first_reason_only() -> Any:
    """Of all the reasons why something waits one is told."""
    real = Suite.decide

    def decide(self: Any, view: Any) -> Plan:
        plan = real(self, view)
        return msgspec.structs.replace(plan, decisions=tuple(map(_first_only, plan.decisions)))

    return patch.object(Suite, "decide", decide)


def _first_only(decision: Any) -> Any:
    return msgspec.structs.replace(decision, reasons=decision.reasons[:1]) if isinstance(decision, Hold) else decision


def unsorted_set() -> Any:
    """Decisions leave in the order of a set, which is another one in every process."""
    real = Suite.decide

    def decide(self: Any, view: Any) -> Plan:
        plan = real(self, view)
        by_text = {str(decision): decision for decision in plan.decisions}
        return msgspec.structs.replace(plan, decisions=tuple(by_text[text] for text in set(by_text)))

    return patch.object(Suite, "decide", decide)


def retry_without_idempotence() -> Any:
    """A submission that is sent again is another job."""
    return patch.object(Jobs, "submitted_under", lambda *_: None)


def lease_not_kept() -> Any:
    """Exclusive work goes on though its node hears nothing: neither agent nor keeper ends it."""
    return _both(
        patch.object(NodeMachine, "_stop_at", lambda *_: 2**62),
        patch.object(machine.SimulatedExecutor, "renew", lambda *_: None),
    )


def older_connection_wins() -> Any:
    """Of two connections of a node the one counts whose hello came last, though it was sent first."""
    real = Host.connect

    def connect(self: Any, node: Node, number: int, channel: Any) -> bool:
        self._newest.clear()
        return real(self, node, number, channel)

    return patch.object(Host, "connect", connect)


def loser_stays() -> Any:
    """Who has lost the lock, or the log, to another control plane lives on beside it."""
    return patch.object(control.SimulatedControl, "_leave", lambda *_: None)


def end_not_read() -> Any:
    """A start does not read the last event of the log."""

    def load(store: Any) -> Ledger:
        ledger = Ledger()
        for revision, event in store.read():
            if revision < store.durable():
                ledger.apply(event)
        return ledger

    return patch.object(control, "load_ledger", load)


def start_of_any_epoch() -> Any:
    """A start is believed of whatever epoch it is, and from whatever node."""

    def take(self: Any, name: str, running: Any, ended: Any, now: int) -> None:
        with patch.object(attempts, "is_current", _is_active):
            real(self, name, [], [], now)
            for began in running:
                found = self.ledger.jobs.task(began.attempt.task)
                if found is not None and found[1].status == "queued":
                    epoch = began.attempt.epoch
                    self._commit(Started(at=now, task=began.attempt.task, epoch=epoch, pid=1, cpus=()))
        real(self, name, running, ended, now)

    real = LiveAttempts.take_report
    return patch.object(LiveAttempts, "take_report", take)


def _is_active(ledger: Ledger, attempt: Attempt, node: str) -> bool:
    found = ledger.jobs.task(attempt.task)
    return found is not None and bool(found[1].active)


def acknowledged_cancel_not_logged() -> Any:
    """Of what runs a cancellation only stops the attempts: nothing of it is in the log."""

    def cancel(self: Any, message: Any, now: int) -> str:
        job = self.ledger.jobs.get(message.job)
        if job is not None and any(unit.status == "active" for unit in job.units):
            for unit in job.units:
                if unit.status == "active":
                    self._attempts.stop(unit, now)
            return str(job.id)
        return str(real(self, message, now))

    real = JobRequests._cancel
    return patch.object(JobRequests, "_cancel", cancel)


def drain_answered_at_once() -> Any:
    """The answer to a drain does not wait for the log, nor a quota's."""
    real = Outbox.later

    def later(self: Any, effect: Any) -> None:
        if isinstance(effect, Reply) and (isinstance(effect.value, Drained) or effect.value in TENANTS):
            self._waiting.append((0, effect))
        else:
            real(self, effect)

    return patch.object(Outbox, "later", later)


def quota_kept_after_cancel() -> Any:
    """What is cancelled while it runs goes on counting against the quota of its tenant."""
    real = Quotas.count

    def count(self: Any, unit: Any, shape: Any, sign: int) -> None:
        if sign > 0 or unit.stopping != "cancel":
            real(self, unit, shape, sign)

    return patch.object(Quotas, "count", count)


def gang_released_one_short() -> Any:
    """The last member of a gang gives nothing back."""
    real = Seats.give_back

    def give_back(self: Any, unit: Any, index: int) -> None:
        if len(unit.tasks) == 1 or index < len(unit.tasks) - 1:
            real(self, unit, index)

    return patch.object(Seats, "give_back", give_back)


def checkpoint_one_event_short() -> Any:
    """The state that was saved lacks the event after which it is said to be."""

    def load(store: Any) -> Ledger:
        checkpoint = store.latest_checkpoint()
        ledger = Ledger.decode(checkpoint.state) if checkpoint else Ledger()
        events = list(store.read(ledger.revision))
        for _, event in events[1:] if checkpoint else events:
            ledger.apply(event)
        return ledger

    return patch.object(control, "load_ledger", load)


def outbox_lost_on_hang_up() -> Any:
    """With a node's connection goes all that waits to be said, to whomever."""

    def disconnect(self: Any, name: str, now: int) -> None:
        real(self, name, now)
        self._outbox._waiting.clear()

    real = Membership.disconnect
    return patch.object(Membership, "disconnect", disconnect)


def backlog_in_order_of_arrival() -> Any:
    """The queues of a view stand in the order in which they came to be."""
    return patch.object(Queues, "backlog", lambda self: {name: len(units) for name, units in self.items()})


def device_given_twice() -> Any:
    """A place on a device is not compared with what holds it."""
    return patch.object(verify, "_against_devices", lambda *_: [])


def retry_without_limit() -> Any:
    """What has failed is tried again for ever."""
    return patch.object(Retry, "allows", lambda *_: True)


def back_off_not_waited_for() -> Any:
    """What has failed may be placed again at once."""
    real = Lifecycle.again

    def again(self: Any, unit: Any, at: int, *, delay: int) -> None:
        real(self, unit, at, delay=0)

    return patch.object(Lifecycle, "again", again)


def need_not_waited_for() -> Any:
    """A task of a graph may begin before all that it needs is done."""
    real = Lifecycle.release_roots

    def release(self: Any, job: Any, at: int) -> None:
        for unit in job.units:
            unit.missing = max(0, unit.missing - 1)
        real(self, job, at)

    return patch.object(Lifecycle, "release_roots", release)


def drained_node_given_work() -> Any:
    """A drained node is as open as any other."""
    return patch.object(NodeState, "condition", property(lambda self: "up" if self.status == "up" else "lost"))


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()
    for one in patches:
        stack.enter_context(one)
    return stack


def shrinking_loses_work() -> Any:
    """What runs on a node that offers less than it runs is given up."""

    def without_room(self: Any, name: str) -> list[Attempt]:
        if max(self.ledger.nodes[name].excess) > 0:
            self.lose_all(name, self.ledger.now, "its node has shrunk")
        return real(self, name)

    real = LiveAttempts._without_room
    return patch.object(LiveAttempts, "_without_room", without_room)


def quota_not_verified() -> Any:
    """A plan is believed, though what the quota left may be taken by now."""
    return patch.object(Quotas, "refusals", lambda *_: [])


def loss_is_no_try() -> Any:
    """What is lost with its node is tried again for ever."""
    real = UnitState.count_try

    def count_try(self: Any, outcome: Any) -> None:
        if outcome != "lost":
            real(self, outcome)

    return patch.object(UnitState, "count_try", count_try)


def full_disk_takes_nothing_back() -> Any:
    """What waited for a commit that failed is said when the next one is durable."""
    real = Controller._append_failed

    def failed(self: Any, message: Any, now: int) -> Any:
        waiting = list(self.outbox._waiting)
        effects = real(self, message, now)
        self.outbox._waiting.extend(waiting)
        return [effect for effect in effects if not isinstance(effect, Reply)]

    return patch.object(Controller, "_append_failed", failed)


def end_not_said_again() -> Any:
    """A node that comes back says nothing of what has ended meanwhile."""
    real = NodeMachine._hello

    def hello(self: Any, address: str, now: int) -> Any:
        with patch.object(self, "_ended", {}):
            return real(self, address, now)

    return patch.object(NodeMachine, "_hello", hello)


def lease_of_lost_node_not_kept() -> Any:
    """Exclusive work of a node that is given up is placed elsewhere at once."""
    return patch.object(LiveAttempts, "lease_end", lambda *_: 0)


def next_beside_last() -> Any:
    """A node starts the next attempt of a task beside the last one."""
    real = NodeMachine._must_wait

    def must_wait(self: Any, launch: Any, now: int) -> bool:
        with patch.object(self, "_tasks", {}):
            return bool(real(self, launch, now))

    return patch.object(NodeMachine, "_must_wait", must_wait)


BUGS: dict[str, Plant] = {
    "no-fence": no_fence,
    "effect-before-append": effect_before_append,
    "epoch-not-checked": epoch_not_checked,
    "stale-plan-committed": stale_plan_committed,
    "acknowledged-before-sync": acknowledged_before_sync,
    "gang-half-placed": gang_half_placed,
    "lease-on-wall-clock": lease_on_wall_clock,
    "first-reason-only": first_reason_only,
    "unsorted-set": unsorted_set,
    "retry-without-idempotence": retry_without_idempotence,
    "lease-not-kept": lease_not_kept,
    "older-connection-wins": older_connection_wins,
    "loser-stays": loser_stays,
    "end-not-read": end_not_read,
    "start-of-any-epoch": start_of_any_epoch,
    "cancel-not-logged": acknowledged_cancel_not_logged,
    "drain-answered-at-once": drain_answered_at_once,
    "quota-kept-after-cancel": quota_kept_after_cancel,
    "gang-released-one-short": gang_released_one_short,
    "checkpoint-one-event-short": checkpoint_one_event_short,
    "outbox-lost-on-hang-up": outbox_lost_on_hang_up,
    "backlog-in-order-of-arrival": backlog_in_order_of_arrival,
    "device-given-twice": device_given_twice,
    "retry-without-limit": retry_without_limit,
    "back-off-not-waited-for": back_off_not_waited_for,
    "need-not-waited-for": need_not_waited_for,
    "drained-node-given-work": drained_node_given_work,
    "shrinking-loses-work": shrinking_loses_work,
    "quota-not-verified": quota_not_verified,
    "loss-is-no-try": loss_is_no_try,
    "full-disk-takes-nothing-back": full_disk_takes_nothing_back,
    "end-not-said-again": end_not_said_again,
    "lease-of-lost-node-not-kept": lease_of_lost_node_not_kept,
    "next-beside-last": next_beside_last,
}


PROMISES = {
    "no-fence": {"S4"},
    "effect-before-append": {"S3", "S4"},
    "epoch-not-checked": {"S4"},
    "stale-plan-committed": {"S1", "ledger"},
    "acknowledged-before-sync": {"S3"},
    "gang-half-placed": {"S2", "ledger"},
    "lease-on-wall-clock": {"L1", "L2", "L4", "S3", "ledger", "internal"},
    "first-reason-only": {"L3"},
    "unsorted-set": {"S7"},
    "retry-without-idempotence": {"S3"},
    "lease-not-kept": {"S5"},
    "older-connection-wins": {"S3", "S4", "S5", "L2"},
    "loser-stays": {"S5", "L1", "L2"},
    "end-not-read": {"S3", "S7"},
    "start-of-any-epoch": {"S4", "ledger"},
    "cancel-not-logged": {"S3"},
    "drain-answered-at-once": {"S3"},
    "quota-kept-after-cancel": {"ledger", "L1"},
    "gang-released-one-short": {"S1", "S7", "ledger"},
    "checkpoint-one-event-short": {"S7", "ledger", "internal"},
    "outbox-lost-on-hang-up": {"L1", "L2"},
    "backlog-in-order-of-arrival": {"S7", "ledger"},
    "device-given-twice": {"S1", "ledger"},
    "retry-without-limit": {"rules"},
    "back-off-not-waited-for": {"rules"},
    "need-not-waited-for": {"rules"},
    "drained-node-given-work": {"rules"},
    "shrinking-loses-work": {"S4"},
    "quota-not-verified": {"S6"},
    "loss-is-no-try": {"rules"},
    "full-disk-takes-nothing-back": {"S3"},
    "end-not-said-again": {"L4"},
    "lease-of-lost-node-not-kept": {"S5"},
    "next-beside-last": {"S5"},
}
"""Those that a bug breaks; another one that is broken proves nothing of it. (`ledger`: an invariant of the ledger that
the log makes, such as that time does not step back.)"""


def first_seed(bug: str, most: int = MOST_SEEDS) -> tuple[int, str]:
    """The first seed that finds a bug, and what it says of it; 0 where none does."""
    if bug == "unsorted-set":
        return _first_that_differs(bug, most)
    known = shipped()
    with BUGS[bug]():
        for seed in range(1, most + 1):
            outcome = try_seed(seed, known)
            if outcome.promise in PROMISES[bug]:
                return seed, outcome.what
    return 0, ""


def _keep(bug: str, seed: int) -> None:
    """The smallest scenario that finds it, so that a test need not search."""
    whole = scenario_of(seed, nemeses_of(seed, shipped()))
    with BUGS[bug]():
        small = shrink(whole, try_scenario(whole).promise)
    keep_scenario(small, SEEDS, bug)


def digests(first: int, count: int, bug: str = "") -> Iterator[str]:
    """What seeds come to, one after the other."""
    known = shipped()
    with BUGS[bug]() if bug else contextlib.nullcontext():
        for seed in range(first, first + count):
            yield try_seed(seed, known).digest


def digests_under(hash_seed: str, first: int, count: int, bug: str = "") -> list[str]:
    """The same in a process of its own, in which texts hash otherwise."""
    program = [sys.executable, "-m", "faults.planted", "--digests", str(first), str(count), bug]
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    return subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout.split()


def _first_that_differs(bug: str, most: int, at_once: int = 5) -> tuple[int, str]:
    for first in range(1, most + 1, at_once):
        one, other = (digests_under(hash_seed, first, at_once, bug) for hash_seed in HASH_SEEDS)
        for number, (here, there) in enumerate(zip(one, other, strict=True)):
            if here != there:
                return first + number, "S7: the same seed comes to something else in another process"
    return 0, ""


def main() -> int:
    if sys.argv[1:2] == ["--digests"]:
        first, count, bug = sys.argv[2:5]
        for digest in digests(int(first), int(count), bug):
            print(digest, flush=True)
        return 0
    missed = 0
    keep = sys.argv[1:2] == ["--keep"]
    for bug in sys.argv[1 + keep :] or BUGS:
        seed, what = first_seed(bug)
        missed += not seed
        if keep and bug != "unsorted-set":
            _keep(bug, seed)
        print(f"{bug:<28}{seed or 'not found':>8}  {what[:110]}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
