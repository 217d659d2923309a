"""Routes of nodes: list, drain, lend, leave, give up."""

import asyncio
from itertools import islice
from typing import Annotated, Literal

import msgspec

from poise.config import PAGE
from poise.control.api.parts import OPERATOR, VIEWER, JobIds, Parts
from poise.control.routes import Routes
from poise.kernel import messages
from poise.kernel.explain import node_report
from poise.kernel.find import find_node
from poise.kernel.find import names as find_names
from poise.kernel.visible import Sight
from poise.model.reports.nodes import Drained, NodeReport
from poise.model.tenants import Bearer, Role
from poise.model.usage import PROFILED, NodeProfile

NODES_AT_ONCE = 100
"""Nodes with eight devices reported in one turn of the loop (about 2 ms): the dashboard requests all nodes."""


class DrainRequest(msgspec.Struct, frozen=True):
    """Closes a node to new work, or reopens it without `on`. With `moves`, its running work moves to other nodes."""

    on: bool = True
    moves: bool = False


class NamedNode(msgspec.Struct, frozen=True):
    """A `node` by its full name."""

    node: str


class NamedNodes(msgspec.Struct, frozen=True):
    """Several `nodes` by their full names."""

    nodes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=100_000)]


NameKind = Literal["job", "node", "tenant", "schedule"]


def add_routes(routes: Routes, parts: Parts) -> None:
    plane = parts.plane

    @routes.get(
        "/v1/nodes",
        summary=f"Nodes by name, with their resources and used amounts: the first {PAGE}, or those `after` a name",
        role=VIEWER,
    )
    async def nodes(
        bearer: Bearer, after: str = "", limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE
    ) -> list[NodeReport]:
        ledger = await plane.settled()
        sight, told = Sight(ledger, bearer), plane.controller.watch
        page = list(islice((entry for entry in ledger.nodes.items() if entry[0] > after), limit))
        reports: list[NodeReport] = []
        for name, state in page:
            report = node_report(state, told.load_of(name), told.upkeep_of(name), cordons=ledger.cordons)
            reports.append(sight.node(report))
            if len(reports) % NODES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return reports

    @routes.get(
        "/v1/profiles",
        summary=f"Load history of nodes, with advice: one `node`, or the first {PROFILED}",
        role=VIEWER,
    )
    async def profiles(node: str = "") -> list[NodeProfile]:
        known = (await plane.settled()).nodes
        names = [find_node(known, node)] if node else list(islice(known, PROFILED))
        return await asyncio.to_thread(parts.series.profiles, names, plane.clock.wall())

    @routes.get(
        "/v1/names/{kind}",
        summary="Names of kind job, node, tenant or schedule that begin with `typed`, for completion",
        role=VIEWER,
    )
    async def names(bearer: Bearer, kind: NameKind, typed: str = "") -> list[str]:
        return find_names(await plane.settled(), kind, typed, bearer)

    @routes.post(
        "/v1/nodes/{name}/drain",
        summary="Close a node, or a device of it (`n1:0`), to new work and move its running work, or open it again",
        status=202,
        role=OPERATOR,
    )
    async def drain(bearer: Bearer, name: str, data: DrainRequest) -> Drained:
        drained: Drained = await plane.request(
            lambda request: messages.Drain(request, name, data.on, bearer, data.moves)
        )
        return drained

    @routes.post(
        "/v1/nodes/lost",
        summary="Declare nodes lost that their engine reports as gone; most of a fleet only if they stay away",
        status=202,
        role=OPERATOR,
    )
    async def give_up(bearer: Bearer, data: NamedNodes) -> dict[str, list[str]]:
        return {"nodes": await plane.request(lambda request: messages.GiveUp(request, data.nodes, bearer))}

    @routes.post(
        "/v1/nodes/jobs",
        summary="For a node that keeps files of jobs: which of these are no longer known",
        status=200,
        role=Role.NODE,
    )
    async def gone_jobs(data: JobIds) -> list[str]:
        plane.check_leading()
        ledger = await plane.settled()
        return [name for name in data if name not in ledger.jobs]

    @routes.post(
        "/v1/nodes/leave",
        summary="For a node, with the token that it joined with: it leaves, and does not come back",
        status=202,
        role=Role.NODE,
    )
    async def leave(bearer: Bearer, data: NamedNode) -> dict[str, str]:
        return {"node": await plane.request(lambda request: messages.Leave(request, data.node, bearer))}

    @routes.post(
        "/v1/nodes/lend",
        summary="Preempt the work on the one of these nodes that loses least, because others wait for its machine",
        status=202,
        role=OPERATOR,
    )
    async def lend(bearer: Bearer, data: NamedNodes) -> dict[str, str]:
        return {"node": await plane.request(lambda request: messages.Lend(request, data.nodes, bearer))}
