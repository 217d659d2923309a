"""What the control plane notices of its own store and clock."""

from poise.kernel.messages import Saw
from poise.kernel.noticing import FAST_AGAIN, Noticing
from poise.kernel.visible import Sight
from poise.model.events import Noticed
from poise.model.tenants import Bearer, Role
from poise.testing import World, replay
from poise.units import MILLISECOND, SECOND


def test_a_slow_store_is_told_once_and_so_is_its_end() -> None:
    noticing = Noticing()
    told = [noticing.committed(took, at) for at, took in enumerate([MILLISECOND, 2 * SECOND, 3 * SECOND])]
    assert [one.text if one else "" for one in told] == ["", "a commit took 2.0 s", ""]
    told = [noticing.committed(MILLISECOND, at) for at in range(FAST_AGAIN + 5)]
    assert [one.over for one in told if one is not None] == [True]


def test_a_wall_clock_that_is_set_is_told_and_one_that_drifts_is_not() -> None:
    noticing = Noticing()
    assert noticing.turn(0, 1000.0) is None
    assert noticing.turn(100 * SECOND, 1100.4) is None
    forward = noticing.turn(101 * SECOND, 4701.4)
    assert forward is not None
    assert (forward.kind, forward.text) == ("clock-step", "the wall clock was set forward by 1h0m")
    back = noticing.turn(102 * SECOND, 1102.4)
    assert back is not None
    assert back.text == "the wall clock was set back by 1h0m"


def test_a_full_store_is_told_when_it_takes_records_again() -> None:
    noticing = Noticing()
    assert noticing.room(1) is None
    noticing.full(10 * SECOND)
    noticing.full(12 * SECOND)
    told = noticing.room(25 * SECOND)
    assert told is not None
    assert told.text == "the log took nothing for 15.0 s"
    assert noticing.room(26 * SECOND) is None


def test_what_is_noticed_is_recorded_with_the_time_and_changes_nothing() -> None:
    world = World().nodes(1)
    before = world.ledger.encode()
    world.say(Saw(Noticed(at=0, kind="slow-store", text="a commit took 2.0 s")))
    assert world.log[-1] == Noticed(at=world.now, kind="slow-store", text="a commit took 2.0 s")
    assert replay(world.log).encode() == world.ledger.encode()
    assert len(before) == len(world.ledger.encode())


def test_what_is_noticed_of_a_task_is_for_its_tenant() -> None:
    world = World().nodes(1).job("a", tenant="ann")
    task = f"{world.state('a').id}.main"
    ann, bob = (Sight(world.ledger, Bearer(name, Role.VIEWER)) for name in ("ann", "bob"))
    of_task = Noticed(at=1, kind="member-differs", subject=task, text=f"{task} differs")
    of_store = Noticed(at=1, kind="slow-store", text="slow")
    assert (ann.event(of_task), bob.event(of_task)) == (of_task, None)
    assert (ann.event(of_store), bob.event(of_store)) == (of_store, of_store)
