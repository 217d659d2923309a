"""`poise report`: a log told as a run, as figures and as one page."""

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from poise.cli.main import main
from poise.config import Home
from poise.drivers.sqlite import SqliteStore
from poise.errors import NotFound
from poise.kernel import history
from poise.kernel.history import History
from poise.kernel.ledger import Ledger
from poise.kernel.messages import ResumeJob
from poise.kernel.used import spread
from poise.model.events import decode_event, encode_event
from poise.model.history import RunReport, basis_of_co2, price_of_electricity
from poise.model.intensity import Intensity, compile_intensity
from poise.model.messages import Attempt, Idle, Report
from poise.model.power import POWER, Rates
from poise.model.resources import Device
from poise.model.tenants import HOME
from poise.testing import WALL, World, node
from poise.units import MINUTE, SECOND
from poise_lab.report import render

EVIL = "<script>alert('&\"')</script>"


def told(world: World, *names: str, **period: Any) -> RunReport:
    following = History(Ledger())
    for event in world.log:
        following.add(event)
    assert following.ledger.encode() == world.ledger.encode()
    return following.report(world.now, names=names, **period)


def finished() -> World:
    """One CPU-second of work done out of two offered, a failure, and a success after it."""
    world = World().nodes(1, cpu=2).job("a", retry={"limit": 1, "backoff": "1s", "when": ["failed"]}).round()
    world = world.start("a").after("4s").finish("a", outcome="failed", code=3, run="4s").after("1s").round()
    return world.start("a").after("6s").finish("a", run="6s", cpu=3 * SECOND)


def dear() -> World:
    """Two devices of 400 W and $3.60 an hour. Of `us` an attempt is placed in second 0, starts in second 2 and fails in
    second 6; the next runs from 7 to 13. From 7 on the job of `them` waits for both devices.
    """
    devices = tuple(Device(index=index, memory=2**34, power=400_000, price=3_600_000) for index in (0, 1))
    retry = {"limit": 1, "backoff": "1s", "when": ["failed"]}
    world = World().join(structs.replace(node("n1", cpu=2), devices=devices))
    world = world.job("a", gpu=1, tenant="us", retry=retry, expect="10s").round().after("2s").start("a").after("4s")
    world = world.finish("a", outcome="failed", code=3, run="4s").after("1s").round().start("a")
    world = world.job("b", gpu=2, cpu=1, tenant="them", priority="low", expect="10s").round().after("6s")
    return world.finish("a", run="6s", cpu=3 * SECOND, device=500)


def test_waste_by_cause_adds_up_with_what_was_done_to_what_was_offered() -> None:
    report = told(dear())
    waste = {one.cause: one.devices for one in report.waste}
    assert waste["attempts that failed"] == 4 * SECOND
    assert waste["held before the start"] == 2 * SECOND
    assert waste["held and not used, as measured"] == 3 * SECOND  # half of six
    assert waste["free while work waited"] == 8 * SECOND  # also both during the back-off
    assert waste["free, and nothing waited"] == 6 * SECOND
    assert sum(waste.values()) + 3 * SECOND == 2 * report.length == 26 * SECOND


def test_waiting_by_class_and_use_by_tenant() -> None:
    report = told(dear())
    assert [(one.name, one.waiting.count) for one in report.waits] == [("medium", 2)]
    us, them = report.tenants
    assert (us.tenant, us.statuses, us.attempts, us.failed) == ("us", {"done": 1}, 2, 1)
    assert (us.devices, us.vain_devices) == (12 * SECOND, 4 * SECOND)
    assert us.price == pytest.approx(12 * 3.6 / 3600)
    assert us.energy == pytest.approx((POWER.busy - POWER.idle) * 400 * 12)
    assert (them.tenant, them.attempts, them.devices) == ("them", 0, 0)


def test_energy_and_price_of_the_fleet() -> None:
    report = told(dear())
    assert report.bill is not None
    seconds = report.length / SECOND
    assert report.bill.energy == pytest.approx(POWER.joules(2 * 400 * seconds, 400 * 12))
    assert report.bill.price == pytest.approx(2 * seconds * 3.6 / 3600)
    assert (report.bill.devices, report.bill.powered, report.bill.priced) == (2, 2, 2)
    assert report.bill.paid == pytest.approx(12 * 3.6 / 3600)


def test_energy_and_price_by_node_and_job_add_up_and_co2_is_that_of_the_site() -> None:
    report = told(dear(), rates=Rates(0.02))
    assert report.bill is not None and report.nodes
    for name in ("energy", "price", "paid", "co2", "devices"):
        assert sum(getattr(one.bill, name) for one in report.nodes) == pytest.approx(getattr(report.bill, name))
    assert report.bill.co2 == pytest.approx(report.bill.energy / 3.6e6 * 0.02)
    assert sum(job.energy for job in report.jobs) == pytest.approx((POWER.busy - POWER.idle) * 400 * 12)
    assert sum(job.price for job in report.jobs) == pytest.approx(report.bill.paid)


