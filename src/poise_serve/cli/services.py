"""`poise services`."""

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import tell
from poise.client import current_home
from poise.config import Home
from poise.drivers.gateways import service_reports
from poise.errors import NotFound, SpecError
from poise.model.document import near, some
from poise.model.reports.services import ServiceReport
from poise.units import MILLISECOND, SECOND, format_duration, parse_duration
from poise_serve.lately import LONGEST

SHORTEST = 5 * SECOND
RANGE = "5s to 5m"


@click.command()
@click.option(
    "--last", default="1m", show_default=True, metavar="TIME", help=f"The time that the figures cover, {RANGE}."
)
@output.rows
@click.argument("services", nargs=-1, metavar="[SERVICE...]")
def services(services: tuple[str, ...], last: str, form: str, watch: bool) -> int:
    """List the services of this home's gateways (`poise serve`) with their latest figures.

    The figures are answers per second, P50, P95 and P99 against the objective, refused requests, replicas, and the mean
    batch size; with `-o wide` also the mean wait for a batch. A version on trial has a row of its own.
    """
    window = _window(last)
    home = current_home()
    return output.show(lambda: _shown(_asked(home, services, window)), form, watch)


def _window(last: str) -> int:
    try:
        window = parse_duration(last)
    except ValueError as error:
        raise SpecError(
            "the time cannot be read", code="E103", field="--last", need=str(error), hint="--last 1m"
        ) from None
    if not SHORTEST <= window <= LONGEST:
        raise SpecError(
            "the time is too short or too long", code="E103", field="--last", need=RANGE, have=last, hint="--last 1m"
        )
    return window


def _asked(home: Home, names: tuple[str, ...], window: int) -> list[ServiceReport]:
    """Return the reports of these services, or of all. Raises NotFound if no gateway serves one."""
    found: list[ServiceReport] = []
    for mark, reports in service_reports(home.services, window):
        if reports is None:
            tell(f"the gateway {mark} does not answer; its process: `cat {home.services / f'{mark}.lock'}`")
        found += reports or []
    known = list(dict.fromkeys(one.service for one in found))
    for name in names:
        if name not in known:
            raise NotFound(
                f"no gateway of this home serves `{name[:80]}`",
                field="service",
                have=some(known, 12) or "no services",
                hint=near(name, known) or "`poise serve app.py:Model` starts one",
            )
    return [one for one in found if not names or one.service in names]


def _shown(reports: list[ServiceReport]) -> Shown:
    return Shown(
        reports,
        [one.service for one in reports],
        [
            Column("SERVICE", [one.service for one in reports]),
            Column("REPLICAS", [f"{one.replicas}/{one.started}" for one in reports]),
            Column("RATE", [f"{one.rate:.3g}/s" for one in reports], right=True, moving=True),
            Column("FORESEEN", [_foreseen(one) for one in reports], right=True, moving=True, only="wide"),
            Column("P50", [_latency(one.p50) for one in reports], right=True),
            Column("P95", [_latency(one.p95) for one in reports], right=True),
            Column("P99", [_latency(one.p99) for one in reports], right=True),
            Column("OBJECTIVE", [_objective(one) for one in reports]),
            Column("ANSWERED", [str(one.answered) for one in reports], right=True, only="wide"),
            Column("FAILED", [str(one.failed) for one in reports], right=True, only="wide"),
            Column("CACHED", [str(one.cached) for one in reports], right=True, only="wide"),
            Column("REFUSED", [str(sum(one.refused.values())) for one in reports], right=True, only="table"),
            Column("REFUSED", [_refused(one) for one in reports], only="wide"),
            Column("WAITING", [str(one.waiting) for one in reports], right=True, moving=True),
            Column("SERVING", [str(one.serving) for one in reports], right=True, moving=True, only="wide"),
            Column("BATCH", [f"{one.batch_mean:.3g}" if one.batches else "-" for one in reports], right=True),
            Column("WAIT", [_latency(one.wait_mean) for one in reports], right=True, only="wide"),
            Column("LARGEST", [str(one.batch_max or "-") for one in reports], right=True, only="wide"),
            Column("ADDRESS", [one.url for one in reports]),
        ],
        nothing="poise: no services; `poise serve app.py:Model` starts one",
    )


def _latency(took: int) -> str:
    """Format a latency below one second in milliseconds, with three digits; `-` without one."""
    return f"{took / MILLISECOND:.3g} ms" if 0 < took < SECOND else format_duration(took) if took else "-"


def _foreseen(of: ServiceReport) -> str:
    return f"{of.foreseen:.3g} ± {of.spread:.2g}/s" if of.foreseen else "-"


def _objective(of: ServiceReport) -> str:
    if not of.objective:
        return "-"
    said = "met" if of.met else click.style("missed", fg="red")
    return f"{format_duration(of.objective)}{f' {said}' if of.p99 else ''}"


def _refused(of: ServiceReport) -> str:
    return ", ".join(f"{count} {why}" for why, count in of.refused.items()) or "0"
