"""S8: nothing outside a tenant is visible to it, whatever it asks, in any world."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import Phase, given, settings
from many import many

from poise.errors import InputError
from poise.kernel.incidents import Incidents
from poise.model.jobs import Outcome
from poise.model.tenants import Role
from poise.policy.suites import POLICIES
from poise.testing import World, node
from unit.control.desk import Desk
from unit.control.test_roles import NEEDS

JOB = re.compile(r"(?<![\w.-])(j[0-9]+)(?!\w)")


AT_LARGE = (
    "/v1/status", "/v1/whoami", "/v1/jobs", "/v1/jobs?all=true&name=*&latest=9", "/v1/nodes", "/v1/profiles",
    "/v1/quotas", "/v1/budgets", "/v1/shares", "/v1/reservations", "/v1/reservations/r1",
    "/v1/policy", "/v1/rules", "/v1/shadow", "/v1/tokens", "/v1/audit", "/v1/overview",
    "/v1/demand", "/v1/backlog", "/v1/backlog?tenant=bob", "/v1/backlog?tenant=ann&state=waiting",
    "/v1/names/job", "/v1/endpoints?job=j1", "/v1/endpoints?job=j2",
    "/v1/changes?after=1",
    "/v1/names/node", "/v1/names/tenant",
    "/v1/names/job?typed=j", "/v1/events?after=0&follow=false", "/v1/events?after=0&follow=false&decisions=true",
    "/v1/refusals", "/v1/incidents", "/v1/schedules", "/v1/names/schedule", "/metrics", f"/v1/trees/{'f' * 64}",
)  # fmt: skip
ABOUT_A_JOB = (
    "", "/explanation?all=true", "/deadline", "/unblock", "/logs", "/results", "/why-not/n0", "/why-not/n9",
    "/captures", "/captures/main.1.capture-1.stacks.svg",
)  # fmt: skip
STEPS = (
    "submit", "submit", "submit", "graph", "let", "let", "end", "cancel", "quota", "lose", "wait", "schedule", "remove"
)  # fmt: skip
FEW = 3
"""Jobs of others that are asked about: they are not there, one like the other."""

OUTCOMES: tuple[Outcome, ...] = ("done", "done", "failed", "oom")
NOBODYS = ("bo", "bob-1x", "bob-first", "ann-1.x", "j77")

AS_DRAWN = settings(max_examples=many(2, 5), phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""A world drawn from one seed does not get smaller by shrinking."""


def any_world(chance: Random) -> Desk:
    """Two tenants and the home share a few nodes; all that is bob's has his name in it."""
    desk = Desk(World(chance.choice([*POLICIES, "poise", "poise"]), check=False))
    world = desk.world
    for number in range(chance.randint(1, 3)):
        world.join(node(f"n{number}", cpu=chance.choice([1, 2, 4]), gpus=chance.choice([0, 1, 2])))
    for role in Role:
        desk.token(f"ann-{role.name}", "ann", role)
        desk.token(f"bob-{role.name}", "bob", role)
    for step in range(chance.randint(6, 20)):
        try:
            any_step(desk, chance, step)
        except InputError:
            continue
    world.after("1s")
    return desk


def any_step(desk: Desk, chance: Random, step: int) -> None:
    world = desk.world
    match chance.choice(STEPS):
        case "submit":
            tenant = chance.choice(["ann", "bob", "bob", "default"])
            fields: dict[str, Any] = {
                "name": f"{tenant}-{step}", "cpu": chance.choice([0.5, 1, 2]), "class": "both",
                "priority": chance.choice(["urgent", "high", "medium", "low"]),
            }  # fmt: skip
            fields |= chance.choice([{}, {"gpu": 1}, {"gpu": 1, "gpu_share": 0.5}, {"workers": "1..3"}, {"workers": 2}])
            fields |= chance.choice([{}, {"expect": "1h"}, {"deadline": "1h"}, {"checkpoint": "10s"}])
            before = [job.id for job in world.ledger.jobs.values() if job.tenant == tenant]
            if before and chance.random() < 0.2:
                fields["after"] = [chance.choice(before)]
            world.job(**fields, tenant=tenant)
        case "graph":
            tenant = chance.choice(["ann", "bob"])
            tasks = {f"{tenant}-first": {}, f"{tenant}-then": {"needs": [f"{tenant}-first"]}}
            world.graph(f"{tenant}-{step}", tasks=tasks, tenant=tenant)
        case "let":
            world.round()
            for of_node in world.held.values():
                world.start(*(attempt.task for attempt in of_node if attempt not in world.started))
        case "end":
            held = sorted(attempt.task for name in world.connected for attempt in world.held[name])
            if held:
                run, outcome = chance.choice(["10ms", "30s"]), chance.choice(OUTCOMES)
                world.finish(chance.choice(held), outcome=outcome, run=run)
        case "cancel":
            jobs = [job.id for job in world.ledger.jobs.values() if not job.ended]
            if jobs:
                world.cancel(chance.choice(jobs))
        case "schedule":
            tenant = chance.choice(["ann", "bob"])
            world.job(
                f"{tenant}-{step}", every="5m", overlap=chance.choice(["allow", "skip", "replace"]), tenant=tenant
            )
        case "remove":
            ended = [job.id for job in world.ledger.jobs.values() if job.ended]
            if ended:
                world.remove(chance.choice(ended))
        case "quota":
            world.quota(chance.choice(["ann", "bob"]), cpu=chance.choice([1, 2, 3]))
        case "lose":
            name = chance.choice(sorted(world.known))
            world.lose(name) if name in world.connected else world.connect(name)
        case "wait":
            world.after(chance.choice(["1s", "20s", "6m"]))


