"""The data function of energy and cost: the `poise report` of a period, by node, tenant and job."""

import re
import threading
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from poise.client import Client
from poise.config import Home
from poise.dashboard.commands import printed_by
from poise.dashboard.data import Asked, DataFunction, bearer_of, number
from poise.decoding import convert
from poise.errors import Busy, Conflict, SpecError
from poise.model.history import Bill, JobLine, NodeBill, TenantUse, Waste, basis_of_co2
from poise.model.intensity import IntensityUnit
from poise.units import SECOND, parse_duration

MAX_JOBS = 200
"""Maximum number of jobs listed, those with the highest energy."""

_PERIOD = re.compile(r"[1-9][0-9]{0,2}[mhd]")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a `RunReport`. `flags` are the flags of `poise report` that print it."""

    begins: float
    length: int
    tenants: tuple[TenantUse, ...]
    jobs: tuple[JobLine, ...]
    waste: tuple[Waste, ...] = ()
    bill: Bill | None = None
    nodes: tuple[NodeBill, ...] = ()
    kg_per_kwh: float = 0.0
    hourly: IntensityUnit | Literal[""] = ""
    basis: str = ""
    flags: str = ""


def spent_of(home: Home) -> DataFunction:
    """`poise report --since PERIOD`, until the moment `at` if it is given; of the tenant of a token that sees no other.
    `co2` is the CO2e of a kWh in kg, in hours to which `intensity.yaml` gives none; `job` names one job.
    """
    making = threading.Lock()

    def spent(client: Client, asked: Asked) -> Spent:
        if home.elsewhere is not None:
            raise Conflict(
                "energy and cost are computed from the log, which belongs to the owner of the control plane",
                field=home.elsewhere_by,
                have=str(home.elsewhere),
                hint="`poise dashboard` of the owner shows them",
            )
        bearer = bearer_of(client)
        flags = _flags(asked)
        if not bearer.sees_all:
            flags.append(f"--tenant={bearer.tenant}")
        job = client.job(asked["job"]).id if asked.get("job") else ""
        if not making.acquire(blocking=False):
            raise Busy("another report is being made", hint="wait")
        try:
            told = printed_by(home, ["report", *flags, "--json", *([job] if job else [])])
        finally:
            making.release()
        found = convert(told, Spent)
        jobs = sorted(found.jobs, key=lambda one: (-one.energy, -one.price, -one.submitted))[:MAX_JOBS]
        amounts = (found.bill.energy, found.bill.hourly) if found.bill is not None else ()
        basis = basis_of_co2(found.hourly, found.kg_per_kwh, *amounts)
        return msgspec.structs.replace(found, jobs=tuple(jobs), basis=basis, flags=" ".join(flags))

    return spent


def _flags(asked: Asked) -> list[str]:
    """Return the flags of the period and of the carbon intensity. Raises `SpecError`."""
    period, at = asked.get("period", "1h"), number(asked, "at", 0.0)
    if not _PERIOD.fullmatch(period):
        raise SpecError("the period cannot be read", field="period", have=period[:40], need="15m, 24h, 7d", hint="24h")
    flags = [f"--since={period}"]
    if at:
        begin = at - parse_duration(period) / SECOND
        flags = [f"--{name}={_moment(one)}" for name, one in (("since", begin), ("until", at))]
    if asked.get("co2"):
        flags.append(f"--co2={number(asked, 'co2', 0.0):g}")
    return flags


def _moment(at: float) -> Any:
    return datetime.fromtimestamp(max(0.0, at), UTC).isoformat()
