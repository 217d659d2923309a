"""Describe the promises of the live part of `poise demo` and their results, for the terminal and the page."""

from poise.units import SECOND, format_duration
from poise_lab.demo.live import Live


def promises(live: Live) -> list[tuple[str, str, str]]:
    """Return each promise, its result, and whether it was kept: `yes`, `NO`, or empty for mere information."""
    urgent, service, training = live.urgent, live.service, live.training
    left = urgent.deadline - urgent.took
    when = f"{left:.1f} s before its deadline" if urgent.met else "NOT before its deadline"
    workers = " → ".join(map(str, training.workers))
    same = "the same weights" if training.same else "OTHER weights"
    again = f"restarted: {', '.join(live.restarted)}" if live.restarted else "no other process restarted"
    rows = [
        ("urgent job", f"waited {format_duration(round(urgent.waited * SECOND))}, done {when}", urgent.met),
        (
            "service",
            f"{service.in_time} of {service.asked} answered within {1000 * service.objective:.0f} ms, "
            f"P99 {1000 * service.p99:.0f} ms",
            service.kept,
        ),
        ("training", f"{workers} workers, never stopped", training.fewest > 0),
        ("kill -9", f"{', '.join(live.killed)}; {again}", not live.restarted),
        ("results", f"{same} and labels as without Poise and without kills", training.same and urgent.same),
    ]
    told = [(name, text, "yes" if kept else "NO") for name, text, kept in rows]
    return [*told, ("devices", f"{live.use:.0%} in use while training was there", "")]
