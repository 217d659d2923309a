"""Secrets that cannot be opened: the job is held until somebody has seen to the keys, and loses no try."""

from typing import Any

from poise.kernel.audit import audit_report
from poise.kernel.messages import Locked
from poise.kernel.visible import Sight
from poise.model.calls import Call, Calling, Function, Resume, Value
from poise.model.events import JobHeld, JobSubmitted
from poise.model.secrets import HIDDEN, Sealed, sealed
from poise.model.tenants import HOME, Bearer, Role
from poise.testing import World, replay

WHY = "the secret `A` is sealed with key 12345678, which `secrets.key` does not hold"


def with_secrets(**fields: Any) -> Any:
    return sealed({"run": "true", "secrets": {"A": "value"}} | fields, lambda name, value: Sealed("12345678.text"))


def locked(world: World, *tasks: str) -> World:
    """The launches of these tasks stay where they are: nothing of them reaches a node."""
    for name in tasks:
        attempt, at = world._attempt(name)
        world.held[at].pop(attempt, None)
        world.say(Locked(attempt, WHY))
    return world


def checked(world: World) -> World:
    world.ledger.check()
    assert replay(world.log).encode() == world.ledger.encode()
    return world


def test_a_launch_has_the_sealed_texts_of_its_job_and_of_its_task() -> None:
    world = World().nodes(1).submit(with_secrets(name="a")).round()
    [launch] = world.held["n1"].values()
    assert launch.secrets == {"A": "12345678.text"} and "A" not in launch.env
    tasks = {"a": {"run": "true", "secrets": {"B": "value"}}}
    world.submit(with_secrets(name="g", kind="graph", run="", tasks=tasks)).round()
    *_, launch = world.held["n1"].values()
    assert launch.secrets == {"A": "12345678.text", "B": "12345678.text"}


def test_what_cannot_be_opened_is_held_with_the_reason_and_loses_no_try() -> None:
    world = checked(locked(World().nodes(1).submit(with_secrets(name="a")).round(), "a")).after("1m").round()
    assert (world.status("a"), world.codes("a"), world.where("a")) == ("waiting", ["LOCKED"], [])
    [told] = [reason.sentence() for reason in world.reasons("a")]
    assert told == f"is on hold: {WHY}; once that is repaired: `poise release j1`"
    [event] = [event for event in world.log if isinstance(event, JobHeld)]
    assert audit_report(world.ledger, 1, event).what == f"held j1: {WHY}"
    assert world.unit("a").tries == 0
    world = checked(world.hold("a", False).round())
    assert (world.status("a"), world.state("a").held_for) == ("placed", "")


def test_it_stays_held_over_a_restart_and_is_held_again_if_it_is_released_too_early() -> None:
    world = locked(World().nodes(1).submit(with_secrets(name="a")).round(), "a").restart().round()
    assert world.codes("a") == ["LOCKED"]
    world = locked(world.hold("a", False).round(), "a").round()
    assert (world.codes("a"), world.unit("a").tries) == (["LOCKED"], 0)
    assert checked(world).hold("a", False).round().status("a") == "placed"


def test_no_member_of_a_gang_runs_without_its_secrets() -> None:
    world = World().nodes(2, cpu=1).submit(with_secrets(name="g", workers=2)).round()
    assert world.where("g") == ["n1", "n2"]
    world = checked(locked(world, "g.main[0]", "g.main[1]")).round()
    assert (world.where("g"), world.codes("g")) == ([], ["LOCKED"])
    assert world.hold("g", False).round().where("g") == ["n1", "n2"]


def test_what_runs_goes_on_and_only_its_retry_waits() -> None:
    document = with_secrets(name="p", parts=2, retry={"limit": 1})
    world = World().nodes(2, cpu=1).submit(document).round().start("p.main[0]")
    world = locked(world, "p.main[1]").finish("p.main[0]").round()
    assert [world.status("p.main[0]"), world.status("p.main[1]")] == ["done", "waiting"]


def test_an_attempt_that_is_over_changes_nothing() -> None:
    world = World().nodes(1).submit(with_secrets(name="a")).round().start("a")
    attempt, _ = world._attempt("a")
    world.finish("a").say(Locked(attempt, WHY))
    assert (world.status("a"), checked(world).state("a").hold) == ("done", False)


def test_another_try_of_a_job_has_its_secrets() -> None:
    world = World().nodes(1).submit(with_secrets(name="a", retry={"limit": 0})).round().start("a")
    world.finish("a", outcome="failed").retry("a").round()
    assert world.state("j2").secrets == {"A": "12345678.text"}


def test_events_show_names_and_nothing_that_was_sealed() -> None:
    tasks = {"a": {"run": "true", "secrets": {"B": "value"}}}
    world = World().submit(with_secrets(name="g", kind="graph", run="", tasks=tasks))
    [event] = [event for event in world.log if isinstance(event, JobSubmitted)]
    for bearer in (HOME, Bearer("default", Role.VIEWER)):
        seen = Sight(world.ledger, bearer).event(event)
        assert (seen.job.secrets, seen.job.units[0].secrets) == ({"A": HIDDEN}, {"B": HIDDEN})


def test_what_serves_calls_is_not_held_and_fails_with_the_reason() -> None:
    again = {"limit": 1, "backoff": "0.1s", "when": ["killed", "failed"]}
    world = World().nodes(1).submit(with_secrets(name="f", parts=1, calls=True, retry=again)).caller("f", Resume("j1"))
    world.caller("f", Calling((Function("f", "m"),), (Call(1, 0, Value("m", b"\x90")),))).round()
    while world.where("f.main[0]"):
        locked(world, "f.main[0]").after("1m")
    told = world.task("f.main[0]")[1].ending
    assert told is not None and (told.outcome, told.note) == ("unstartable", WHY)
    assert (world.state("f").hold, world.status("f")) == (False, "failed")
