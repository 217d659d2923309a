"""Tuning: what is proposed is a policy, what is worse is not chosen, and the same seed finds the same."""

import json
from math import inf
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from poise.cli.main import main
from poise.drivers.plugins import choose, choose_document
from poise.drivers.yamlfile import load_yaml
from poise.errors import Conflict, InputError, SpecError
from poise.model.worlds import Row
from poise.policy.recipe import RECIPES
from poise.units import DAY, HOUR, SECOND
from poise_lab.cli.tune import apply, put_in_shadow
from poise_lab.compare import Asked, load
from poise_lab.traces.options import Options
from poise_lab.tune import (
    Tuned,
    _told,
    document_of,
    front_of,
    knee_of,
    knobs_of,
    objectives_named,
    parts_of,
    recipe_of,
    tune,
    values_of,
)

FLEET = Path(__file__).resolve().parents[3] / "examples" / "cluster.yaml"


def asked(jobs: int = 90, seed: int = 1) -> Asked:
    return Asked(trace=Path(f"poisson:jobs={jobs},rate=60"), fleet=FLEET, options=Options(seed=seed), seed=seed)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_values_of_a_recipe_give_that_recipe(recipe: object) -> None:
    """And values at each end of each range give a policy that is taken."""
    assert isinstance(recipe, type(RECIPES[0]))
    knobs = knobs_of(recipe)
    made = choose_document(document_of(recipe, values_of(recipe, knobs), "again")).recipe
    assert made is not None
    assert replace(made, name=recipe.name) == recipe
    for end in ("low", "high"):
        values = {knob.path: knob.choices[-1] if knob.choices else getattr(knob, end) for knob in knobs}
        if end == "low":  # all weights at 0 are none
            values |= {path: 0.5 for path in values if path.startswith("score.")}
        whole = {knob.path: int(values[knob.path]) for knob in knobs if knob.whole}
        choose_document(document_of(recipe, values | whole, "ends"))


def test_a_policy_without_numbers_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(SpecError, match="is no recipe"):
        recipe_of("tiresias")


def test_a_front_has_what_no_other_beats() -> None:
    assert front_of([(1, 5), (2, 2), (5, 1), (3, 3), (2, 2), (0, inf)]) == [0, 1, 2]


def test_the_knee_weighs_a_gain_like_the_same_loss() -> None:
    assert knee_of([(0.5, 3.0), (0.8, 1.0), (2.0, 0.5)], (1.0, 1.0)) == 1


def test_objectives_are_told_where_one_is_unknown() -> None:
    assert [one.name for one in objectives_named("jct, p99wait")] == ["jct", "p99wait"]
    for wrong in ("", "jct,jct", "jct,speed"):
        with pytest.raises(SpecError, match="no objectives"):
            objectives_named(wrong)


def test_the_parts_follow_each_other_and_each_begins_at_its_first_job() -> None:
    workload = load(asked()).workload
    parts = parts_of(workload)
    assert [len(part.arrivals) for part in parts] == [30, 30, 30]
    assert {part.arrivals[0].at for part in parts} == {0}
    units = [one.units for part in parts for one in part.arrivals]
    assert units == [one.units for one in workload.arrivals]
    with pytest.raises(InputError, match="too short") as raised:
        parts_of(replace(workload, arrivals=workload.arrivals[:40]))
    assert raised.value.record.hint == "a longer trace", "`--jobs` only makes it shorter"


def test_what_is_told_of_the_same_policy_is_never_better() -> None:
    rows = [(f"j{at}", at * HOUR // DAY, Row(at * SECOND, 0, 0, 0, 0, 1)) for at in range(1, 300)]
    told = _told(rows, rows, 1)
    assert told.completion is not None
    assert (told.completion.low, told.completion.high) == (0, 0)


def test_the_same_seed_finds_the_same_with_any_number_of_processes() -> None:
    pytest.importorskip("optuna")
    told, again = (
        tune(asked(), "poise", objectives_named("jct,p99wait"), evaluations=12, processes=processes)
        for processes in (1, 2)
    )
    assert told == again
    assert (told.evaluations, told.jobs, told.told.jobs) == (12, (30, 30, 30), 30)
    assert any(point.number == told.knee for point in told.front)
    assert front_of([tuple(point.objectives.values()) for point in told.front]) == list(range(len(told.front)))
    assert choose_document(told.document).recipe is not None


def test_the_command_applies_what_is_better_and_refuses_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    trace, fleet = str(asked().trace), str(FLEET)
    line = ["tune", "--trace", trace, "--fleet", fleet, "--evaluations", "10", "--processes", "1", "--json"]
    assert main(line) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["evaluations"], told["objectives"], told["digests"]["optuna"] != "") == (10, ["jct", "p99wait"], True)
    found = msgspec.convert(told, Tuned)
    path = tmp_path / "ours.yaml"
    with pytest.raises(Conflict, match="is not applied: its mean completion may be no better"):
        apply(replace(found, no_better="its mean completion may be no better"), path)
    assert not path.exists()
    apply(replace(found, no_better=""), path)
    assert choose(str(path)).label.startswith("tuned@")
    assert f"seed {told['seed']}" in path.read_text()
    assert f"`poise shadow start {path}` puts it in shadow" in capsys.readouterr().err


def test_a_policy_may_have_the_name_of_a_number_and_must_have_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    path = tmp_path / "7.yaml"
    document = {"kind": "policy", "name": "7", "extends": "poise", "score": {"fit": 0.25, "spread": None}}
    put_in_shadow(path, ["a study"], document, document)
    assert load_yaml(path) == document
    for command in ("tune", "learn"):
        line = [command, "--trace", str(asked().trace), "--fleet", str(FLEET)]
        assert main([*line, "--apply", str(tmp_path / "my own.yaml")]) == 1
        assert "a name has at most 63 letters" in capsys.readouterr().err
