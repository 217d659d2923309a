"""The data function of services. The gateways of a home report on them, on the home's machine only."""

from collections.abc import Iterator

from poise.client import Client
from poise.config import Home
from poise.dashboard.data import Asked, DataFunction, bearer_of
from poise.drivers.gateways import service_reports
from poise.errors import Conflict, NotFound
from poise.model.reports.services import ServiceReport


def services_of(home: Home) -> DataFunction:
    """`poise services --json`, as far as the viewer may see a replica of the service."""

    def services(client: Client, asked: Asked) -> list[ServiceReport]:
        if home.elsewhere is not None:
            raise Conflict(
                "gateways report on the machine of their home",
                field=home.elsewhere_by,
                have=str(home.elsewhere),
                hint="`poise services` on the machine of the gateway",
            )
        sees_all = bearer_of(client).sees_all
        return [one for one in _all(home) if sees_all or _is_seen(client, one)]

    return services


def _all(home: Home) -> Iterator[ServiceReport]:
    for _, reports in service_reports(home.services):
        yield from reports or ()


def _is_seen(client: Client, service: ServiceReport) -> bool:
    """Return whether the token may see the job of the service's latest replica."""
    for job in service.jobs[-1:]:
        try:
            client.job(job)
        except NotFound:
            continue
        return True
    return False
