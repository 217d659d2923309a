"""`dashboard/spent.py`: which report is asked for, and for whom."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from poise.client import Client
from poise.config import Home
from poise.dashboard import spent as module
from poise.dashboard.spent import spent_of
from poise.errors import Conflict, SpecError
from poise.model.reports.access import WhoReport

TOLD = {"begins": 1.0, "length": 2, "tenants": [], "jobs": []}


class _Client:
    """Whoever asks, by tenant and role."""

    def __init__(self, tenant: str = "default", role: str = "admin") -> None:
        self._who = WhoReport(tenant=tenant, role=role, token="", name="", expires=0.0)

    def whoami(self) -> WhoReport:
        return self._who


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The words of the command that is run."""
    words: list[list[str]] = []

    def printed(home: Home, given: list[str]) -> Any:
        words.append(given)
        return TOLD

    monkeypatch.setattr(module, "printed_by", printed)
    spent = spent_of(Home(tmp_path))

    def ask(client: _Client | None = None, **parameters: str) -> list[str]:
        spent(cast(Client, client or _Client()), parameters)
        return words[-1]

    return ask


def test_an_operator_gets_the_whole_fleet_and_a_tenant_only_its_own(asked: Callable[..., list[str]]) -> None:
    assert asked(period="24h") == ["report", "--since=24h", "--json"]
    assert asked(_Client("ops", "observer"), period="24h") == ["report", "--since=24h", "--json"]
    assert asked(_Client("ann", "submitter"), period="24h") == ["report", "--since=24h", "--tenant=ann", "--json"]


def test_a_past_moment_ends_the_period_and_the_intensity_is_passed_on(asked: Callable[..., list[str]]) -> None:
    flags = asked(period="1h", at="7200", co2="0.05")
    assert flags[1:-1] == ["--since=1970-01-01T01:00:00+00:00", "--until=1970-01-01T02:00:00+00:00", "--co2=0.05"]


@pytest.mark.parametrize(
    "wrong", [{"period": "soon"}, {"period": "0h"}, {"period": "--html=x"}, {"co2": "much"}, {"at": "1e999"}]
)
def test_nothing_else_becomes_a_flag(asked: Callable[..., list[str]], wrong: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        asked(**wrong)


def test_it_is_told_on_the_machine_of_the_home_only(tmp_path: Path) -> None:
    spent = spent_of(Home(tmp_path, elsewhere=tmp_path / "theirs.sock"))
    with pytest.raises(Conflict):
        spent(cast(Client, _Client()), {})
