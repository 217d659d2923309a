"""Two futures side by side, and a log run once more with something changed."""

from pathlib import Path

import pytest

from poise.control.forecast import Target
from poise.drivers.logfile import write_log
from poise.engine.futures import Change
from poise.engine.lookahead import Bounds
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.model.events import encode_event
from poise.model.jobs import Priority
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.compare import Asked, compare
from poise_lab.traces.options import Options
from poise_lab.what_if import WhatIf, more_nodes, recorded, replay_changed, what_if
from unit.engine.test_futures import stopped
from unit.engine.test_twin import node

FIFO = policy_named("fifo")
BOTH = (FIFO, FIFO)


def asked(change: Change, *jobs: str, policy: str = "fifo") -> WhatIf:
    """One device; nine jobs of ten seconds are done, one runs, two wait."""
    run, now = stopped("fifo", [10.0] * 12, at=95)
    ledger = run.twin.ledger
    targets = [Target(ledger.jobs[job], tuple(unit.id for unit in ledger.jobs[job].units), job) for job in jobs]
    before = ledger.encode()
    both = (policy_named(policy), policy_named(policy))
    told = what_if(ledger, Settings(), now, both, change, ["changed"], targets, bounds=Bounds(10))
    assert ledger.encode() == before
    return told


def middles(told: WhatIf) -> dict[str, tuple[int | None, int | None, int | None]]:
    return {figure.figure: (figure.now.p50, figure.then.p50, figure.difference.p50) for figure in told.figures}


def test_one_more_node_takes_what_waits() -> None:
    told = middles(asked(Change(joined=(node("n2"),)), "j11"))
    now, then, difference = told["j11 starts in"]
    assert now == pytest.approx(5 * SECOND, rel=0.5)
    assert then == 0
    assert difference == -(now or 0)
    assert told["orders to yield"] == (0, 0, 0)


def test_without_its_only_node_nothing_ends() -> None:
    told = middles(asked(Change(lost=("n1",))))
    assert told["all has ended in"][1:] == (None, None)


def test_another_priority_is_served_first() -> None:
    told = middles(asked(Change(priorities={"j12": Priority.HIGH}), "j11", "j12", policy="poise"))
    assert told["j12 starts in"][0] == told["j11 ends in"][0]
    assert told["j12 starts in"][1] == told["j11 starts in"][0]
    assert told["j11 starts in"][1] == told["j12 ends in"][1]


def test_the_same_differs_in_nothing() -> None:
    assert {difference for _, _, difference in middles(asked(Change(), "j11")).values()} == {0}


def test_what_is_added_is_like_what_is_there() -> None:
    here = [node("n1", gpus=4, model="A100-80"), node("n2")]
    [added] = more_nodes("2xA100-80", here, 1)
    assert (added.name, len(added.devices), added.cpu) == ("added-1", 2, here[0].cpu // 2)
    assert len({device.uuid for device in added.devices}) == 2
    assert [of.name for of in more_nodes("2xn2", here, 2)] == ["added-2-1", "added-2-2"]
    [of_catalogue] = more_nodes("8xH100", here, 3)
    assert of_catalogue.devices[0].rates
    for wrong in ("A100-80", "0xA100-80", "2xA100", "3xnothing"):
        with pytest.raises(SpecError) as error:
            more_nodes(wrong, [node("n2")], 1)
        assert error.value.record.hint


def test_a_log_is_run_again_with_one_more_node(tmp_path: Path) -> None:
    run, _ = stopped("fifo", [10.0] * 4, at=1000)
    log = tmp_path / "yesterday.log"
    write_log(log, map(encode_event, run.events), start=None, written_by="0.1.0")
    known = recorded(run.events)
    assert list(known.nodes) == ["n1"]
    told = replay_changed(log, known, BOTH, Change(joined=(node("n2"),)), ["with 1xn1 more"])
    assert (told.now.makespan, told.then.makespan, told.remarks) == (40 * SECOND, 20 * SECOND, ())
    bare = node("n2", gpus=0)
    [remark] = replay_changed(log, known, BOTH, Change(lost=("n1",), joined=(bare,)), ["without n1"]).remarks
    assert remark.startswith("4 jobs refused under fifo: `main` requests more than any node has (the first: ")


def test_policies_are_compared_on_a_log_and_the_nodes_that_it_has_recorded(tmp_path: Path) -> None:
    run, _ = stopped("fifo", [10.0] * 4, at=1000)
    log = tmp_path / "yesterday.log"
    write_log(log, map(encode_event, run.events), start=None, written_by="0.1.0")
    told = compare(Asked(trace=log, fleet=None), ["sjf"])
    assert (told.fleet, told.nodes, told.trials[0].measures.makespan) == ("its own nodes", 1, 40 * SECOND)
    csv = tmp_path / "trace.csv"
    csv.write_text("submit,duration,gpus\n0,1,1\n")
    columns = Options(columns={"submit": "submit", "duration": "duration", "gpus": "gpus"})
    other = compare(Asked(trace=csv, fleet=log, options=columns), ["fifo"])
    assert other.nodes == 1
    with pytest.raises(SpecError, match="a trace that is not a log of Poise needs a fleet"):
        compare(Asked(trace=csv, fleet=None), ["fifo"])


def test_of_nothing_there_is_nothing_to_compare() -> None:
    run, now = stopped("fifo", [10.0], at=95)
    assert what_if(run.twin.ledger, Settings(), now, BOTH, Change(), [], [], bounds=Bounds(2)).figures == ()
