"""The excerpt is what its README says it is; the table marks the best of each column, whichever policy it is."""

import csv
from datetime import datetime, timedelta

from poise.drivers.yamlfile import load_kind
from poise.model.fleetfile import compile_fleet
from poise.model.jobs import Priority
from poise_lab.demo import compared
from poise_lab.demo.compared import Standing
from poise_lab.demo.excerpt import EVERY, GRACE, SLACK, WEEK
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options


def test_every_fourth_job_of_the_week_is_urgent_and_due() -> None:
    with (compared.FOLDER / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 266
    moments = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    assert moments == sorted(moments)
    assert all(WEEK[0] <= moment < WEEK[1] for moment in moments)
    for place, (row, moment) in enumerate(zip(rows, moments, strict=True), 1):
        assert row["priority"] == ("urgent" if place % EVERY == 0 else "medium")
        if place % EVERY:
            assert row["deadline"] == ""
        else:
            due = moment + SLACK * timedelta(seconds=float(row["duration"])) + GRACE
            assert datetime.fromisoformat(row["deadline"]) == due


def test_all_of_it_is_read_and_the_fleet_does_as_much_in_a_week() -> None:
    workload = read_trace(compared.FOLDER / "jobs.csv", Options(columns=compared.COLUMNS))
    assert not workload.skipped
    units = [unit for arrival in workload.arrivals for unit in arrival.units]
    assert sum(bool(unit.deadline) for unit in units) == sum(unit.priority == Priority.URGENT for unit in units) == 66
    fleet = compile_fleet(load_kind(compared.FOLDER / "fleet.yaml", "fleet"))
    speeds = {model.partition("@")[2]: rate for model, rate in fleet.throughputs.items()}
    models = [device.model for node in fleet.nodes for device in node.devices]
    does = sum(speeds[model] for model in models) / speeds["V100"]
    with (compared.FOLDER / "jobs.csv").open(newline="") as file:
        asked = sum(float(row["duration"]) * int(row["num_gpus"]) for row in csv.DictReader(file)) / (7 * 24 * 3600)
    assert abs(does - asked) < 0.5


def standing(policy: str, **figures: float) -> Standing:
    plain = {"met": 1, "deadlines": 2, "urgent_wait": 5, "other_wait": 5, "completion": 5, "held": 0.5, "preempted": 3}
    return Standing(policy=policy, **(plain | figures))  # type: ignore[arg-type]


def test_the_best_of_a_column_may_be_a_baseline() -> None:
    rows = [standing("poise", met=2, preempted=3), standing("fifo", completion=4, preempted=0, held=0.4)]
    best = {
        column.title: [row.policy for row in rows if column.value(row) == compared.best(column, rows)]
        for column in compared.TABLE
    }
    assert best == {
        "deadlines met": ["poise"],
        "P95 wait, urgent": ["poise", "fifo"],
        "P95 wait, others": ["poise", "fifo"],
        "mean completion": ["fifo"],
        "devices in use": ["poise"],
        "preemptions": ["fifo"],
    }
