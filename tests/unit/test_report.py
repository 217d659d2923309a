"""`poise report`: a log told as a run, as figures and as one page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.config import Home
from poise.drivers.sqlite import SqliteStore
from poise.errors import NotFound
from poise.kernel import history
from poise.kernel.history import History, spread
from poise.kernel.ledger import Ledger
from poise.model.events import decode_event, encode_event
from poise.model.history import RunReport
from poise.testing import World
from poise.twin.report import render
from poise.units import SECOND

EVIL = "<script>alert('&\"')</script>"


def told(world: World, *names: str) -> RunReport:
    following = History(Ledger())
    for event in world.log:
        following.add(event)
    assert following.ledger.encode() == world.ledger.encode()
    return following.report(world.now, names=names)


def finished() -> World:
    """One CPU-second of work done out of two offered, a failure, and a success after it."""
    world = World().nodes(1, cpu=2).job("a", retry={"limit": 1, "backoff": "1s", "when": ["failed"]}).round()
    world = world.start("a").after("4s").finish("a", outcome="failed", code=3, run="4s").after("1s").round()
    return world.start("a").after("6s").finish("a", run="6s", cpu=3 * SECOND)


def test_figures_of_a_run() -> None:
    report = told(finished())
    assert (report.statuses, report.attempts, report.failed, report.retried) == ({"done": 1}, 2, 1, 1)
    assert report.completion.mean == report.makespan == 11 * SECOND
    assert report.waiting.longest == 0  # a back-off is no waiting
    assert report.cpu.held == pytest.approx(1000 * 10 / 22, abs=1)
    assert report.cpu.good == pytest.approx(1000 * 6 / 22, abs=1)
    assert report.cpu.used == pytest.approx(1000 * 3 / 22, abs=1)
    assert report.devices.held is None
    assert [(one.name != "", one.run.mean, one.failed) for one in report.classes] == [(True, 6 * SECOND, 1)]
    (failure,) = report.failures
    assert (failure.task, failure.outcome, failure.run, failure.again) == ("j1.main", "failed", 4 * SECOND, True)


def test_what_waited_and_why() -> None:
    world = World().nodes(1, cpu=1).job("a", expect="1h").job("b", expect="1h").round().start("a").after("5s")
    report = told(world)
    assert (max(level.pending for level in report.levels), max(level.active for level in report.levels)) == (2, 1)
    assert [one.text for one in report.happenings if one.kind == "held" and "CPU free" in one.text]
    world.finish("a").after("1s").start("b")
    assert told(world, "b").jobs[0].waited == told(world).waiting.longest >= 5 * SECOND


def test_devices_have_rows_of_their_own() -> None:
    world = World().nodes(1, gpus=2).job("a", gpu=2).job("b").round().start("a", "b").after("3s")
    report = told(world)
    assert [(lane.name, [span.job for span in lane.spans]) for lane in report.lanes] == [
        ("device 0", ["j1"]),
        ("device 1", ["j1"]),
        ("", ["j2"]),
    ]
    assert report.devices.held == report.devices.good == 1000


def test_who_yielded_to_whom_and_what_it_kept() -> None:
    world = (
        World().nodes(1, gpus=1).job("low", gpu=1, priority="low", expect="10h", checkpoint="1m").round().start("low")
    )
    world = world.after("150s").job("now", gpu=1, priority="urgent", expect="10s").after("5s")
    report = told(world)
    (order,) = report.yields
    assert (order.unit, order.cause, order.to) == ("j1.main", "yield", "j2.main")
    assert "yield to j2.main" in order.why
    stopped = next(span for lane in report.lanes for span in lane.spans if span.job == "j1")
    assert stopped.outcome == "stopped"
    kept = report.devices.good or 0
    assert 0 < kept < (report.devices.held or 0)


def test_a_lost_node_ends_what_is_placed_anew() -> None:
    world = World().nodes(2).job("a").round().start("a")
    lost = world.where("a")[0]
    world = world.lose(lost).round().start("a").after("1s")
    report = told(world)
    assert [failure.outcome for failure in report.failures] == ["lost"]
    assert {lane.node for lane in report.lanes} == {"n1", "n2"}
    assert "node lost" in [one.kind for one in report.happenings]


def test_only_the_jobs_that_are_named() -> None:
    world = finished().job("b").round().start("b").after("2s").finish("b", run="2s")
    report = told(world, "b")
    assert ([job.name for job in report.jobs], report.attempts, report.length) == (["b"], 1, 2 * SECOND)
    assert all("j1" not in one.subject for one in report.happenings)
    assert told(world, "j1", "b").attempts == 3
    with pytest.raises(NotFound, match="no job `c`"):
        told(world, "c")


def test_jobs_that_the_ledger_has_forgotten_are_told_of() -> None:
    world = World(history=1).nodes(1, cpu=2)
    for number in range(40):
        world.job(f"x{number}").round().finish(f"x{number}")
    assert len(world.ledger.jobs) < 40
    assert told(world).statuses == {"done": 40}


def test_removed_jobs_are_told_of() -> None:
    report = told(finished().remove("a").after("1s"))
    assert (report.statuses, report.attempts) == ({"done": 1}, 2)
    assert [(one.subject, one.text) for one in report.happenings if one.kind == "removed"] == [("j1", "by their users")]


def test_lists_are_bounded_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", dict.fromkeys(history.MOST, 2))
    monkeypatch.setattr(history, "POINTS", 10)
    world = World().nodes(1, cpu=2)
    for number in range(9):
        world.job(f"x{number}").round().start(f"x{number}").after("1s").finish(f"x{number}")
    report = told(world)
    assert report.left_out["jobs"] == report.left_out["attempts"] == 7
    assert [job.name for job in report.jobs] == ["x7", "x8"]
    assert (report.statuses, len(report.levels) <= 12) == ({"done": 9}, True)
    assert "7 earlier jobs" in render(report)


def test_an_attempt_on_many_devices_is_as_many_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", history.MOST | {"attempts": 7})
    world = World().nodes(2, gpus=4).job("a", gpu=4).job("b", gpu=4).round().start("a", "b").after("2s")
    report = told(world)
    assert sum(len(lane.spans) for lane in report.lanes) == 4
    assert (report.attempts, report.left_out) == (2, {"attempts": 1})


def test_percentiles_are_of_the_nearest_rank() -> None:
    assert spread(range(1, 101)) == spread(reversed(range(1, 101)))
    assert (spread(range(1, 101)).p50, spread(range(1, 101)).p99) == (50, 99)
    assert spread([]).count == 0


class Tags(HTMLParser):
    """Every tag with its attributes, and every tag left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    world = finished()
    world.submit({"run": ["echo", EVIL], "class": EVIL, "resources": {"cpu": 1}}, user=EVIL)
    world.round().start("j2").finish("j2", outcome="failed", code=1, note=EVIL)
    page = render(told(world))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 3  # command, user, class, note
    tags = Tags(page)
    assert tags.open == []
    names = {name for name, _ in tags.seen}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "a", "form", "base"})
    attributes = {name for _, given in tags.seen for name in given}
    assert attributes.isdisjoint({"src", "href", "style", "srcset", "xlink:href"})
    assert not [name for name in attributes if name.startswith("on")]
    policy = next(given["content"] or "" for name, given in tags.seen if "http-equiv" in given)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_a_page_of_nothing() -> None:
    assert "Nothing has started" in render(told(World()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A stopped home with the log of `finished`."""
    home = Home(tmp_path / "home")
    home.root.mkdir()
    monkeypatch.setenv("POISE_HOME", str(home.root))
    world = finished()
    store = SqliteStore(home.log, encode_event, decode_event)
    store.append(world.log, expected=0)
    store.close()
    return home


def test_the_command_reads_a_stopped_home(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "run.html"
    assert main(["report", "--html", str(page), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["statuses"] == {"done": 1}
    assert f"wrote {page}" in shown.err
    assert page.read_text().startswith("<!doctype html>")
    assert {path.name for path in tmp_path.iterdir()} == {"run.html", "home"}
    assert main(["report", "a"]) == 0
    assert re.search(r"^makespan +11\.0 s$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no job `nosuch`"),
        (["--html", "/no/such/folder/run.html"], "cannot be written"),
        (["--html", "-", "--json"], "both want stdout"),
    ],
)
def test_errors_can_be_acted_on(
    home: Home, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 1
    assert message in "".join(capsys.readouterr())


def test_an_empty_home_has_nothing_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "none"))
    assert main(["report"]) == 1
    assert "no log" in capsys.readouterr().err
