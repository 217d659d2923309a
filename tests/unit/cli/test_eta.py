"""`poise eta` and `poise what-if` as typed, on exported logs of small worlds."""

import json
from pathlib import Path

import pytest

from poise.cli import offline
from poise.cli.main import main
from poise.drivers.logfile import write_log
from poise.drivers.sqlite import SqliteStore
from poise.model.events import Event, decode_event, encode_event
from poise.testing import World
from poise.units import SECOND
from unit.engine.test_futures import stopped


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four jobs of ten seconds on one device."""
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    run, _ = stopped("fifo", [10.0] * 4, at=1000)
    write_log(tmp_path / "run.log", map(encode_event, run.events), start=None, written_by="0.1.0")
    return tmp_path / "run.log"


def test_a_log_is_looked_back_at(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eta", "--check", "--from", str(log), "--futures", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["submitted"], told["finish"]["count"]) == (4, 4)


def test_a_log_is_run_with_a_change(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--from", str(log), "--add", "1xn1", "--policy", "sjf"]) == 0
    out = capsys.readouterr().out
    assert "if: policy sjf, with 1xn1 more" in out
    [makespan] = [line for line in out.splitlines() if line.startswith("makespan")]
    assert makespan.split() == ["makespan", "40.0", "s", "20.0", "s"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("eta", "`poise run -- echo hello`, or POISE_HOME"),
        ("eta --from LOG", "`poise eta --check --from LOG`"),
        ("eta --check --from nowhere", "a log.db of a home, or an exported log"),
        ("eta --budget 0", "--budget 30s"),
        ("what-if --from LOG --without n1", "keep one, or add some with `--add`"),
        ("what-if --from LOG --without n2", "`poise nodes`"),
        ("what-if --from LOG --policy fif", "did you mean `fifo`?"),
        ("what-if --from LOG --add 1xA100", "--add 1xA100-40"),
    ],
)
def test_errors_say_what_to_type(log: Path, capsys: pytest.CaptureFixture[str], typed: str, hint: str) -> None:
    arguments = [str(log) if word == "LOG" else word for word in typed.split()]
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == hint


def written(world: World, home: Path) -> None:
    """The log of a world as that of a home."""
    home.mkdir()
    store: SqliteStore[Event] = SqliteStore(home / "log.db", encode_event, decode_event)
    store.append(world.log, expected=0)
    store.close()


def test_the_rest_of_a_graph_is_unknown_if_a_run_time_in_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    a, b = {"run": "a", "expect": "5s"}, {"run": "b", "needs": ["a"]}
    world = World().nodes(1)
    world.graph("guessed", tasks={"a": a, "b": b}).graph("told", tasks={"a": a, "b": b | {"expect": "5s"}})
    written(world, tmp_path / "home")
    for name, remaining, said in (
        ("guessed", None, "the rest of it has an unknown run time"),
        ("told", 10 * SECOND, "10.0 s of it expected still to come"),
    ):
        assert main(["show", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["remaining"] == remaining
        assert main(["show", name]) == 0
        assert f"critical path: a → b ({said})" in capsys.readouterr().out


def test_a_run_time_of_which_nothing_is_known_is_told_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No half a second for a job of thirty: neither `eta` nor `explain` tells a number that nobody knows."""
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    world = World().nodes(1, cpu=1).job("train", run="train").round().start("train").job("next", run="other", cpu=1)
    written(world, tmp_path / "home")
    assert main(["eta", "--json"]) == 0
    train, other = json.loads(capsys.readouterr().out)["jobs"]
    assert (train["unknown"], other["unknown"]) == ("end", "start")
    assert [train["finish"], other["start"], other["finish"]] == [{"p10": None, "p50": None, "p90": None}] * 3
    assert main(["eta"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.count("unknown") for row in rows[1:3]] == [4, 7]
    assert main(["explain", "next", "--json"]) == 0
    [waiting] = json.loads(capsys.readouterr().out)["waiting"]
    unknown = {"mean": None, "deviation": None, "source": "default"}
    assert waiting["start"]["guesses"] == ["j1.main"]
    assert not {"earliest", "likely", "latest"} & waiting["start"].keys()
    assert [*waiting["prediction"]["run"].values(), *(one["left"] for one in waiting["frees"])] == [unknown] * 2
    assert main(["show", "next", "--json"]) == 0
    assert [task["expected"] for task in json.loads(capsys.readouterr().out)["tasks"]] == [0]
    for name in ("train", "next"):
        assert main(["explain", name]) == 0
        told = capsys.readouterr().out
        assert "unknown run time" in told
        assert "(default)" not in told
    assert "expected start  unknown, since work ahead of it has an unknown run time: j1.main;" in told


def test_work_that_goes_on_while_poise_is_down_is_counted_until_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    world = World().nodes(1, cpu=1).job("train", cpu=1).round().start("train")
    written(world, tmp_path / "home")
    monkeypatch.setattr(offline, "instant", lambda ledger: ledger.now + 60 * SECOND)
    assert main(["ls", "--json"]) == 0
    [job] = json.loads(capsys.readouterr().out)
    assert job["elapsed"] >= 60 * SECOND


def test_down_tells_of_jobs_that_are_unfinished_where_nothing_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    written(World().nodes(1, cpu=1).job("train", cpu=1).round().start("train").job("next"), tmp_path / "home")
    assert main(["down"]) == 0
    said = capsys.readouterr().err
    assert "poise was not up" in said and "2 jobs are unfinished (j1, j2)" in said and "down --cancel" in said


def test_a_part_of_an_array_that_does_not_exist_yet_has_no_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told as failed."""
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    written(World().nodes(1, cpu=2).job("a", parts=20_000, at_most=1).round(), tmp_path / "home")
    assert main(["eta", "a.main[5]", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["message"] == "j1.main[5] is made when it may start soon, and cannot be forecast before"
