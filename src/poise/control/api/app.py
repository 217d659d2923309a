"""The HTTP API: its routes, its OpenAPI document, its errors. No logic: each route asks the plane or makes a report.

Each route declares the role that it requires, and returns only what the bearer of the token may see.
"""

from collections.abc import Collection
from functools import cache

import msgspec

from poise.config import Home
from poise.control.anomalies import Anomalies
from poise.control.api import events, files, jobs, nodes, policies, questions, rules, schedules, status, tasks, tenants
from poise.control.api.parts import Parts
from poise.control.chances import Chances
from poise.control.deciders import Deciders
from poise.control.guard import KEYED, PUBLIC, App, Guard, Scope
from poise.control.hot import CallerChannel, NodeChannel, Submissions, WorkerChannel
from poise.control.incidents import Incidents
from poise.control.lifetime import Lifetime
from poise.control.openapi import SCHEMA, document
from poise.control.plane import Plane
from poise.control.routes import Content, Routes
from poise.control.signing import SigningIn
from poise.control.storehouse import Storehouse
from poise.model.tenants import Role

SUBJECTS = (status, jobs, files, questions, tasks, nodes, schedules, tenants, policies, rules, events)
"""The modules with the routes."""


def make_app(
    plane: Plane,
    home: Home,
    token: str,
    lifetime: Lifetime,
    deciders: Deciders,
    *,
    known_as: Collection[str] = (),
    authority: bytes = b"",
    chances: Chances | None = None,
    log_limit: int = 0,
    incidents: Incidents | None = None,
    anomalies: Anomalies | None = None,
    files: Storehouse | None = None,
) -> App:
    """Build the API behind its guard. `known_as` are this machine's names for other machines; `anomalies` receives what
    nodes report. `Parts` describes the others.
    """
    parts = Parts(
        plane,
        home,
        token,
        lifetime,
        deciders,
        authority=authority,
        chances=chances,
        log_limit=log_limit,
        incidents=incidents,
        files=files,
    )
    gate, vault, key_of, caller_key_of = parts.gate, parts.vault, parts.key_of, parts.caller_key_of

    def allow(scope: Scope, needed: Role | None) -> None:
        if (path := scope["path"]) not in PUBLIC | KEYED:
            gate.allow(scope["bearer"], needed, path)

    routes = Routes(allow)
    for subject in SUBJECTS:
        subject.add_routes(routes, parts)
    SigningIn(plane, home, gate).add_routes(routes)

    @cache
    def described() -> Content:
        return Content(msgspec.json.encode(document(routes)), "application/json")

    @routes.get(SCHEMA, summary="The OpenAPI document of the other routes", role=Role.VIEWER)
    async def schema() -> Content:
        return described()

    channel = NodeChannel(
        plane,
        gate,
        parts.series,
        home,
        vault,
        key_of,
        parts.consoles,
        parts.minutes,
        anomalies or Anomalies(plane),
        parts.of_clusters,
    )
    submissions = Submissions(plane, parts.targets, gate, parts.chances, vault, caller_key_of, parts.files)
    hot: dict[str, tuple[Role | None, App]] = {
        "submissions": (Role.SUBMITTER, submissions),
        "channel": (Role.NODE, channel),
        "calls": (Role.SUBMITTER, CallerChannel(plane, gate, caller_key_of)),
        "workers": (None, WorkerChannel(plane, gate, key_of)),
    }
    return Guard(gate, routes, hot, lifetime.request, known_as)
