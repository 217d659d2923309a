"""Where a shape fits, and every reason by name where it does not."""

import hypothesis.strategies as st
from hypothesis import given

from poise.model.fleet import Fleet
from poise.model.resources import Shape
from poise.policy.feasible import MOST_TASKS, ability, capacity_when_empty, never, refusals, shortfall
from poise.testing import World, node
from poise.units import parse_bytes

GIB = 2**30


def test_devices_fit_by_their_memory() -> None:
    fleet = World().join(node(gpus=2, gpu_memory=("16GiB", "80GiB"))).ledger.fleet()
    assert ability(fleet, Shape(gpus=1, gpu_memory=parse_bytes("40GiB"))).models == [False, False, True, False]


def test_never_names_everything_that_is_too_small() -> None:
    reasons = never(node(cpu=1, memory="1GiB"), Shape(cpu=2000, memory=2 * GIB, gpus=1))
    assert [reason.code for reason in reasons] == ["CPU_TOO_SMALL", "MEMORY_TOO_SMALL", "GPU_TOO_FEW"]
    assert {reason.fixable for reason in reasons} == {"never"}


def test_room_is_bound_by_the_scarcest() -> None:
    fleet = Fleet((node(cpu=8, memory="8GiB", gpus=3),))
    assert capacity_when_empty(fleet, Shape(cpu=1000)) == 8
    assert capacity_when_empty(fleet, Shape(cpu=1000, memory=3 * GIB)) == 2
    assert capacity_when_empty(fleet, Shape(cpu=1000, gpus=2)) == 1
    assert capacity_when_empty(fleet, Shape(cpu=9000)) == 0
    assert capacity_when_empty(fleet, Shape(cpu=0)) == MOST_TASKS


@given(
    st.builds(Shape, st.integers(0, 4000), st.integers(0, 4 * GIB), st.integers(0, 3)),
    st.integers(0, 4),
    st.integers(0, 4 * GIB),
    st.integers(0, 3),
)
def test_what_is_refused_for_ever_falls_short_and_what_is_not_fits(
    shape: Shape, cpu: int, memory: int, gpus: int
) -> None:
    offered = node("n1", cpu=cpu, memory=memory, gpus=gpus)
    fleet = World().join(offered).ledger.snapshot(0).fleet
    refused = bool(never(offered, shape))
    assert refused == (shortfall(offered, shape) > 0) == (capacity_when_empty(fleet, shape) == 0)
    assert refused == bool(refusals(fleet, 0, shape))  # an empty node refuses only what it never could hold
