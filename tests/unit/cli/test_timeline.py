"""`poise timeline`: attempts over time, from the log."""

import json
import time
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.config import Home
from poise.drivers.sqlite import SqliteStore
from poise.model.events import decode_event, encode_event
from poise.testing import WALL, World
from poise.units import SECOND

SINCE = ("--since", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(WALL)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A stopped home: an attempt of 4 s that failed, one of 6 s that did not, and a job that waits for it."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    monkeypatch.setenv("POISE_HOME", str(home.root))
    world = World().nodes(1, cpu=1, gpus=1).job("a", gpu=1, retry={"limit": 1, "backoff": "1s", "when": ["failed"]})
    world = world.round().start("a").after("4s").finish("a", outcome="failed", code=3, run="4s")
    world = world.after("1s").round().start("a").job("b", gpu=1).after("6s").finish("a", run="6s").after("1s")
    store = SqliteStore(home.log, encode_event, decode_event)
    store.append(world.log, expected=0)
    store.close()
    return home


def test_the_picture_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *SINCE]) == 0
    shown = capsys.readouterr()
    device = next(line for line in shown.out.splitlines() if "device 0" in line)
    assert "===x" in device and device.count("x") == 1
    assert any(line.startswith("-") and "..." in line for line in shown.out.splitlines()), "b waits"
    assert "= running" in shown.err and "--trace FILE" in shown.err


def test_the_trace_has_every_attempt_and_the_json_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    assert main(["timeline", *SINCE, "--trace", str(trace), "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    running = [one for row in told["rows"] for one in row["slices"] if one["phase"] == "running"]
    assert [(one["outcome"], one["until"] - one["since"]) for one in running] == [
        ("failed", 4 * SECOND),
        ("done", 6 * SECOND),
    ]
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["dur"] for event in events if event.get("cat") == "running"] == [4e6, 6e6]
    assert f"wrote {trace}" in shown.err


def test_one_job_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *SINCE, "--json", "b"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["task"] for row in told["rows"] for one in row["slices"]} == {"j2.main"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "no job `nosuch`"),
        (("--since", "1h", "--until", "2h"), "not after the beginning"),
        (("--since", "soon"), "cannot be read"),
        (("--trace", "/no/such/folder/t.json"), "cannot be written"),
        (("--trace", "-", "--json"), "both want stdout"),
    ],
)
def test_errors_can_be_acted_on(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", *words]) == 1
    assert said in "".join(capsys.readouterr())


def test_nothing_in_the_last_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline"]) == 0
    assert "--since 24h" in capsys.readouterr().err


def test_decisions_in_a_terminal_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decisions", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["revision"] for one in told] == sorted(one["revision"] for one in told)
    assert [made["of"] for one in told for made in one["made"] if made["what"] == "placed"] == [["j1.main"]] * 2 + [
        ["j2.main"]
    ]
    assert main(["decisions", "b", "--limit", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["ROUND", "WHEN", "DECISION", "OF", "ON", "WHY"]
    assert "held" in shown[1] and "j2.main" in shown[1] and "fitting devices free" in shown[1]
    assert main(["decisions", "--node", "nope"]) == 1
    assert "there is no node `nope`" in capsys.readouterr().err
    assert main(["decisions", "--node", "n1", "--json"]) == 0
    of_node = capsys.readouterr().out
    assert main(["decisions", "--node", "n", "--json"]) == 0
    assert capsys.readouterr().out == of_node, "its name is not typed to its end"
    assert main(["decisions", "--since", "1h"]) == 0
    assert "nothing was decided" in capsys.readouterr().err
