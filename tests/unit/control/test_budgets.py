"""Budgets over the API and by commands: set by an admin, listed, exported, measured, and shown as an incident."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from poise.cli.budgets import budgets
from poise.cli.usage import usage
from poise.errors import SpecError
from poise.kernel.incidents import Incidents
from poise.model.tenants import Role
from poise.testing import World, node
from poise.units import SECOND
from unit.control.desk import OWNER, Desk
from unit.control.open_door import entered, open_door

FILE = """\
kind: budgets
budgets:
  - {name: research, tenant: research, amount: $4, at_limit: hold}
  - {name: ann, user: ann, amount: 2h, every: week}
"""
BUDGETS = [{"name": "research", "tenant": "research", "amount": "$0.1"}, {"name": "ann", "user": "ann", "amount": "2h"}]


def test_an_admin_sets_what_tenants_see_and_an_alert_is_an_incident() -> None:
    desk = Desk(World().join(node("n1", cpu=16, gpus=2)))
    desk.token("researcher", "research", Role.SUBMITTER)
    desk.token("boss", "research", Role.ADMIN)
    document = {"document": {"kind": "budgets", "budgets": BUDGETS}}
    assert desk.call("PUT", "/v1/budgets", document, who="researcher").code == "E133"
    zone = {"document": document["document"] | {"time_zone": "Nowhere/Else"}}
    refused = desk.call("PUT", "/v1/budgets", zone)
    assert (refused.status, refused.value["error"]["hint"][:26]) == (422, "`time_zone: Europe/Zurich`")
    assert len(desk.call("PUT", "/v1/budgets", document, who="boss").value) == 2
    before = desk.world.ledger.revision
    assert desk.call("PUT", "/v1/budgets", document).status == 202
    assert desk.world.ledger.revision == before, "the same again changes nothing"
    desk.world.job("a", gpu=2, tenant="research").round().start("a").after("97s")
    (own,) = desk.call("GET", "/v1/budgets", who="researcher").value
    assert (own["name"], round(own["share"], 2), own["reached"]) == ("research", 0.54, 50)
    assert b'poise_budget_spent_ratio{budget="research"} 0.5' in desk.call("GET", "/metrics").body
    assert b"poise_budget" not in desk.call("GET", "/metrics", who="researcher").body
    assert b"set the budgets research, ann" in desk.call("GET", "/v1/audit?after=0&follow=false").body

    incidents = Incidents()
    for revision, event in enumerate(desk.world.log, start=1):
        incidents.take(revision, event)
    incidents.tick(desk.world.now + 30 * SECOND)
    told = [incidents.report(name, lambda at: at / SECOND) for name in incidents.ids()]
    (found,) = [one for one in told if one.cause.kind == "budget"]
    assert found.title == "budget research: budget reached"
    assert found.hint == "compare the amounts: `poise usage --budgets`"


def test_the_commands_set_list_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "budgets.yaml").write_text(FILE)
    (tmp_path / "wrong.yaml").write_text(FILE.replace("$4", "4 euros"))
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("POISE_SOCKET", str(tmp_path / "poise.sock"))
    monkeypatch.setenv("POISE_TOKEN", OWNER)

    def typed(command: Any, *words: str) -> str:
        done = CliRunner().invoke(command, words, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.stdout

    def commands() -> None:
        with pytest.raises(SpecError) as raised:
            typed(budgets, "apply", str(tmp_path / "wrong.yaml"))
        assert raised.value.record.at == f"{tmp_path}/wrong.yaml:3:40"
        assert typed(usage, "--budgets").strip() == ""
        assert [of["name"] for of in json.loads(typed(budgets, "apply", str(tmp_path / "budgets.yaml"), "--json"))] == [
            *("research", "ann"),
        ]
        assert "tenant research  $0.00  $4.00" in typed(usage, "--budgets")
        told = json.loads(typed(usage, "--budgets", "-o", "json", "--tenant", "research"))
        assert [(of["name"], of["at_limit"]) for of in told] == [("research", "hold")]
        head, first, second = typed(usage, "--budgets", "-o", "csv").splitlines()
        assert head.startswith("name,tenant,project,user,unit,amount,spent,share,rate,every,")
        assert first.startswith("research,research,,,dollars,4,0,0,0,month,")
        assert second.startswith("ann,,,ann,device-hours,2,0,0,0,week,")
        assert 'poise_budget_amount{budget="ann",unit="device-hours"} 2' in typed(
            usage, "--budgets", "-o", "openmetrics"
        )

    async def test() -> None:
        async with open_door(tmp_path) as door, entered(door.app, tmp_path / "poise.sock"):
            await asyncio.to_thread(commands)

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_plan_tells_of_the_budget_that_would_hold_the_job() -> None:
    desk = Desk(World().join(node("n1", cpu=16, gpus=2)))
    desk.token("researcher", "research", Role.SUBMITTER)
    budget = {"name": "ann", "user": "ann", "amount": "1h", "at_limit": "hold"}
    desk.call("PUT", "/v1/budgets", {"document": {"kind": "budgets", "budgets": [budget]}})
    desk.world.submit({"run": "x", "resources": {"gpu": 2}}, user="ann").round().start("j1").after("31m")

    def planned(user: str) -> str:
        return desk.call("POST", "/v1/plan", {"spec": {"run": "x"}, "user": user}, who="researcher").body.decode()

    assert '"code":"BUDGET","subject":"ann","have":"1.03 device hours of 1 device hours is spent' in planned("ann")
    assert "BUDGET" not in planned("bob")
