"""`tiresias` in schedules worked out by hand: two queues by service, first come first served in each."""

import msgspec

from poise.testing import World, node

from .test_schedules import arrive, decided, until, yielding


def test_who_came_first_goes_first_however_little_the_others_had() -> None:
    """One node of 2 devices. Service is time times devices; the first queue ends at 16 h of one device.

    ======  ===============  =====================  ============================================================
    at      event            service a, b, c        then
    ======  ===============  =====================  ============================================================
    0       a (2) arrives                           a
    1h      b (1) arrives    2h                     b waits: a came first
    8h                       16h                    a falls into the second queue and yields to b, as soon as it
                                                    has gone; then b alone, since a needs 2
    9h      c (1) arrives    16h, 1h                b, c
    10h     b ends           16h, -, 1h             c; a still needs 2
    24h     c ends                                  a
    ======  ===============  =====================  ============================================================
    """
    world = World("tiresias").nodes(1, cpu=8, gpus=2)
    assert decided(arrive(world, a={"gpu": 2})) == {"a": "n1"}
    assert decided(arrive(until(world, "1h"), b={"gpu": 1})) == {"a": "n1"}
    assert decided(until(world, "7h59m")) == {"a": "n1"}
    decided(until(world, "8h"))
    assert yielding(world) == ["a"]
    assert decided(world) == {"b": "n1"}
    assert decided(arrive(until(world, "9h"), c={"gpu": 1})) == {"b": "n1", "c": "n1"}
    assert decided(until(world, "10h", "b")) == {"c": "n1"}
    assert decided(until(world, "24h", "c")) == {"a": "n1"}


def test_what_came_first_takes_the_room_of_what_passed_it() -> None:
    """One node of 4 devices. `a` has 3; `b` needs 2 and waits; `c` needs 1 and passes it. When `a` ends there is room
    for both, and when `d` (4) came before `c` it would take that of `c` too.

    ====  ============================  =================================================
    0     a (3), b (2), c (1) arrive    a, c
    1m    a ends                        b, c
    2m    d (4) arrives                 b, c
    3m    b ends                        c: d came later, and needs all
    4m    c ends                        d
    ====  ============================  =================================================
    """
    world = World("tiresias").nodes(1, cpu=8, gpus=4)
    assert decided(arrive(world, a={"gpu": 3}, b={"gpu": 2}, c={"gpu": 1})) == {"a": "n1", "c": "n1"}
    assert world.codes("b") == ["GPU_BUSY"]
    assert decided(until(world, "1m", "a")) == {"b": "n1", "c": "n1"}
    assert decided(arrive(until(world, "2m"), d={"gpu": 4})) == {"b": "n1", "c": "n1"}
    assert decided(until(world, "3m", "b")) == {"c": "n1"}
    assert decided(until(world, "4m", "c")) == {"d": "n1"}


def test_the_first_takes_back_what_the_second_was_lent() -> None:
    """Two nodes of 2 devices: a (2 tasks of 1), b (3 tasks of 1) and c (2 tasks of 1) arrive; b does not fit beside a
    and lets c pass. When a has ended, b is to have 3 of the 4 devices, and c yields: it came later.
    """
    world = World("tiresias").nodes(2, cpu=8, gpus=2)
    arrive(world, a={"gpu": 1, "workers": 2}, b={"gpu": 1, "workers": 3}, c={"gpu": 1, "workers": 2})
    assert sorted(decided(world)) == ["a", "c"]
    decided(until(world, "1m", "a"))
    assert yielding(world) == ["c"]
    assert world.codes("b") == ["PREEMPTING"]
    assert sorted(decided(world)) == ["b"]


def test_an_elastic_unit_starts_with_what_is_left() -> None:
    """Two nodes of 4 devices: `e` may have 1 to 8 tasks, `f` needs 2. Both have their least first."""
    world = World("tiresias").nodes(2, cpu=16, gpus=4)
    arrive(world, e={"gpu": 1, "workers": "1..8"}, f={"gpu": 2}).round()
    assert len(world.where("e")) == 6
    assert len(world.where("f")) == 1


def test_work_without_devices_is_placed_beside() -> None:
    world = World("tiresias").nodes(1, cpu=2, gpus=1)
    assert decided(arrive(world, a={"gpu": 1}, b={}, c={}, d={})) == {"a": "n1", "b": "n1"}
    assert world.codes("c") == ["CPU_BUSY"]


def test_who_holds_devices_of_two_models_takes_none_from_others() -> None:
    """Nodes of 2 A100 and of 2 T4: p and q have one each, a (2 tasks of 1) the others. When p has ended, b has its
    device, and keeps it: what a holds is one of each, and not two of those of which most is left.
    """
    world = World("tiresias")
    for name, model in (("n1", "A100"), ("n2", "T4")):
        made = node(name, cpu=8, gpus=2)
        devices = tuple(msgspec.structs.replace(device, model=model) for device in made.devices)
        world.join(msgspec.structs.replace(made, devices=devices))
    arrive(world, p={"gpu": 1}, q={"gpu": 1})
    decided(world)
    decided(arrive(world, a={"gpu": 1, "workers": 2}))
    assert sorted(world.where("a")) == ["n1", "n2"]
    decided(arrive(until(world, "1m", "p"), b={"gpu": 1}))
    assert decided(until(world, "2m")).keys() == {"q", "a", "b"}
    assert yielding(world) == []