def of_hours(*values: float, unit: str = "kg/kWh", typical: float | None = None) -> Intensity:
    """Values of the hour in which the world of `dear` begins, and of the ones after it."""
    begins = f"{datetime.fromtimestamp(WALL - WALL % 3600, UTC):%Y-%m-%dT%H:%M}"
    more = {} if typical is None else {"hours": [typical] * 24}
    dated = [{"from": begins, "hours": [*values]}]
    return compile_intensity({"kind": "intensity", "unit": unit, "dated": dated} | more)


def long() -> World:
    """A device of 400 W. Its job runs from the middle of an hour to the middle of the third one after it."""
    device = Device(index=0, memory=2**34, power=400_000, price=3_600_000)
    left = 3600 - WALL % 3600
    world = World().join(structs.replace(node("n1", cpu=2), devices=(device,))).after(f"{left + 1800:.0f}s")
    world = world.job("a", gpu=1, tenant="us", expect="3h").round().start("a").after("2h")
    return world.finish("a", run="2h").after("30m")


def test_co2_is_that_of_each_hour_in_which_energy_was_used() -> None:
    """From half past one to half past three: half an hour at 0.4, one at 0.1, half a one at 1.0 kg per kWh."""
    report = told(long(), rates=Rates(intensity=of_hours(9.0, 0.4, 0.1, 1.0, typical=5.0)))
    [job], [us], bill = report.jobs, report.tenants, report.bill
    kilowatts = (POWER.busy - POWER.idle) * 0.4
    assert job.co2 == pytest.approx(kilowatts * (0.5 * 0.4 + 1 * 0.1 + 0.5 * 1.0))
    assert us.co2 == pytest.approx(job.co2)
    assert bill is not None and report.hourly == "kg/kWh"
    first = (3600 - WALL % 3600) / 3600  # the device was there before the first full hour began
    assert bill.co2 == pytest.approx(job.co2 + POWER.idle * 0.4 * (first * 9.0 + 0.4 + 0.1 + 1.0))
    assert bill.hourly == pytest.approx(bill.energy)
    assert sum(one.bill.co2 for one in report.nodes) == pytest.approx(bill.co2)
    assert bill.electricity == 0


def test_a_time_of_suspension_has_no_co2() -> None:
    """Half an hour at 0.4, suspended for the hour at 0.1, half an hour at 1.0 kg per kWh."""
    device = Device(index=0, memory=2**34, power=400_000)
    world = World().join(structs.replace(node("n1", cpu=2), devices=(device,))).after(f"{3600 - WALL % 3600:.0f}s")
    world = world.after("30m").job("desk", gpu=1, idle="30m").round().start("desk").after("30m")
    epoch = world.unit("desk").epoch
    idle = Idle(attempt=Attempt(f"{world.unit('desk').job}.main", epoch), lasts=31 * MINUTE, due=True)
    world = world.hear("n1", Report(serial=7, idle=(idle,))).after("1h")
    world = world.ask(ResumeJob(world.request(), "desk", HOME)).after("30m").finish("desk", run="1h")
    report = told(world, rates=Rates(intensity=of_hours(9.0, 0.4, 0.1, 1.0)))
    assert report.jobs[0].co2 == pytest.approx((POWER.busy - POWER.idle) * 0.4 * (0.5 * 0.4 + 0.5 * 1.0))


def test_hours_without_a_value_have_the_constant_of_the_site_and_the_report_says_so() -> None:
    report = told(long(), rates=Rates(0.2, of_hours(9.0, 0.4)))
    kilowatts = (POWER.busy - POWER.idle) * 0.4
    assert report.jobs[0].co2 == pytest.approx(kilowatts * (0.5 * 0.4 + 1.5 * 0.2))
    assert report.bill is not None
    stated = kilowatts * 0.5 + POWER.idle * 0.4 * ((3600 - WALL % 3600) / 3600 + 1)
    assert report.bill.hourly == pytest.approx(stated * 3.6e6)
    part = 100 * report.bill.hourly / report.bill.energy
    basis = f"CO2e by hour from `intensity.yaml` for {part:.3g} % of the energy, the rest at 0.2 kg per kWh"
    assert basis_of_co2(report.hourly, report.kg_per_kwh, report.bill.energy, report.bill.hourly) == basis
    assert basis in render(report).replace("&#x27;", "'")


