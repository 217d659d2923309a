"""Idle sessions: they are suspended, their resources go to others, and they resume in their place."""

from random import Random
from typing import Any

import pytest

from poise.kernel.accounts import Accounts
from poise.kernel.ledger import Ledger
from poise.kernel.messages import ResumeJob
from poise.kernel.node import Changed, NodeMachine, Pause, Start, Used
from poise.model.messages import Attempt, Desired, Idle, Launch, Report, Running
from poise.model.resources import Shape
from poise.model.tenants import Bearer, Role
from poise.testing import World, node
from poise.units import HOUR, MINUTE, SECOND

GIB = 2**30


def session(world: World, name: str = "desk", **fields: Any) -> World:
    fields = {"cpu": 1, "memory": "1GiB", "idle": "30m"} | fields
    return world.job(name, **fields).round().start(name).after("1h")


def idle(world: World, name: str = "desk", *, lasts: int = 31 * MINUTE, due: bool = True) -> World:
    unit = world.unit(name)
    attempt = Attempt(f"{unit.job}.main", unit.epoch)
    return world.hear(world.where(name)[0], Report(serial=7, idle=(Idle(attempt=attempt, lasts=lasts, due=due),)))


def resumed(world: World, name: str = "desk", bearer: Bearer | None = None) -> World:
    return world.ask(ResumeJob(world.request(), name, bearer or Bearer("default", Role.SUBMITTER)))


def test_an_idle_session_gives_its_devices_and_cores_to_others_and_keeps_its_memory() -> None:
    world = session(World().nodes(1, cpu=1, gpus=1, memory="2GiB"), gpu=1)
    world.job("next", cpu=1, gpu=1, memory="1GiB").round()
    assert world.status("next") == "pending"
    idle(world).round()
    assert (world.status("desk"), world.status("next")) == ("running", "placed")
    assert world.codes("desk") == ["SUSPENDED"]
    state = world.ledger.nodes["n1"]
    assert (state.used_cpu, state.used_memory, state.devices) == (1000, 2 * GIB, {"0": world.unit("next").id})
    assert world.unit("desk").suspended is not None


def test_it_resumes_at_once_if_its_place_is_free_and_otherwise_as_soon_as_it_is() -> None:
    world = session(World().nodes(1, cpu=2, gpus=1, memory="4GiB"), gpu=1)
    resumed(idle(world))
    assert (world.unit("desk").suspended, world.unit("desk").tasks[0].devices) == (None, (0,))
    idle(world).job("next", cpu=1, gpu=1).job("later", cpu=1, gpu=1).round().start("next")
    resumed(world).after("1s")
    assert world.codes("desk") == ["SUSPENDED"]
    world.finish("next").after("1s")
    assert world.unit("desk").suspended is None, "it comes before others that wait"
    assert world.status("later") == "pending"


def test_parts_of_a_device_and_quotas_are_released_and_taken_again() -> None:
    world = World().nodes(1, cpu=4, gpus=1, memory="8GiB").quota("default", cpu=1)
    session(world, gpu=1, gpu_share=0.5, gpu_memory="20GiB")
    assert world.ledger.nodes["n1"].shares["0"][0].share == 500
    idle(world)
    assert world.ledger.nodes["n1"].shares == {}
    world.job("next", cpu=1).round().start("next")
    assert world.status("next") == "running", "the quota has room"
    resumed(world).after("1s")
    assert world.unit("desk").suspended is not None, "and none for both"
    world.finish("next").after("1s")
    assert world.ledger.nodes["n1"].shares["0"][0].memory == 20 * GIB


def test_only_what_is_due_asks_for_it_and_runs_is_suspended() -> None:
    world = session(World().nodes(1, cpu=4, memory="8GiB"))
    idle(world, due=False, lasts=10 * MINUTE)
    assert world.unit("desk").suspended is None
    assert world.now - world.controller.tellings.idle_since(world.unit("desk")) == 10 * MINUTE
    idle(world, lasts=0, due=False)
    assert world.controller.tellings.idle_since(world.unit("desk")) == 0
    session(world, "ends", idle={"after": "30m", "then": "end"})
    idle(world, "ends")
    assert world.unit("ends").suspended is None, "its node ends it"


def test_a_suspended_session_can_be_cancelled_and_can_end_and_its_node_can_be_lost() -> None:
    for way in ("cancel", "finish", "lose"):
        world = session(World().nodes(2, cpu=1, gpus=1, memory="2GiB"), gpu=1, retry={"limit": 1, "when": ["lost"]})
        idle(world)
        if way == "cancel":
            world.cancel("desk").finish("desk", outcome="stopped")
        elif way == "finish":
            world.finish("desk")
        else:
            world.lose(world.where("desk")[0]).after("1m").round()
            assert world.status("desk") in ("placed", "running")
            assert world.unit("desk").tasks[0].devices == (0,)
        assert world.unit("desk").suspended is None
        used = sum(state.used_cpu for state in world.ledger.nodes.values())
        assert used == (1000 if way == "lose" else 0)


def test_a_node_that_connects_again_is_told_what_is_suspended() -> None:
    world = idle(session(World().nodes(1, cpu=1, memory="2GiB")))
    told: list[Desired] = []
    deliver = world._deliver

    def seen(send: Any) -> Any:
        if isinstance(send.message, Desired):
            told.append(send.message)
        return deliver(send)

    world._deliver = seen  # type: ignore[method-assign]
    world.disconnect("n1").connect("n1")
    assert [attempt.task for attempt in told[-1].suspends] == [f"{world.unit('desk').job}.main"]
    again = Ledger.decode(world.ledger.encode())
    again.check()
    assert again.jobs.units[world.unit("desk").id].suspended == world.unit("desk").suspended


