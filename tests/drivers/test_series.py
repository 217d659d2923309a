"""Files of bounded size that say how busy each node has been."""

from pathlib import Path

import pytest

from poise.drivers.series import MAGIC, Series
from poise.errors import StoreDamaged
from poise.model.usage import DAY, HOUR, HOURS, MINUTE, MINUTES, SIGNALS, UNKNOWN, Window

START = 1_700_000_000 // HOUR * HOUR


def window(at: int, cpu: int) -> Window:
    of = (cpu, *[UNKNOWN] * (len(SIGNALS) - 1))
    return Window(at, of, of)


def test_windows_come_back_in_order(tmp_path: Path) -> None:
    series = Series(tmp_path / "series")
    for minute in (2, 0, 1):
        series.add("n1", [window(START + minute * MINUTE, minute)])
    minutes, hours = series.read("n1", START + HOUR)
    assert minutes == [window(START + minute * MINUTE, minute) for minute in range(3)]
    assert [(hour.at, hour.mean[0], hour.most[0]) for hour in hours] == [(START, 1, 2)]
    assert series.read("n2", START + HOUR) == ([], [])


def test_a_minute_that_is_told_again_counts_once(tmp_path: Path) -> None:
    series = Series(tmp_path)
    for cpu in (100, 300):
        series.add("n1", [window(START, cpu)])
    minutes, hours = series.read("n1", START)
    assert minutes == [window(START, 300)]
    assert hours == [window(START, 300)]


def test_what_is_older_than_the_ring_is_gone_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    """Two days and a bit: a day of minutes is left, and all of the hours."""
    series = Series(tmp_path)
    end = START + 2 * DAY + 90 * MINUTE
    series.add("n1", [window(at, at % 1000) for at in range(START, end, MINUTE)])
    size = (tmp_path / "n1.series").stat().st_size
    minutes, hours = series.read("n1", end)
    assert [one.at for one in minutes] == list(range(end - DAY, end, MINUTE))
    assert len(minutes) == MINUTES
    assert [one.at for one in hours] == list(range(START, end, HOUR))
    series.add("n1", [window(at, 1) for at in range(end, end + DAY, MINUTE)])
    assert size <= (tmp_path / "n1.series").stat().st_size < 400_000
    assert series.read("n1", end + HOURS * HOUR + DAY) == ([], [])


def test_a_window_that_was_torn_is_left_out(tmp_path: Path) -> None:
    series = Series(tmp_path)
    series.add("n1", [window(START, 1), window(START + MINUTE, 2)])
    path = tmp_path / "n1.series"
    data = bytearray(path.read_bytes())
    place = next(number for number in range(len(MAGIC), len(data)) if data[number])
    data[place + 9] ^= 1
    path.write_bytes(data)
    assert [one.mean[0] for one in series.read("n1", START + HOUR)[0]] == [2]


def test_a_file_that_is_none_of_ours_is_refused_and_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "n1.series").write_bytes(b"something else that is longer than a head")
    series = Series(tmp_path)
    with pytest.raises(StoreDamaged) as refused:
        series.read("n1", START)
    assert "rm " in refused.value.record.hint
    series.add("n1", [window(START, 1)])
    assert series.read("n1", START)[0] == [window(START, 1)]


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    series = Series(tmp_path / "series")
    for name in ("../escaped", "..", "a/b", ""):
        series.add(name, [window(START, 1)])
        assert series.read(name, START)[0] == [window(START, 1)]
    assert {path.name for path in tmp_path.iterdir()} == {"series"}


def test_nodes_that_are_no_more_are_forgotten(tmp_path: Path) -> None:
    series = Series(tmp_path)
    for name in ("n1", "n2"):
        series.add(name, [window(START, 1)])
    series.forget(["n2"])
    assert [path.name for path in tmp_path.iterdir()] == ["n2.series"]


def test_one_that_was_begun_on_a_full_disk_tells_nothing_yet(tmp_path: Path) -> None:
    series = Series(tmp_path)
    for begun in (b"", MAGIC[:5], MAGIC):
        (tmp_path / "n1.series").write_bytes(begun)
        assert series.read("n1", START) == ([], [])


def test_a_damaged_file_costs_the_profile_of_its_own_node_only(tmp_path: Path) -> None:
    series = Series(tmp_path)
    series.add("n1", [window(START, 1)])
    (tmp_path / "n2.series").write_bytes(b"something else that is longer than a head")
    (tmp_path / "n3.series").mkdir()
    well, other, folder = series.profiles(["n1", "n2", "n3"], START)
    assert (well.minutes, other.minutes, folder.minutes) == (1, 0, 0)
    assert other.why == f"this is not a load history of a node, `rm {tmp_path}/n2.series`: it is begun anew"
    assert "this load history cannot be read, Is a directory, `ls -ld " in folder.why


def test_a_control_plane_starts_whatever_lies_in_the_place_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "folder" / "of-somebody").mkdir(parents=True)
    (tmp_path / "folder" / "n1.series").write_bytes(MAGIC)
    (tmp_path / "file").write_bytes(b"")
    for place in ("folder", "file", "none"):
        Series(tmp_path / place).forget([])
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["of-somebody"]
    assert "cannot be read" in Series(tmp_path / "file").profiles(["n1"], START)[0].why
