"""Who used what, and the charge, from the log."""

from datetime import UTC, datetime

import pytest
from msgspec import structs

from poise.cli.usage import open_metrics
from poise.kernel.accounts import Accounts
from poise.kernel.ledger import Ledger
from poise.model.intensity import compile_intensity
from poise.model.power import POWER, Rates
from poise.model.reports.tenants import UsageRow
from poise.model.resources import Device
from poise.testing import WALL, World, node
from poise.units import HOUR


def accounts(world: World) -> Accounts:
    made = Accounts(Ledger())
    for event in world.log:
        made.add(event)
    return made


def test_what_was_held_is_charged_to_tenant_project_and_user() -> None:
    world = World().join(node("n1", cpu=8, gpus=2))
    world.submit({"run": "x", "project": "vision", "resources": {"gpu": 2}}, user="ann", tenant="research")
    world.submit({"run": "x", "resources": {"cpu": 4}}, user="bob", tenant="product")
    world.round().start("j1", "j2").after("2h").finish("j1", run="2h").after("1h")
    told = accounts(world).usage(0, world.now, ("tenant", "project", "user", "model"))
    rows = {(row.tenant, row.project, row.user, row.model): row for row in told}
    ann, bob = rows["research", "vision", "ann", "gpu"], rows["product", "", "bob", ""]
    assert (round(ann.device_hours, 2), ann.core_hours, round(ann.charge, 2)) == (4.0, 0.0, 4.0)
    assert (bob.device_hours, round(bob.core_hours, 2), round(bob.charge, 2)) == (0.0, 12.0, 0.36)


def test_a_run_over_midnight_is_of_two_days_and_one_attempt() -> None:
    world = World().join(node("n1", cpu=8, gpus=1)).job("a", gpu=1).round().start("a").after("30h")
    rows = accounts(world).usage(0, world.now, ("day", "tenant"))
    assert len(rows) >= 2 and sum(row.attempts for row in rows) == 1
    assert abs(sum(row.device_hours for row in rows) - 30) < 0.01
    late = accounts(world).usage(world.now - HOUR, world.now, ("tenant",))
    assert abs(late[0].device_hours - 1) < 0.01


def test_co2_and_the_price_of_electricity_are_those_of_each_hour_and_day() -> None:
    """A device of 400 W is held from 23:13:20 to 01:13:20; the hours have 0.4, 0.1 and 1.0 per kWh."""
    device = Device(index=0, memory=2**34, power=400_000)
    world = World().join(structs.replace(node("n1", cpu=8), devices=(device,))).after("1h")
    world.job("a", gpu=1).round().start("a").after("2h").finish("a", run="2h")
    assert WALL % 86400 == 22 * 3600 + 800
    day, next_day = (f"{datetime.fromtimestamp(WALL + later, UTC):%Y-%m-%d}" for later in (0, 86400))
    values = {"kind": "intensity", "dated": [{"from": f"{day}T23:00", "hours": [0.4, 0.1, 1.0]}]}
    above = 0.4 * (POWER.busy - POWER.idle)
    expected = [above * 2800 / 3600 * 0.4, above * (0.1 + 800 / 3600 * 1.0)]
    for unit, figure in (("kg/kWh", "co2"), ("$/kWh", "electricity")):
        of = compile_intensity(values | {"unit": unit})
        rows = accounts(world).usage(0, world.now, ("day",), rates=Rates(intensity=of))
        assert [row.day for row in rows] == [day, next_day]
        assert [getattr(row, figure) for row in rows] == pytest.approx(expected, abs=1e-5)
        assert [row.energy for row in rows] == pytest.approx([above * 2.8e6, above * 4.4e6], abs=10)
        assert [row.hourly for row in rows] == pytest.approx([row.energy for row in rows])
    rows = accounts(world).usage(0, world.now, ("day",), rates=Rates(0.5))
    assert [row.co2 for row in rows] == pytest.approx([row.energy / 3.6e6 * 0.5 for row in rows])
    assert [(row.hourly, row.electricity) for row in rows] == [(0, 0)] * 2


def test_prices_are_those_of_the_shares() -> None:
    world = World().join(node("n1", cpu=8, gpus=1)).shares({"tenant": "a"}, prices={"gpu": 7})
    world.job("a", gpu=1).round().start("a").after("2h")
    assert round(accounts(world).usage(0, world.now, ())[0].charge) == 14


def test_metrics_escape_their_labels() -> None:
    text = open_metrics([UsageRow(tenant='a"\\\n', device_hours=1.5, charge=2.0)], ["tenant"])
    assert 'poise_usage_device_hours{tenant="a\\"\\\\\\n"} 1.5' in text
    assert "poise_usage_co2e_kilograms{" in text and "poise_usage_electricity_dollars{" in text
    assert text.endswith("# EOF\n")