def test_time_suspended_is_not_charged() -> None:
    world = World().nodes(1, cpu=1, memory="2GiB")
    start = world.ledger.now
    session(world)  # one hour
    idle(world).after("2h")
    resumed(world).after("30m").finish("desk", run="3h")
    accounts = Accounts(Ledger())
    for event in world.log:
        accounts.add(event)
    hours = sum(row.core_hours for row in accounts.usage(start, world.now, by=()))
    assert 1.45 < hours < 1.6


@pytest.mark.parametrize("seed", range(6))
def test_all_adds_up_whatever_happens_to_suspended_sessions(seed: int) -> None:
    """Sessions and other jobs come, go idle, resume, end, are cancelled, preempted, lost; the world checks itself."""
    random = Random(seed)  # noqa: S311 — a test
    world = World(random.choice(["poise", "fifo", "srtf", "goodput", "max-min"])).nodes(2, cpu=3, gpus=2)
    for number in range(60):
        live = [job for job in world.ledger.jobs.values() if not job.ended and random.random() < 0.6]
        active = [
            job for job in live if job.units[0].status == "active" and job.units[0].tasks[0].status != "recovering"
        ]
        match random.choices(range(8), (20, 15, 15, 20, 10, 6, 4, 10))[0]:
            case 0:
                part: dict[str, Any] = random.choice(
                    [{}, {"gpu": 1}, {"gpu": 1, "gpu_share": 0.5, "gpu_memory": "10GiB"}]
                )
                common = {"idle": random.choice(["30m", 0]), "priority": random.choice(["urgent", "low"])}
                world.job(f"a{number}", cpu=random.choice([1, 2]), memory="1GiB", **part, **common)
            case 1:
                world.round()
            case 2:
                world.start(*(job.name for job in active if job.units[0].tasks[0].status == "queued"))
            case 3:
                for job in active:
                    if job.units[0].tasks[0].node in world.connected:
                        idle(world, job.name)
            case 4:
                for job in live:
                    resumed(world, job.id)
            case 5:
                for job in active[:1]:
                    world.finish(job.name, outcome=random.choice(["done", "failed"]))
            case 6:
                for job in live[:1]:
                    world.cancel(job.id)
            case 7:
                name = random.choice(["n1", "n2"])
                random.choice([world.disconnect, world.lose])(name).after("1m")
                if random.random() < 0.5:
                    world.restart(from_checkpoint=True)
                for name in {"n1", "n2"} - world.connected:
                    world.connect(name)


# --- on its node -----------------------------------------------------------------------------------------------------

DESK = Attempt("j1.main", 1)
SHAPE = Shape(cpu=1000, memory=GIB, gpus=1)


def machine() -> NodeMachine:
    made = NodeMachine(node(cpu=1, gpus=1, memory="4GiB"), [])
    launch = Launch(attempt=DESK, argv=("sh",), shape=SHAPE, slots=1, devices=(0,), idle=30 * MINUTE)
    made.handle(Desired(launches=(launch,)), SECOND)
    made.handle(Changed((Running(attempt=DESK, pid=7),)), SECOND)
    return made


def test_on_its_node_others_start_in_the_room_of_a_suspended_session() -> None:
    made = machine()
    other = Launch(attempt=Attempt("j2.main", 1), argv=("sh",), shape=SHAPE, slots=1, devices=(0,))
    assert made.handle(Desired(suspends=(DESK,)), 3 * SECOND) == [Pause(DESK, on=True)]
    assert [type(effect) for effect in made.handle(Desired(launches=(other,)), 3 * SECOND)] == [Start]
    assert made.sessions() == []
    assert made.handle(Used((Idle(attempt=DESK, lasts=1),)), 4 * SECOND) == []


def test_on_its_node_a_session_resumes_and_leaves_the_room_as_it_found_it() -> None:
    made = machine()
    made.handle(Desired(suspends=(DESK,)), 2 * SECOND)
    assert made.handle(Desired(resumes=(DESK,)), 3 * SECOND)[0] == Pause(DESK, on=False)
    other = Launch(attempt=Attempt("j2.main", 1), argv=("sh",), shape=SHAPE, slots=1, devices=(0,))
    assert not any(isinstance(effect, Start) for effect in made.handle(Desired(launches=(other,)), 4 * SECOND))
    assert [launch.attempt for launch in made.sessions()] == [DESK]


def test_an_agent_that_was_restarted_continues_what_the_control_plane_has_resumed() -> None:
    made = NodeMachine(node(cpu=1, gpus=1, memory="4GiB"), [])
    launch = Launch(attempt=DESK, argv=("sh",), shape=SHAPE, slots=1, devices=(0,), idle=HOUR)
    made.adopt([(0, launch, (), Running(attempt=DESK, pid=7))], [])
    assert made.handle(Desired(complete=True, keep=(DESK,)), SECOND)[0] == Pause(DESK, on=False)
    assert made.handle(Desired(complete=True, keep=(DESK,), suspends=(DESK,)), SECOND)[0] == Pause(DESK, on=True)
