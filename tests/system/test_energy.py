"""The CO2e of live work by the hours in which it used energy, as typed."""

import time
from datetime import UTC, datetime

import pytest

from system.living import Living

FLEET = """
kind: fleet
name: lab
nodes:
  hopper: {cpu: 4, memory: 8GiB, devices: [{model: H100, count: 2}]}
"""
KWH = 3.6e6
EXACT = 1e-5
"""Rounding of the times of an attempt of one second."""


def values(living: Living, *hours: float, begins: float, unit: str = "kg/kWh") -> None:
    """Values of the hour in which a time lies, and of the ones after it."""
    first = f"{datetime.fromtimestamp(begins - begins % 3600, UTC):%Y-%m-%dT%H:%M}"
    text = f"kind: intensity\nunit: {unit}\ndated:\n  - {{from: {first}, hours: {[*hours]}}}\n"
    living.home.intensity.write_text(text, encoding="utf-8")


def test_reports_and_usage_have_the_values_of_the_file_as_it_is_and_say_where_it_has_none(living: Living) -> None:
    living.file("fleet.yaml", FLEET)
    living.up("--fleet", "fleet.yaml")
    values(living, 0.25, 0.25, begins=time.time())  # a test takes less than an hour, but may run at the end of one
    assert living.poise("run", "--gpu", "1", "--", "sleep", "1").code == 0

    told = living.poise("report", "--json").value
    [job], bill = told["jobs"], told["bill"]
    assert bill["energy"] > job["energy"] > 0
    assert (bill["co2"], bill["hourly"]) == pytest.approx((bill["energy"] / KWH * 0.25, bill["energy"]), rel=EXACT)
    assert job["co2"] == pytest.approx(job["energy"] / KWH * 0.25, rel=EXACT)
    [row] = living.poise("usage", "--by", "tenant", "--json").value
    assert (row["energy"], row["co2"]) == pytest.approx((job["energy"], job["co2"]), rel=EXACT)
    assert "CO2e by hour from `intensity.yaml`)" in living.poise("report").text

    values(living, 0.25, begins=time.time() - 7 * 86400)  # values of last week only, while the control plane runs
    told = living.poise("report", "--co2", "0.5", "--json").value
    assert told["jobs"][0]["co2"] == pytest.approx(told["jobs"][0]["energy"] / KWH * 0.5)
    assert "for 0 % of the energy, the rest at 0.5 kg per kWh" in living.poise("report", "--co2", "0.5").text
    assert "for 0 % of the energy, the rest at 0.473 kg per kWh" in living.poise("usage").err

    values(living, 0.4, 0.4, begins=time.time(), unit="$/kWh")
    told = living.poise("report", "--json").value
    assert told["jobs"][0]["electricity"] == pytest.approx(told["jobs"][0]["energy"] / KWH * 0.4, rel=EXACT)
    assert told["jobs"][0]["co2"] == pytest.approx(told["jobs"][0]["energy"] / KWH * 0.473)

    living.home.intensity.write_text("kind: intensity\ndated:\n  - {from: soon, hours: [0.3]}\n", encoding="utf-8")
    for command in ("report", "usage"):
        error = living.poise(command, "--json").error
        assert (error["field"], "intensity.yaml:3:" in error["at"]) == ("dated[0].from", True), error
