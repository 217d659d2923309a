"""`dashboard/services.py`: which services a viewer sees."""

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest

from poise.client import Client
from poise.config import Home
from poise.dashboard.services import services_of
from poise.errors import Conflict, NotFound
from poise.model.reports.access import WhoReport
from poise.model.reports.services import ServiceReport
from poise_serve import reporting
from unit.gateway.test_reporting import report


class _Client:
    """A viewer who may see some jobs."""

    def __init__(self, role: str, *jobs: str) -> None:
        self._role, self._jobs = role, jobs

    def whoami(self) -> WhoReport:
        return WhoReport(tenant="ann", role=self._role, token="", name="", expires=0.0)

    def job(self, name: str) -> None:
        if name not in self._jobs:
            raise NotFound("there is no such job", field="job", have=name, hint="`poise ls`")


def seen(home: Home, client: _Client) -> list[str]:
    """The services that are shown while a gateway serves two, of which one has a replica."""
    served = [msgspec.structs.replace(report(1, "digits"), jobs=("j4", "j7")), report(1, "resting")]

    async def gateway() -> list[ServiceReport]:
        (home.services / "x.gateway").touch()
        listening = await reporting.listen(home.services, "x", lambda window: served)
        try:
            found: list[ServiceReport] = await asyncio.to_thread(services_of(home), cast(Client, client), {})
            return found
        finally:
            listening.close()
            reporting.forget(home.services, "x")

    return [one.service for one in asyncio.run(gateway())]


def test_a_tenant_sees_a_service_whose_latest_replica_is_its_job(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.services.mkdir()
    assert seen(home, _Client("operator")) == seen(home, _Client("observer")) == ["digits", "resting"]
    assert seen(home, _Client("viewer", "j7")) == ["digits"]
    assert seen(home, _Client("submitter", "j4")) == []


def test_gateways_of_another_machine_are_not_asked(tmp_path: Path) -> None:
    with pytest.raises(Conflict):
        services_of(Home(tmp_path, elsewhere=tmp_path / "theirs.sock"))(cast(Client, _Client("operator")), {})
