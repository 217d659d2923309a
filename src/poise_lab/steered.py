"""A simulated service whose replicas a control loop sets: the twin of a service beside the twin of a control plane.

The service reports its state to the control plane every two seconds, as a gateway does, and gets the orders of the
rules. The control plane records the reports and evaluates the rules with the code of a live one.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from poise.drivers.calendars import load_service
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.messages import HearServices, SetRules
from poise.model.events import Event
from poise.model.resources import Node
from poise.model.served import WINDOW, service_in_full
from poise.model.tenants import tenant_of_class
from poise.policy.replicas import DEFAULT_SCALER, scaler_named
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.engine.serving import ANSWERED, ServiceTwin
from poise_lab.rehearsal import load_world, service_twin
from poise_lab.traces.loads import Wanted, asking
from poise_serve.lately import Lately

OK = 200

REPORTS_EVERY = 2 * SECOND
"""Interval of the reports of a gateway."""


class Simulated(NamedTuple):
    """A service to simulate. `begin` makes it anew, with the same requests."""

    name: str
    objective: int
    begin: Callable[[], ServiceTwin]


def simulated(file: Path, world_file: Path, requests: str, seed: int = 0) -> Simulated:
    """Return the service of a file in a world, with the requests of a trace or of a generated load. Raises `PoiseError`
    for unreadable input.
    """
    world, serving = load_world(world_file)
    service = load_service(file, time.time())
    scaler = scaler_named(service.scaler or DEFAULT_SCALER) if service.rules is not None else None
    source = asking(requests, Wanted(), seed)

    def begin() -> ServiceTwin:
        return service_twin(service, world, serving, scaler, source.begin(), seed=seed)

    return Simulated(service.name, service.limits.objective, begin)


def events_of(service: Simulated, known_as: str, document: dict[str, Any]) -> list[Event]:
    """Return the log of a control plane with these rules, to which a service reports until its requests are over.
    `known_as` is its name in the rules.
    """
    events: list[Event] = []
    plane = Twin(policy_named("poise"), Settings(), observe=events.append)
    plane.add_nodes((Node(name="n1", incarnation="1", cpu=1000, memory=1 << 30),))
    plane.ask(lambda request: SetRules(request, document), 0)
    name, twin, gateway = service_in_full(known_as), service.begin(), Lately(0)
    counted = 0

    def report() -> None:
        nonlocal counted
        for story in twin.stories[counted:]:
            if story.why == ANSWERED:
                gateway.answered(OK, story.took, story.over)
            else:
                gateway.refused(story.why, story.over)
        counted = len(twin.stories)
        state = gateway.recent(WINDOW, twin.now).served(
            objective=service.objective,
            waiting=twin.batcher.waiting,
            ready=twin.replicas,
            wanted=twin.started,
        )
        plane.ask(lambda request: HearServices(request, tenant_of_class(name), "twin", {name: state}), twin.now)
        plane.run(twin.now)
        orders = plane.host.controller.ruling.orders()
        twin.ordered = sum(order.by for order in orders if service_in_full(order.service) == name)

    twin.every(REPORTS_EVERY, report)
    twin.run()
    return events


__all__ = ["Simulated", "events_of", "simulated"]
