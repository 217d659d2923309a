"""What training asks for by its phase: it gives room back when something waits for it, and is given room again."""

from typing import Any

import msgspec
import pytest

from poise.errors import PoiseError
from poise.kernel.ledger import Ledger
from poise.model.events import Preempted
from poise.model.jobs import InPhase
from poise.model.messages import Attempt, Launch, Report, Told
from poise.model.spec import AUTO_PHASES, compile_spec
from poise.model.training import Phase, Saved, Training
from poise.testing import World, replay
from poise.units import SECOND

PHASES = {"convergence": {"cpu": 4, "device_memory": "60%"}, "fine-tuning": {"cpu": "2500m", "device_memory": 0.3}}


def training(*, nodes: int = 1, **fields: Any) -> World:
    asked = {"phases": PHASES, "cpu": 8} | fields
    return World().nodes(nodes, cpu=8, gpus=1).job("train", **asked).round().start("train")


def tell(world: World, phase: Phase, *, seconds: int = 0) -> World:
    """It says so every five seconds for so long. All of it takes an hour, and it has just saved itself."""
    for _ in range(0, seconds + 1, 5):
        unit = world.unit("train")
        said = Training(
            step=world.now // SECOND,
            phase=phase,
            progress=world.now // 3600 // 1000,
            safe=world.now // 3600 // 1000,
            checkpoint=Saved(step=world.now // SECOND, every=60 * SECOND),
        )
        told = Told(attempt=Attempt("j1.main", unit.epoch), training=said)
        world.hear("n1", Report(serial=50, told=(told,)))
        world.after("5s").tick()
    return world


def orders(world: World) -> list[Preempted]:
    return [event for event in world.log if isinstance(event, Preempted)]


def launch(world: World) -> Launch:
    return world.controller.attempts.launch(world.unit("train"), 0)


def test_it_gives_room_back_when_something_waits_that_has_room_with_it() -> None:
    world = tell(training(), "convergence", seconds=120).job("other", cpu=3)
    tell(world, "convergence", seconds=120).round()
    [order] = orders(world)
    assert (order.unit, order.cause, order.to) == ("j1.main", "shrink", "j2.main")
    assert order.why.rank == "in its convergence phase it asks for 4 CPU"
    assert world.status("other") in ("running", "placed")
    assert (world.unit("train").shape.cpu, world.unit("train").epoch) == (4000, 2)
    told = launch(world).env
    assert {name: told[name] for name in ("POISE_PHASE", "POISE_THREADS", "OMP_NUM_THREADS")} == {
        "POISE_PHASE": "convergence",
        "POISE_THREADS": "4",
        "OMP_NUM_THREADS": "4",
    }
    assert told["POISE_DEVICE_MEMORY"] == "0.6"


def test_it_keeps_its_room_while_nothing_has_use_for_it() -> None:
    world = tell(training(), "fine-tuning", seconds=300).round()
    assert orders(world) == []
    tell(world.job("large", cpu=6), "fine-tuning", seconds=300).round()
    assert orders(world) == [], "that would not fit even then"


def test_it_is_given_room_again_when_there_is_some_and_nothing_waits() -> None:
    world = tell(training(), "convergence", seconds=120).job("other", cpu=3)
    tell(world, "convergence", seconds=120).round().start("train", "other")
    tell(world, "initial", seconds=300).round()
    assert len(orders(world)) == 1, "the other has the room"
    world.finish("other", run="5m").round()
    tell(world, "initial", seconds=300).round()
    assert [order.cause for order in orders(world)] == ["shrink", "grow"]
    assert world.unit("train").shape.cpu == 8000


def test_what_saves_nothing_and_what_has_just_begun_is_left_alone() -> None:
    world = training(checkpoint="1m")
    tell(world.job("other", cpu=3), "convergence", seconds=15).round()
    assert orders(world) == [], "it has just begun"
    assert orders(tell(training(preemptible=False).job("other", cpu=3), "convergence", seconds=300).round()) == []


def test_what_is_placed_anew_is_placed_in_the_shape_of_its_phase() -> None:
    world = tell(training(retry={"limit": 3, "when": ["killed"]}), "fine-tuning", seconds=10)
    assert world.unit("train").shape.cpu == 8000, "while it runs it holds what it was given"
    world.finish("train", outcome="killed", run="10s").after("5s").round()
    assert world.unit("train").shape.cpu == 2500
    for ledger in (replay(world.log), Ledger.decode(world.ledger.encode())):
        ledger.check()


def test_of_a_share_of_a_device_less_memory_is_reserved() -> None:
    world = training(cpu=1, phases={"convergence": {"device_memory": "60%"}}, gpu=1, gpu_share=0.5, gpu_memory="40GiB")
    tell(
        world.finish("train", outcome="killed", run="1s").after("5s").round().start("train"), "convergence", seconds=10
    )
    world.finish("train", outcome="killed", run="10s").after("5s").round()
    assert world.unit("train").shape.gpu_memory == 24 * 2**30
    assert launch(world).env["POISE_DEVICE_MEMORY"] == "1", "of what was reserved it may use all"


def test_a_file_says_so_or_leaves_it_to_poise() -> None:
    def phases(asked: Any, cpu: int = 16) -> tuple[InPhase, ...]:
        document = {"run": "true", "resources": {"cpu": cpu}, "phases": asked}
        return compile_spec(document, wall=0.0).units[0].phases

    assert phases("auto") == AUTO_PHASES
    assert phases({"fine-tuning": {"cpu": 4}}) == (InPhase(phase="fine-tuning", cpu=4000),)
    assert phases({}) == ()
    refused: list[Any] = [{"later": {}}, {"initial": {"cpu": 17}}, {"initial": {"device_memory": 0}}, "always"]
    for wrong in refused:
        with pytest.raises(PoiseError):
            phases(wrong)


def test_by_itself_it_asks_for_less_and_less() -> None:
    """16, 8 and 4 CPUs, 90, 60 and 30 % of the memory of its devices."""
    unit = compile_spec({"run": "true", "resources": {"cpu": 32, "gpu": 1}, "phases": "auto"}, wall=0.0).units[0]
    names: tuple[Phase, ...] = ("", "initial", "convergence", "fine-tuning")
    assert [unit.shape_in(phase, 0).cpu for phase in names] == [16000, 16000, 8000, 4000]
    asks = [unit.in_phase(phase) for phase in names]
    assert [one.memory for one in asks if one is not None] == [900, 900, 600, 300]
    assert msgspec.structs.replace(unit, phases=()).shape_in("fine-tuning", 0).cpu == 32000
