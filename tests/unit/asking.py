"""What people ask of a world, answered as the control plane does."""

import time
from functools import partial
from typing import Any

from poise.engine.lookahead import Bounds, LookAhead
from poise.kernel import whatif
from poise.kernel.explain import question
from poise.kernel.find import find
from poise.model.reports.questions import Explanation, PlanReport, Start
from poise.model.tenants import DEFAULT
from poise.policy.suites import ClusterPolicy, policy_named
from poise.testing import WALL, World

BOUNDS = Bounds(futures=20, seconds=60.0)
"""As many futures as the control plane follows, however slow this machine is."""

FEW = BOUNDS._replace(futures=8)
"""For answers in which the figures are not what is tested."""


def policy_of(world: World) -> ClusterPolicy:
    return policy_named(world.ledger.leader.policy)


def explained(world: World, name: str, *, everything: bool = False, bounds: Bounds = FEW) -> Explanation:
    """By the name or id of a job, or of a task of it (`g.a`); of any tenant."""
    view = world.controller.snapshot(world.now)
    found = find(world.ledger, world.state(name).id if "." not in name else name)
    asked = question(world.ledger, found.job, view, units=found.units, everything=everything)
    ahead = LookAhead(world.ledger, view.now, time.monotonic, bounds=bounds)
    policy = policy_of(world)
    return whatif.explain(policy, view, asked, partial(ahead.starts, policy), everything=everything)


def expected(world: World, name: str, *, bounds: Bounds = FEW) -> Start:
    """When a job starts of which all that waits asks for the same."""
    [waiting] = explained(world, name, bounds=bounds).waiting
    assert waiting.start is not None
    return waiting.start


def planned(
    world: World, document: dict[str, Any], *, tenant: str = DEFAULT, everything: bool = False, bounds: Bounds = FEW
) -> PlanReport:
    compiled = world.controller.prepare(document, WALL, world.now, tenant)
    job = world.controller.jobs.would_submit(compiled)
    proposal = whatif.propose(world.ledger, job, world.now)
    ahead = LookAhead(world.ledger, world.now, time.monotonic, bounds=bounds, job=job)
    view, policy = world.controller.snapshot(world.now), policy_of(world)
    starts = partial(ahead.starts, policy)
    return whatif.plan(policy, view, proposal, starts, note=compiled.note, everything=everything)
