"""Gateways are asked for their figures, and what misses an objective is in the log, and in an incident."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from poise.control.incidents import Incidents
from poise.control.objectives import Objectives
from poise.kernel.messages import Saw
from poise.model.events import Noticed
from poise.model.reports.services import ServiceReport
from poise.model.tenants import Role
from poise.testing import World
from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve import reporting
from poise_serve.lately import Lately
from unit.control.desk import Desk


class Serving:
    """A gateway whose service has one replica, and its control plane."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "services"
        self.folder.mkdir()
        world = World().nodes(2).job("digits-1", tenant="ann", **{"class": "digits-replica"}).round().start("digits-1")
        self.desk = Desk(world, folder)
        self.desk.token("ann", "ann", Role.VIEWER)
        self.desk.token("bob", "bob", Role.VIEWER)
        vars(self.desk.plane)["post"] = lambda saw: world.say(saw) if isinstance(saw, Saw) else None
        self.incidents = Incidents(self.desk.plane, self.desk.home)
        self.lately = Lately(0)
        self.now = 0
        self.control_plane_starts()

    def control_plane_starts(self) -> None:
        self.objectives = Objectives(self.desk.plane, self.desk.home, self.incidents)

    async def listen(self, mark: str = "0a1b2c3d") -> asyncio.Server:
        (self.folder / f"{mark}.gateway").touch()
        return await reporting.listen(self.folder, mark, lambda window: [self.report(window)])

    def report(self, window: int) -> ServiceReport:
        recent: dict[str, Any] = self.lately.recent(window, self.now)._asdict()
        return ServiceReport(
            service="digits", url="", rate=1.0, objective=200 * MILLISECOND, replicas=1, started=1, waiting=0,
            serving=0, jobs=(self.desk.world.state("digits-1").id,), **recent,
        )  # fmt: skip

    async def go(self, minutes: int, took: int) -> list[Noticed]:
        """Two requests a second take so long; what is noticed."""
        before = len(self.desk.world.log)
        for _ in range(minutes):
            for _ in range(120):
                self.lately.answered(200, took * MILLISECOND, self.now)
                self.now += MINUTE // 120
            await self.objectives.look()
        return [event for event in self.desk.world.log[before:] if isinstance(event, Noticed)]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    return Serving(tmp_path)


def run(serving: Serving, scene: Callable[[Serving, asyncio.Server], Awaitable[None]]) -> None:
    async def play() -> None:
        listening = await serving.listen()
        try:
            await scene(serving, listening)
        finally:
            listening.close()

    asyncio.run(play())


def test_a_missed_objective_is_an_incident_of_its_tenant_until_it_is_met(serving: Serving) -> None:
    run(serving, missed_and_met)


async def missed_and_met(serving: Serving, _: asyncio.Server) -> None:
    assert await serving.go(2, took=50) == []
    [noticed] = await serving.go(2, took=300)
    assert (noticed.subject, noticed.over, noticed.jobs) == ("ann:digits", False, ("j1",))
    assert noticed.text.startswith("service ann:digits misses its objective: P99 30")
    assert serving.desk.world.after("30s").now - noticed.at == 30 * SECOND
    [one] = await serving.incidents.reports()
    assert (str(one.cause.element), one.closed) == ("service ann:digits", 0.0)
    serving.control_plane_starts()
    assert await serving.go(1, took=300) == [], "it is in the log"
    [met] = await serving.go(6, took=50)
    assert (met.over, met.text) == (True, "service ann:digits meets its objective")
    serving.desk.world.after("31s")
    [one] = await serving.incidents.reports()
    assert one.closed


def test_others_see_neither_the_incident_nor_its_events(serving: Serving) -> None:
    async def missed(serving: Serving, _: asyncio.Server) -> None:
        await serving.go(1, took=300)

    run(serving, missed)
    serving.desk.world.after("30s")
    shown = {who: serving.desk.call("GET", "/v1/incidents", who=who).value for who in ("home", "ann", "bob")}
    assert [len(of) for of in shown.values()] == [1, 1, 0]
    events = {who: serving.desk.call("GET", "/v1/events?after=0&follow=false", who=who).body for who in ("ann", "bob")}
    assert [b"objective-missed" in of for of in events.values()] == [True, False]
    serving.desk.world.lose(serving.desk.world.state("digits-1").units[0].tasks[0].node).after("60s")
    [to_bob] = serving.desk.call("GET", "/v1/incidents", who="bob").value
    assert to_bob["cause"]["kind"] == "node" and "digits" not in str(to_bob)


def test_a_gateway_that_does_not_answer_leaves_it_as_it_was_and_one_that_has_ended_ends_it(serving: Serving) -> None:
    run(serving, silent_and_gone)


async def silent_and_gone(serving: Serving, listening: asyncio.Server) -> None:
    assert len(await serving.go(1, took=300)) == 1
    listening.close()
    reporting.forget(serving.folder, "0a1b2c3d")
    assert await serving.go(1, took=300) == []
    (serving.folder / "0a1b2c3d.gateway").unlink()
    [noticed] = await serving.go(1, took=300)
    assert noticed.text == "service ann:digits is not served any more"
