"""Tunes the control loops of rules in the twin: gains from an experiment with a relay, and the response with them.

Each loop runs alone, on the jobs of a log or a trace, or on a simulated service: once as a relay, once with automatic
gains and once with the gains that the oscillation under the relay gives. Only the time of arrivals counts.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isnan
from typing import Any

import msgspec

from poise.engine.twin import Twin
from poise.kernel.backtest import Sample, samples
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import SetRules
from poise.model.control import Control, Gains
from poise.model.events import Event
from poise.model.reports.rules import LoopResponse, TunedLoop
from poise.model.resources import Node
from poise.model.rules import compile_rules
from poise.model.workload import Workload
from poise.policy.control import AUTOMATIC, TOLERANCE, error_of
from poise.policy.relay import RELAY, oscillation
from poise.policy.suites import ClusterPolicy
from poise.units import SECOND
from poise_lab.page import Page
from poise_lab.panels import PANELS, plot
from poise_lab.ruled import Following
from poise_lab.steered import Simulated, events_of
from poise_lab.trial import simulate

BUDGET = 10_000
"""Actions in an hour: so large that the budget limits no trial."""

Steps = Sequence[Sample]
Simulate = Callable[[dict[str, Any], Control], list[Event]]
"""Returns the log of a simulation with the rules of a document, of which one has this control loop."""


def on_jobs(workload: Workload, nodes: Sequence[Node], policy: ClusterPolicy, settings: Settings) -> Simulate:
    """Return a simulation of jobs, as long as they arrive."""

    def run(document: dict[str, Any], _: Control) -> list[Event]:
        events: list[Event] = []
        decides = Following(policy)

        def begin(twin: Twin) -> None:
            decides.twin = twin
            twin.ask(lambda request: SetRules(request, document), 0)

        last = max((arrival.at for arrival in workload.arrivals), default=0)
        simulate(workload, nodes, decides, settings, until=last, observe=events.append, begin=begin)
        return events

    return run


def on_service(service: Simulated) -> Simulate:
    """Return a simulation of the service whose replicas a loop sets, until its requests are over."""
    return lambda document, control: events_of(service, control.of, document)


def tune_loops(
    document: dict[str, Any], run: Simulate, tell: Callable[[str], None] = lambda text: None
) -> list[TunedLoop]:
    """Tune each control loop of the rules. Rules without one are ignored."""
    found = []
    for rule, written in zip(compile_rules(document).rules, document["rules"], strict=True):
        control = rule.control
        if control is None:
            continue

        def trial(gains: Gains, of: Any = written, control: Control = control) -> Steps:
            alone = _alone(document, of, gains)
            return _steps(run(alone, control), alone, control)

        tell(f"{rule.name}: with a relay")
        relay = trial(RELAY)
        wave = oscillation(
            [error_of(control, step.measured) for step in relay], [_output(control, step) for step in relay]
        )
        responses = []
        for label, gains in (("auto", AUTOMATIC), ("tuned", wave.gains if wave is not None else None)):
            if gains is not None:
                tell(f"{rule.name}: with {label} gains")
                responses.append(_response(label, gains, control, trial(gains)))
        found.append(
            TunedLoop(
                rule=rule.name,
                knob=f"{control.knob} of {control.of}" if control.of else control.knob,
                signal=control.target.read.signal,
                target=control.target.value,
                every=control.every / SECOND,
                period=wave.period if wave is not None else 0.0,
                responses=tuple(responses),
            )
        )
    return found


def render(told: Sequence[TunedLoop]) -> str:
    """Return a page with the course of each signal and of its knob, for each set of gains."""
    page = Page("Control loops", PANELS)
    for loop in told:
        names = [
            f"{one.label}: proportional {one.proportional:.4g}, integral {one.integral:.4g}" for one in loop.responses
        ]
        length = round(SECOND * max((one.at[-1] for one in loop.responses if one.at), default=1.0))
        for title, label, values in (
            (f"{loop.rule}: {loop.signal}, target {loop.target:g}", "signal over time", "measured"),
            (f"{loop.rule}: {loop.knob}, of its range", "knob over time", "output"),
        ):
            curves = [
                [(at * SECOND, value) for at, value in zip(one.at, getattr(one, values), strict=True)]
                for one in loop.responses
            ]
            plot(page, title, label, names, curves, length, 1.0 if values == "output" else 0.0)
    return page.text()


def _alone(document: dict[str, Any], written: dict[str, Any], gains: Gains) -> dict[str, Any]:
    """Return a document with one rule, whose loop has these gains and always acts."""
    [loop] = [action["control"] for action in written["actions"] if "control" in action]
    action = {"control": {**loop, "gains": msgspec.to_builtins(gains)}}
    return {**document, "budget": BUDGET, "rules": [{**written, "mode": "on", "actions": [action]}]}


def _steps(events: list[Event], document: dict[str, Any], control: Control) -> Steps:
    """Return the samples of a simulation at the steps of its loop."""
    rules = compile_rules(document)
    steps: list[Sample] = []
    for sample in samples(events, rules, rules.rules[0].name, Ledger()):
        if not isnan(sample.measured) and (not steps or sample.at - steps[-1].at >= control.every):
            steps.append(sample)
    return steps


def _output(control: Control, step: Sample) -> float:
    """Return the knob as a fraction of its range."""
    return min(1.0, max(0.0, (step.value - control.least) / (control.most - control.least)))


def _response(label: str, gains: Gains, control: Control, steps: Steps) -> LoopResponse:
    errors = [abs(error_of(control, step.measured)) for step in steps]
    later = errors[len(errors) // 2 :]
    first = steps[0].at if steps else 0
    return LoopResponse(
        label=label,
        proportional=gains.proportional,
        integral=gains.integral,
        steps=len(steps),
        error=sum(later) / len(later) if later else 0.0,
        within=sum(error <= 2 * TOLERANCE for error in later) / len(later) if later else 0.0,
        changes=sum(before.value != after.value for before, after in pairwise(steps)),
        at=tuple((step.at - first) / SECOND for step in steps),
        measured=tuple(step.measured for step in steps),
        output=tuple(_output(control, step) for step in steps),
    )