def answers(desk: Desk, who: str) -> Iterator[tuple[str, str, bytes]]:
    """All that somebody can ask without changing anything, of what is theirs, of what is not, and of what is nobody's:
    the name that was asked for, the question, and the answer.
    """
    jobs = desk.world.ledger.jobs.values()
    foreign = [job for job in jobs if job.tenant != "ann"][-FEW:]
    names = [name for job in jobs if job.tenant == "ann" or job in foreign for name in (job.id, job.name)]
    asks: list[tuple[str, str, Any]] = [("", path, None) for path in AT_LARGE]
    for name in [*names, *NOBODYS]:
        asks += [(name, f"/v1/jobs/{name}{part}", None) for part in ABOUT_A_JOB]
        asks.append((name, "/v1/plan", {"spec": {"run": "true", "after": [name]}}))
        asks.append((name, "/v1/jobs/ended", [name]))
        if not name.startswith("j"):
            asks.append((name, "/v1/plan", {"spec": {"run": "true", "name": name}}))
    asks += [("", f"/v1/incidents/{incident}", None) for incident in incidents_of(desk)]
    for cpu, priority in ((1, "medium"), (4, "urgent")):
        spec = {"run": "true", "class": "both", "priority": priority, "resources": {"cpu": cpu}}
        asks.append(("", "/v1/plan?all=true", {"spec": spec}))
    for name, path, body in asks:
        yield name, path, desk.call("GET" if body is None else "POST", path, body, who=who).body


def incidents_of(desk: Desk) -> list[str]:
    """Ids of incidents that the log has by now, of whomever."""
    made = Incidents()
    for revision, event in enumerate(desk.world.log, start=1):
        made.take(revision, event)
    made.tick(desk.world.now)
    return made.ids()


def test_every_route_that_tells_something_is_asked() -> None:
    asked = {path.partition("?")[0] for path in AT_LARGE} | {"/v1/plan", "/v1/incidents/{name}"}
    asked |= {f"/v1/jobs/{{name}}{part.partition('?')[0]}" for part in ABOUT_A_JOB}
    asked = {re.sub("/n[0-9]$", "/{node}", path) for path in asked}
    asked = {re.sub("/names/[a-z]+$", "/names/{kind}", path) for path in asked}
    asked = {re.sub("/trees/f+$", "/trees/{tree}", path) for path in asked}
    asked = {re.sub("/reservations/r1$", "/reservations/{name}", path) for path in asked}
    asked = {re.sub("/captures/.+$", "/captures/{capture}", path) for path in asked}
    telling = {route.split()[1] for route in NEEDS if route.startswith("GET") or route.endswith("/plan")}
    assert asked == telling


@AS_DRAWN
@given(chance=st.randoms(use_true_random=True))
def test_nothing_outside_a_tenant_is_visible_to_it(chance: Random) -> None:
    desk = any_world(chance)
    own = {name for job in desk.world.ledger.jobs.values() if job.tenant == "ann" for name in (job.id, job.name)}
    foreign = {job.id for job in desk.world.ledger.jobs.values() if job.id not in own}
    for name, path, body in answers(desk, "ann-SUBMITTER"):
        said = body.decode()
        if name not in own:  # it is said again, and nothing else
            said = said.replace(name, "") if name else said
            assert not name or '"error"' in said or path in ("/v1/plan", "/v1/jobs/ended"), (path, said)
        assert "bob" not in said, (path, said)
        assert not foreign.intersection(JOB.findall(said)), (path, said)
