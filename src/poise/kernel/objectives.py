"""Services that miss their objective, by the figures that their gateways report.

A miss begins if the last five minutes and the last minute miss the objective: the first shows that it matters, the
second that it still lasts. It is over once the last five minutes meet it. So a service whose latency varies around its
objective has one long miss instead of many short ones.

The objective is the declared P99, if there is one, and at most 1 % of errors. Errors are answers with status 500 and
above, and requests without an answer, unless the client disconnected.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from poise.kernel.incidents import STALE
from poise.model.events import Noticed
from poise.model.reports.services import ServiceReport
from poise.units import MINUTE, format_duration

SHORT, LONG = 1 * MINUTE, 5 * MINUTE

FEWEST = 100
"""Minimum number of requests to judge a service: with fewer, a single one is more than 1 %."""

MOST_ERRORS = 0.01

AGAIN = STALE // 2
"""A lasting miss is recorded again after this time, so that its incident does not close as stale."""


class Look(NamedTuple):
    """A service at one gateway, by its name within the home (`model.tenants.class_of_tenant`), with its reports for
    `SHORT` and `LONG`.
    """

    service: str
    short: ServiceReport
    long: ServiceReport


class Judge:
    """Decides what to record. `going` are the services with a recorded miss that is not over at the instant `now`."""

    def __init__(self, going: Iterable[str], now: int) -> None:
        self._told = dict.fromkeys(going, now)

    def take(self, looks: Sequence[Look], now: int, *, all_answered: bool = True) -> list[Noticed]:
        """Return what to record after a look at all gateways. A missing service is over if all gateways answered."""
        said = []
        found: dict[str, list[Look]] = {}
        for look in looks:
            found.setdefault(look.service, []).append(look)
        for service, at_gateways in sorted(found.items()):
            long = [(look, missed(look.long)) for look in at_gateways]
            text = next((text for _, text in long if text), "")
            lasts = any(text and missed(look.short) != "" for look, text in long)
            if service in self._told and not text:
                few = all(text is None for _, text in long)
                why = f"had fewer than {FEWEST} requests in {format_duration(LONG)}" if few else "meets its objective"
                said.append(self._over(service, why))
            elif text and (now - self._told[service] >= AGAIN if service in self._told else lasts):
                self._told[service] = now
                jobs = tuple(dict.fromkeys(job for look in at_gateways for job in look.long.jobs))
                text = f"service {service} misses its objective: {text}"
                said.append(Noticed(at=0, kind="objective-missed", subject=service, text=text, jobs=jobs))
        gone = sorted(self._told.keys() - found.keys()) if all_answered else []
        return said + [self._over(service, "is not served any more") for service in gone]

    def _over(self, service: str, why: str) -> Noticed:
        del self._told[service]
        return Noticed(at=0, kind="objective-missed", subject=service, text=f"service {service} {why}", over=True)


def missed(report: ServiceReport) -> str | None:
    """Return how a service missed its objective in the window of a report; empty if it met it, None for too few
    requests.
    """
    refused = sum(many for why, many in report.refused.items() if why != "cancelled")
    asked, errors = report.answered + report.cached + refused, report.faulty + refused
    if asked < FEWEST:
        return None
    told = []
    if report.answered >= FEWEST and not report.met:
        told.append(f"P99 {format_duration(report.p99)}, objective {format_duration(report.objective)}")
    if errors > MOST_ERRORS * asked:
        told.append(f"{100 * errors / asked:.1f} % of {asked} requests got an error")
    return ", ".join(told)
