"""`poise cancel` of several jobs, of a tenant's and of all; and other commands that end several things."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from poise.cli.main import main
from poise.client import Client
from poise.client.link import Link
from poise.config import Home
from poise.decoding import json_decoder
from poise.errors import ErrorRecord, from_record
from poise.model.tenants import Role
from poise.testing import World
from unit.control.desk import Desk

Cancels = Callable[..., str]


def linked(monkeypatch: pytest.MonkeyPatch, command: str, desk: Desk, who: str = "home") -> None:
    """Let a command's module use the control plane of a desk."""

    def call(_: Link, method: str, path: str, answer: Any, body: Any = None, timeout: float = 0) -> Any:
        told = desk.call(method, path, body, who=who)
        if told.status >= 400:
            raise from_record(msgspec.convert(told.value["error"], ErrorRecord), told.status)
        return json_decoder(answer).decode(told.body)

    monkeypatch.setattr(Link, "call", call)
    monkeypatch.setattr(f"{command}.connected", lambda home: Client(Home(desk.home.root)))


@pytest.fixture
def world() -> World:
    """Of `default` j1 (done), j2 and j3; of `ann` j4, of `bob` j5 and j6."""
    world = World().nodes(1, cpu=2).job("a").round().start("a").finish("a").job("b").job("c")
    for tenant in ("ann", "bob", "bob"):
        world.submit({"run": "true"}, tenant=tenant)
    return world


@pytest.fixture
def cancels(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cancels:
    """Cancels as somebody; gives what is said, or printed as JSON, and with `code` what it exits with."""
    desk = Desk(world)
    desk.token("operator", "ann", Role.OPERATOR)
    desk.token("submitter", "bob", Role.SUBMITTER)

    def cancel(*words: str, who: str = "home", code: int = 0) -> str:
        linked(monkeypatch, "poise.cli.jobs", desk, who)
        assert main(["cancel", *words]) == code
        told = capsys.readouterr()
        return told.out or told.err

    return cancel


def statuses(world: World) -> list[str]:
    return [world.status(f"j{number}") for number in range(1, 7)]


def test_all_are_those_of_ones_own_tenant(world: World, cancels: Cancels) -> None:
    assert cancels("--all") == "cancelling 2 jobs of your tenant: j2, j3\n"
    assert cancels("--all", who="operator") == "cancelling 1 job of your tenant: j4\n"
    assert cancels("--all") == "nothing to cancel: no unfinished job matches\n"
    assert statuses(world) == ["done", "cancelled", "cancelled", "cancelled", "pending", "pending"]


def test_filters_choose_among_those_of_ones_own_tenant(world: World, cancels: Cancels) -> None:
    assert cancels("--name", "c", "--status", "pending") == "cancelling 1 job of your tenant: j3\n"
    assert json.loads(cancels("--name", "j*", "--user", "nobody", "--json")) == {"count": 0, "cancelled": []}
    assert json.loads(cancels("--name", "j*", "--json")) == {"count": 1, "cancelled": ["j2"]}
    assert statuses(world) == ["done", "cancelled", "cancelled", *["pending"] * 3]


def test_a_pattern_in_place_of_a_name_is_told_the_flag(world: World, cancels: Cancels) -> None:
    assert "`poise cancel --name 'b*'`" in cancels("b*", code=1)
    assert "one of them" in cancels("--all", "j2", code=1) and "one of them" in cancels(code=1)
    assert world.status("b") == "pending"


def test_no_name_is_suggested_that_means_nothing_to_who_asks(world: World, cancels: Cancels) -> None:
    world.job("hist", tenant="ann")
    assert "`hist`" not in cancels("histt", code=1)


def test_those_of_all_tenants_are_cancelled_by_name_of_the_tenants(world: World, cancels: Cancels) -> None:
    told = cancels("--all-tenants", who="operator")
    assert told == "cancelling 5 jobs of all tenants: ann (1), bob (2), default (2)\n"
    assert "pending" not in statuses(world)
    assert cancels("--all-tenants", who="operator") == "nothing to cancel: no unfinished job matches\n"
    assert json.loads(cancels("--all-tenants", "--json")) == {"count": 0, "tenants": {}}


def test_who_is_no_operator_cancels_nothing_of_all_tenants(world: World, cancels: Cancels) -> None:
    assert "E133" in cancels("--all-tenants", who="submitter", code=1)
    assert statuses(world) == ["done", *["pending"] * 5]


def test_of_several_those_that_are_over_are_passed_over(world: World, cancels: Cancels) -> None:
    assert cancels("j1", "j2", "c") == "cancelling j2, j3\nalready over: j1\n"
    assert json.loads(cancels("j1", "j4", "--json")) == {"cancelled": ["j4"], "over": ["j1"]}
    assert cancels("j1", "a.main") == "already over: j1, a.main\n"
    assert "is over already" in cancels("j1", code=1)


def test_none_is_cancelled_where_one_is_not_there(world: World, cancels: Cancels) -> None:
    assert "E120" in cancels("j2", "j77", code=1)
    assert world.status("j2") == "pending"


@pytest.mark.parametrize(
    ("command", "words", "done"),
    [
        ("reserve", "reserve cancel night nosuch later", "cancelled: night\n"),
        ("schedules", "schedules hold beat beat nosuch", "on hold: beat\n"),
        ("schedules", "schedules rm beat nosuch", "removed: beat\n"),
        ("schedules", "schedules rm nosuch beat", ""),
    ],
)
def test_names_before_one_that_fails_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, words: str, done: str
) -> None:
    desk = Desk(World().nodes(2))
    night = {"name": "night", "tenant": "a", "nodes": 1, "from": "+1h", "for": "2h"}
    document = {"kind": "reservations", "reservations": [night, night | {"name": "later", "from": "+9h"}]}
    assert desk.call("POST", "/v1/reservations", {"document": document}).status == 202
    desk.world.job("beat", every="1h")
    linked(monkeypatch, f"poise.cli.{command}", desk)
    assert main(words.split()) == 1
    assert capsys.readouterr().err.startswith(f"{done}error[E120]: there is no ")
    left = [one["name"] for one in desk.call("GET", "/v1/reservations").value]
    assert left == (["later"] if command == "reserve" else ["night", "later"])


@pytest.mark.parametrize("command", ["hold", "release"])
def test_a_part_of_a_job_is_not_taken_for_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    desk = Desk(World().nodes(1).job("a", hold=True).job("j", hold=command == "release"))
    linked(monkeypatch, "poise.cli.change", desk)
    assert main([command, "a", "j.main"]) == 1
    assert "a job is held as a whole" in capsys.readouterr().err
    assert desk.world.state("j").hold is (command == "release")
