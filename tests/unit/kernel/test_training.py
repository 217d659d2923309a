"""What training says of itself: kept where it changed, shown as it was said last, and used when it is decided."""

from typing import Any

import msgspec
import pytest

from poise.kernel.ledger import Ledger
from poise.kernel.visible import Sight
from poise.model.events import TrainingTold
from poise.model.jobs import Ending
from poise.model.messages import Attempt, Report, Told
from poise.model.tenants import Bearer, Role
from poise.model.training import Saved, Training, decode
from poise.policy.predict import Speeds
from poise.policy.running import lost_work
from poise.testing import World, replay
from poise.units import SECOND

TRAINING = Training(step=100, samples=6400, batch=32, accumulation=2, effective=64, phase="initial", goodput=5_000_000)


def said(world: World, *, epoch: int = 1, task: str = "main", **fields: Any) -> World:
    training = msgspec.structs.replace(TRAINING, **fields)
    told = Told(attempt=Attempt(f"j1.{task}", epoch), training=training)
    return world.hear("n1", Report(serial=50, told=(told,)))


def running() -> World:
    return World().nodes(2, cpu=8).job("train", cpu=2).round().start("train").after("10s")


def heard(world: World) -> list[Training]:
    return [event.training for event in world.log if isinstance(event, TrainingTold)]


def test_it_is_known_and_outlives_a_restart() -> None:
    world = said(running())
    assert world.unit("train").training == TRAINING
    for ledger in (replay(world.log), Ledger.decode(world.ledger.encode())):
        unit = ledger.jobs.unit("j1.main")
        assert unit is not None
        assert unit.training == TRAINING
        ledger.check()


def test_what_has_hardly_changed_is_shown_and_not_kept() -> None:
    world = said(said(running()).after("6s"), step=105, goodput=5_500_000)
    assert len(heard(world)) == 1
    shown = world.controller.tellings.heard(world.unit("train"))
    assert shown is not None
    assert (shown.at, shown.said.step) == (world.now, 105)


@pytest.mark.parametrize(
    "changed",
    [{"phase": "convergence"}, {"goodput": 7_000_000}, {"batch": 16}, {"checkpoint": Saved(step=90)}, {"step": 50}],
)
def test_what_has_changed_noticeably_is_kept_every_few_seconds_at_most(changed: dict[str, Any]) -> None:
    world = said(running())
    assert len(heard(said(world.after("1s"), **changed))) == 1
    assert len(heard(said(world.after("5s"), **changed))) == 2


def test_another_phase_wakes_a_round() -> None:
    world = said(running()).round().after("6s")
    assert not world.controller.cadence.dirty
    assert said(world, phase="fine-tuning").controller.cadence.dirty


def test_the_last_word_of_an_attempt_is_kept() -> None:
    world = said(said(running()).after("1s"), step=109).finish("train")
    assert [one.step for one in heard(world)] == [100, 109]
    assert world.unit("train").training == msgspec.structs.replace(TRAINING, step=109)


def test_an_earlier_attempt_is_not_heard() -> None:
    assert heard(said(running(), epoch=2)) == []


def test_of_a_gang_the_first_member_speaks() -> None:
    world = World().nodes(1, cpu=8).job("train", workers=2).round().start("train.main[0]", "train.main[1]")
    assert heard(said(world, task="main[1]")) == []
    assert len(heard(said(world, task="main[0]"))) == 1


def test_work_that_is_lost_with_its_node_goes_on_from_what_was_in_a_checkpoint() -> None:
    world = said(running(), progress=400_000, safe=300_000)
    world = said(world.after("1s"), progress=420_000, safe=350_000)
    world.lose("n1").after("15s").round()
    assert world.unit("train").epoch == 2
    assert world.unit("train").progress == 350_000


def test_what_an_ending_says_goes_before_what_was_said_in_time() -> None:
    world = said(running(), progress=400_000, safe=300_000)
    world.end("n1", Attempt("j1.main", 1), Ending(outcome="killed", run=10 * SECOND, progress=390_000))
    assert world.unit("train").progress == 390_000


def test_its_pace_foretells_its_end() -> None:
    """A quarter of the work took 10 s: 40 s in all, of which 30 are left wherever it goes on."""
    world = said(running(), progress=250_000, safe=250_000)
    [resident] = world.controller.snapshot(world.now).fleet.residents[0]
    assert resident.foreseen == 40 * SECOND
    view = world.controller.snapshot(world.now)
    assert Speeds(view.fleet.models, view.profiles, view.throughputs).of_attempt(resident).mean == 40 * SECOND
    world.end("n1", Attempt("j1.main", 1), Ending(outcome="killed", run=10 * SECOND))
    assert world.ledger.shown.candidate(world.unit("train")).left == 30 * SECOND
    assert world.unit("train").expected == 30 * SECOND


def test_yielding_costs_what_was_done_since_its_newest_checkpoint() -> None:
    world = said(running(), checkpoint=Saved(step=90, every=60 * SECOND)).after("7s")
    [resident] = world.controller.snapshot(world.now).fleet.residents[0]
    assert (resident.checkpoint, lost_work(resident, world.now)) == (60 * SECOND, 7 * SECOND)
    said(world, checkpoint=Saved(step=190, every=60 * SECOND)).after("2s")
    [resident] = world.controller.snapshot(world.now).fleet.residents[0]
    assert lost_work(resident, world.now) == 2 * SECOND


def test_other_tenants_do_not_see_it() -> None:
    world = said(running())
    [event] = [event for event in world.log if isinstance(event, TrainingTold)]
    assert Sight(world.ledger, Bearer("ann", Role.SUBMITTER)).event(event) is None
    assert Sight(world.ledger, Bearer("default", Role.SUBMITTER)).event(event) == event


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"step": -1}',
        b'{"step": 1e30}',
        b'{"step": 99999999999999999999}',
        b'{"step": 1, "loss": NaN}',
        b'{"step": 1, "loss": 1e999}',
        b'{"step": 1, "phase": "final"}',
        b'{"step": 1, "progress": 1000001}',
        b'{"step": 1, "world": 0}',
        b'{"step": 1, "restored": "\\u001b[2J"}',
        b'{"step": 1, "precision": "bf16\\n"}',
        b'{"step": 1, "advice": "' + b"a" * 600 + b'"}',
        b'{"step": 1, "more": ' + b"[" * 60_000,
        b'{"step": 1}' + b" " * 70_000,
    ],
)
def test_what_is_no_training_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


def test_what_is_more_than_is_known_here_is_passed_over() -> None:
    assert decode(b'{"step": 7, "of a later version": [1]}') == Training(step=7)
