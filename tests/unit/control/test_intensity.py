"""Work that can wait begins at the best time of the home's electricity."""

from pathlib import Path
from typing import Any

import pytest

from poise.control.intensity import UNKNOWN, Intensities
from poise.errors import SpecError
from poise.model.jobs import Ending
from poise.model.profiles import Profile
from poise.model.spec import Compiled, compile_spec
from poise.units import HOUR, format_duration

FILE = "kind: intensity\nunit: {unit}\nhours: [{hours}]\n"
EVENING = (4 * 24 + 20) * 3600.0


def file(path: Path, clean: int = 6, unit: str = "kg/kWh") -> Path:
    """A file whose first hours of the day are clean."""
    path.write_text(FILE.format(unit=unit, hours=", ".join(["0.2"] * clean + ["0.4"] * (24 - clean))))
    return path


def job(**fields: Any) -> Compiled:
    return compile_spec({"run": "x", **fields}, wall=EVENING)


def test_a_flexible_job_begins_when_electricity_is_clean_and_says_why(tmp_path: Path) -> None:
    known = Intensities(file(tmp_path / "intensity.yaml"), lambda: 0.2)
    placed = known.placed_in_time(job(flexible="12h", expect="1h"), EVENING, {})
    begin = placed.units[0].begin
    assert 4 * HOUR <= begin <= 6 * HOUR
    words = f"begins in {format_duration(begin)}, when electricity is cleaner: 0.2 kg/kWh in the mean, 0.4 now"
    assert placed.note == words
    assert known.placed_in_time(job(expect="1h"), EVENING, {}) == job(expect="1h")
    cheap = Intensities(file(tmp_path / "price.yaml", unit="$/kWh"), lambda: 0.2)
    assert "cheaper" in cheap.placed_in_time(job(flexible="12h"), EVENING, {}).note


def test_the_usual_run_of_the_class_counts(tmp_path: Path) -> None:
    """Of a run of nine hours, most can be clean from eleven hours on only if it begins early."""
    known = Intensities(file(tmp_path / "intensity.yaml"), lambda: 0.2)
    profile = Profile().observe(Ending(outcome="done", run=9 * HOUR))
    placed = known.placed_in_time(job(flexible="12h", **{"class": "long"}), EVENING, {"long": profile})
    assert 0 < placed.units[0].begin <= 4 * HOUR


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = file(tmp_path / "intensity.yaml")
    known = Intensities(path, lambda: 0.2)
    assert known.placed_in_time(job(flexible="12h"), EVENING, {}).units[0].begin
    file(path, clean=24, unit="$/kWh")
    assert known.placed_in_time(job(flexible="12h"), EVENING, {}).units[0].begin == 0


def test_without_a_file_or_with_a_wrong_one_it_is_refused(tmp_path: Path) -> None:
    for known in (UNKNOWN, Intensities(tmp_path / "missing.yaml")):
        with pytest.raises(SpecError, match="does not know") as caught:
            known.placed_in_time(job(flexible="1h"), EVENING, {})
        assert caught.value.record.field == "flexible"
    wrong = tmp_path / "intensity.yaml"
    wrong.write_text("kind: intensity\nhours: [1, 2]\n")
    with pytest.raises(SpecError, match="number of hours"):
        Intensities(wrong).placed_in_time(job(flexible="1h"), EVENING, {})
    assert Intensities(wrong).valid() is None
