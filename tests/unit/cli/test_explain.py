"""`poise explain`, drawn."""

import re
from pathlib import Path

import msgspec
import pytest

from poise.cli.explain import _draw_explanation, _tell_requests
from poise.config import Cluster, Home
from poise.drivers.clusters import keep_clusters, lock_of, write_requests
from poise.drivers.lock import take_lock
from poise.model.reports.demand import Prospect
from poise.model.reports.status import Request
from poise.testing import World
from poise.units import HOUR, MINUTE, SECOND
from unit.asking import explained


def test_who_preempts_what_it_waits_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    world = World("poise").nodes(1, cpu=2).job("low", cpu=2, priority="low", expect="10m").round().start("low")
    world.after("1s").job("urgent", cpu=2, priority="urgent", expect="10s").job("next", cpu=2, expect="10m").round()
    _draw_explanation(explained(world, "next"))
    assert "; j2.main preempts it first" in capsys.readouterr().out
    _draw_explanation(explained(world, "urgent"))
    shown = capsys.readouterr().out
    assert re.search(r"or preempts     j1\.main in (29|30)\.\d s", shown), shown
    assert "preempts it first" not in shown


def test_the_machines_that_a_cluster_was_asked_for_are_told_of_a_job_that_waits_for_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, cluster = Home(tmp_path), Cluster(name="slurm", listen="0.0.0.0:7718")
    keep_clusters(home, cluster)
    write_requests(home, cluster, [Request(text="job 7, 1 node of main: pending, Priority")])
    world = World("poise").job("a", cpu=1).job("b", cpu=1, after=["j1"]).round()
    _tell_requests(home, explained(world, "a"))
    assert capsys.readouterr().err == "", "nobody keeps its agents now"
    with take_lock(lock_of(home, cluster), "keeper"):
        _tell_requests(home, explained(world, "a"))
        assert capsys.readouterr().err == "poise: Slurm: job 7, 1 node of main: pending, Priority\n"
        _tell_requests(home, explained(world, "b"))
        assert capsys.readouterr().err == "", "more room would not help it"
        write_requests(home, cluster, [Request(text="of a", job="j1"), Request(text="of another", job="j2")])
        _tell_requests(home, explained(world, "a"))
        assert capsys.readouterr().err == "poise: Slurm: of a\n"


def test_what_was_foreseen_of_a_run_that_took_longer_is_told_as_past(capsys: pytest.CaptureFixture[str]) -> None:
    world = World("poise").nodes(1, cpu=2).job("late", cpu=2, expect="10s").round().start("late").after("1s").round()
    _draw_explanation(explained(world, "late"))
    shown = capsys.readouterr().out
    assert "  foreseen " in shown and "was foreseen" not in shown
    _draw_explanation(explained(world.after("5m"), "late"))
    shown = capsys.readouterr().out
    assert "its estimate was updated" in shown and "  was foreseen " in shown


def test_the_clusters_on_which_work_may_run_are_compared_in_the_order_of_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = explained(World("poise").job("a", cpu=1).round(), "a")
    prospects = (
        Prospect(substrate="ray", why="it is full"),
        Prospect(substrate="", start=HOUR, late=HOUR, end=2 * HOUR),
        Prospect(substrate="slurm", chosen=True, start=40 * SECOND, late=2 * MINUTE, end=MINUTE),
    )
    _draw_explanation(msgspec.structs.replace(told, prospects=prospects))
    lines = capsys.readouterr().out.splitlines()
    title = next(number for number, line in enumerate(lines) if line.startswith("clusters, in the order"))
    assert lines[title + 1 : title + 4] == [
        "  * slurm: expected to start in 40.0 s (P90: 2m0s) and to end in 1m0s",
        "    existing nodes: expected to start in 1h0m (P90: 1h0m) and to end in 2h0m",
        "    ray: it is full",
    ]