def test_the_price_of_electricity_is_that_of_each_hour_and_co2_that_of_the_site() -> None:
    report = told(long(), rates=Rates(0.2, of_hours(9.0, 0.4, 0.1, 1.0, unit="$/kWh", typical=0.0)))
    [job], bill = report.jobs, report.bill
    assert job.electricity == pytest.approx((POWER.busy - POWER.idle) * 0.4 * (0.5 * 0.4 + 1 * 0.1 + 0.5 * 1.0))
    assert bill is not None and bill.co2 == pytest.approx(bill.energy / 3.6e6 * 0.2)
    price = price_of_electricity(report.hourly, bill.electricity, bill.energy, bill.hourly)
    assert price == f"${bill.electricity:,.2f}, by hour from `intensity.yaml`"
    assert basis_of_co2(report.hourly, report.kg_per_kwh, bill.energy, bill.hourly) == "CO2e at 0.2 kg per kWh"


def test_one_value_for_all_hours_is_the_same_as_the_constant_of_the_site() -> None:
    by_hour = told(dear(), rates=Rates(intensity=of_hours(typical=0.02)))
    constant = told(dear(), rates=Rates(0.02))
    assert by_hour.bill is not None and constant.bill is not None
    assert by_hour.bill.co2 == pytest.approx(constant.bill.co2)
    assert [job.co2 for job in by_hour.jobs] == pytest.approx([job.co2 for job in constant.jobs])


def test_a_period_has_what_was_there_in_it_and_no_more() -> None:
    world = dear()
    report = told(world, since=world.now - 3 * SECOND)
    assert (report.attempts, report.failed, report.length) == (1, 0, 3 * SECOND)
    assert [one.devices for one in report.tenants] == [3 * SECOND, 0]
    assert report.cpu.used == pytest.approx(1000 * 1.5 / 6, abs=1), "half of what it used in six seconds"
    early = told(world, since=SECOND, until=7 * SECOND + SECOND // 2)
    assert (early.attempts, early.failed, early.statuses) == (1, 1, {"done": 1})
    nothing = told(world.cancel("j2").after("10s"), since=world.now - 2 * SECOND)
    assert (nothing.attempts, nothing.statuses, nothing.tenants) == (0, {}, ())


def test_a_report_that_begins_in_the_middle_of_a_log_has_what_ran_then() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).round().start("a").after("4s")
    ledger = Ledger()
    for event in world.log:
        ledger.apply(event)
    following, since = History(ledger), len(world.log)
    for event in world.after("2s").finish("a", run="6s").log[since:]:
        following.add(event)
    report = following.report(world.now)
    assert (report.attempts, report.statuses, report.first) == (1, {"done": 1}, since + 1)
    assert [span.outcome for lane in report.lanes for span in lane.spans] == ["done"]


def test_a_report_of_a_tenant_names_nothing_of_others() -> None:
    report = told(dear(), tenant="them")
    assert ([job.name for job in report.jobs], report.attempts) == (["b"], 0)
    assert [one.tenant for one in report.tenants] == ["them"]
    assert (report.waste, report.bill, report.nodes) == ((), None, ())
    assert not [one for one in report.happenings if "j1" in one.subject]


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


def written(root: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A stopped home with the log of a world, that commands use."""
    home = Home(root)
    home.root.mkdir()
    monkeypatch.setenv("POISE_HOME", str(home.root))
    store = SqliteStore(home.log, encode_event, decode_event)
    store.append(world.log, expected=0)
    store.close()
    return home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return written(tmp_path / "home", finished(), monkeypatch)


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


def test_usage_counts_by_each_field_once(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert home.log.exists()
    assert main(["usage", "--since", "2000-01-01", "--by", "tenant, tenant", "-o", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("tenant,attempts,")


def test_incidents_of_the_period_are_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World().nodes(2).job("a").round().start("a").after("5s")
    written(tmp_path / "home", world.lose(world.where("a")[0]).after("1m"), monkeypatch)
    page = tmp_path / "page.html"
    assert main(["report", "--html", str(page), "--json"]) == 0
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert incident["title"] in page.read_text()
    before = datetime.fromtimestamp(WALL + 1).astimezone().isoformat()
    assert main(["report", "--until", before, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["incidents"] == []


def test_a_period_of_a_tenant_to_be_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "home", dear(), monkeypatch)
    page = tmp_path / "week.html"
    begin = datetime.fromtimestamp(WALL + 1).astimezone().isoformat()
    assert main(["report", "--since", begin, "--tenant", "them", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert ([one["tenant"] for one in told["tenants"]], told["tenant"]) == (["them"], "them")
    assert "j1" not in page.read_text() and "Run of them" in page.read_text()
    assert main(["report", "--html", str(page)]) == 0
    text = page.read_text()
    assert "Room that brought nothing, by cause" in text and "attempts that failed" in text and "kWh" in text
    capsys.readouterr()
    assert main(["report"]) == 0
    assert re.search(r"^waste: attempts that failed +4\.0 s of a device", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no job `nosuch`"),
        (["--html", "/no/such/folder/run.html"], "cannot be written"),
        (["--html", "-", "--json"], "both want stdout"),
        (["--since", "1h", "--until", "2h"], "not after the beginning"),
        (["--since", "soon"], "cannot be read"),
        (["--tenant", "nobody"], "had no job in this time"),
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
