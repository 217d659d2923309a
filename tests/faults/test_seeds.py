"""Seeds: every promise at every step, the same on any machine, smaller when one fails, kept for ever."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from many import many

from faults.planted import BUGS, PROMISES, digests_under, first_seed
from poise.drivers.nemeses import read_scenario, shipped
from poise.engine.scenario import scenario_of
from poise.engine.seeds import nemeses_of, shrink, try_scenario, try_seed
from poise.units import SECOND

KEPT = sorted((Path(__file__).parent.parent / "seeds").glob("*.json"))


def test_many_seeds_break_no_promise() -> None:
    program = [sys.executable, "-m", "poise.cli.main", "faults", "--seeds", "60", "--json"]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    summary = json.loads(ran.stdout)
    assert summary["broken"] == []
    assert ran.returncode == 0
    assert summary["seeds"] == 60
    missing = {spec.fault for nemesis in shipped().values() for spec in nemesis.faults} - summary["faults"].keys()
    assert not missing, "a fault that no seed has met proves nothing"


def test_the_same_seeds_come_to_the_same_wherever_texts_hash_otherwise() -> None:
    first, other = (digests_under(hash_seed, 1, 5) for hash_seed in ("0", "4711"))
    assert len(set(first)) == 5
    assert first == other


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_a_seed_once_broke_holds(path: Path) -> None:
    outcome = try_scenario(read_scenario(path))
    assert outcome.what == ""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """First by the scenario that found it before; if the world has changed since, by searching again."""
    kept = Path(__file__).parent.parent / "seeds" / f"{bug}.json"
    if kept.exists():
        with BUGS[bug]():
            if try_scenario(read_scenario(kept)).promise in PROMISES[bug]:
                return
    seed, what = first_seed(bug)
    assert seed, "no seed of 2,000 finds it"
    assert what


def test_a_failure_is_made_smaller_and_still_fails() -> None:
    known = shipped()
    with BUGS["retry-without-idempotence"]():
        seed, _ = first_seed("retry-without-idempotence")
        whole = scenario_of(seed, nemeses_of(seed, known))
        promise = try_scenario(whole).promise
        small = shrink(whole, promise)
        assert try_scenario(small).promise == promise == "S3"
    assert len(small.incidents) + len(small.acts) < (len(whole.incidents) + len(whole.acts)) / 4
    assert try_scenario(small).promise == ""


def test_losing_one_message_in_twenty_costs_little() -> None:
    """Row 7 of the fault matrix: at least four fifths of what is done by a time without any loss."""
    known = shipped()
    half_way = 30 * SECOND
    done = {
        names: sum(
            try_scenario(scenario_of(seed, [known[name] for name in names]), until=half_way).starts
            for seed in range(1, many(8, 15) + 1)
        )
        for names in ((), ("lossy-a-little",))
    }
    assert done["lossy-a-little",] >= 0.8 * done[()]


def test_a_seed_tells_which_faults_it_met() -> None:
    outcome = try_seed(7, shipped(), ["crashes", "disk"])
    assert outcome.promise == ""
    assert outcome.nemeses == ("crashes", "disk")
    assert outcome.met.keys() & {"kill-control", "kill-agent"}
    assert outcome.starts > 0
