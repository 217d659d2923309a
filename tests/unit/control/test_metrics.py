"""The metrics of the control plane: what they say of a world, to whom, and how many series they may be."""

import asyncio
import json
import re
import sys
from math import inf, nan
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from poise.control import metrics
from poise.control.gauges import Busiest, Gauges, log_size
from poise.control.plane import Plane
from poise.control.tally import Held, Minutes, Tally
from poise.drivers.exposition import text
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Decided, FromNode, Submit
from poise.model.intensity import compile_intensity
from poise.model.load import Load
from poise.model.messages import Beat, Hello
from poise.model.metrics import Bins
from poise.model.observed import CommitTook, RoundTook
from poise.model.spec import compile_spec
from poise.model.tenants import HOME, Role
from poise.model.usage import SIGNALS, UNKNOWN, Window
from poise.testing import World, node
from poise.units import MILLISECOND, SECOND, parse_duration
from unit.control.desk import Desk
from unit.control.open_door import PATIENCE, open_door

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
import metrics as benchmark  # the fleet, and how a scrape of it is measured


class Told:
    """The metrics as Prometheus reads them."""

    def __init__(self, text: str) -> None:
        self.samples = [sample for of in text_string_to_metric_families(text) for sample in of.samples]

    def value(self, name: str, **labels: str) -> float:
        """Raises unless there is exactly one."""
        [value] = [sample.value for sample in self.samples if (sample.name, sample.labels) == (name, labels)]
        return float(value)

    def of(self, name: str, label: str) -> dict[str, float]:
        """By the value of one label."""
        return {sample.labels[label]: sample.value for sample in self.samples if sample.name == name}

    def counts(self, name: str, label: str) -> dict[str, float]:
        """Those that are not zero."""
        return {value: count for value, count in self.of(name, label).items() if count}

    def names(self) -> set[str]:
        """Of metrics of Poise, without the suffixes of histograms."""
        names = {sample.name for sample in self.samples if sample.name.startswith("poise_")}
        return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


def scrape(desk: Desk, who: str = "home") -> Told:
    answer = desk.call("GET", "/metrics", who=who)
    assert answer.status == 200
    return Told(answer.body.decode())


def test_the_queue_is_told_by_class_and_reason_and_the_fleet_by_what_is_done_with_it() -> None:
    world = World().nodes(2, cpu=8, gpus=4)
    world.job("a", gpu=4, cpu=1).round().start("a").job("b", gpu=4, cpu=1, priority="high").round().start("b")
    world.job("c", gpu=2, cpu=1).round().after("30s")
    told = scrape(Desk(world))
    assert told.value("poise_leader") == told.value("poise_accepting") == 1
    assert told.of("poise_units", "state") == {"pending": 1, "active": 2, "blocked": 0}
    assert told.value("poise_pending_units", priority="medium", reason="GPU_BUSY") == 1
    assert told.value("poise_queue_age_seconds", priority="medium") == 30
    assert told.counts("poise_placed_tasks_total", "priority") == {"medium": 1, "high": 1}
    assert told.of("poise_nodes", "condition")["up"] == 2
    assert told.of("poise_devices", "state") == {"held": 8}
    assert told.of("poise_cpu_cores", "state") == {"held": 2, "free": 14, "closed": 0}
    assert told.value("poise_tenant_pending_units", tenant="default") == 1
    assert told.value("poise_connected_agents") == 2


def test_a_free_device_is_told_apart_by_why_nobody_uses_it() -> None:
    world = World().nodes(3, cpu=8, gpus=4)
    for number in range(3):
        world.job(f"run-{number}", gpu=3, cpu=4).round().start(f"run-{number}")
    world.drain("n1")
    assert scrape(Desk(world)).of("poise_devices", "state") == {"held": 9, "free": 2, "drained": 1}
    world.job("wide", gpu=2, cpu=1).round()
    assert scrape(Desk(world)).of("poise_devices", "state") == {"held": 9, "fragmented": 2, "drained": 1}
    world.lose("n1")
    assert scrape(Desk(world)).of("poise_devices", "state") == {"held": 6, "fragmented": 2, "lost": 4}


def test_a_lost_node_is_named_and_counted() -> None:
    world = World().nodes(3)
    desk = Desk(world)
    assert "poise_node_lost" not in scrape(desk).names()
    world.lose("n2")
    told = scrape(desk)
    assert told.of("poise_node_lost", "node") == {"n2": 1}
    assert told.of("poise_nodes", "condition")["lost"] == told.value("poise_lost_nodes_total") == 1


def test_waits_are_counted_by_class_from_when_work_could_start() -> None:
    world = World().nodes(1, cpu=1)
    desk = Desk(world)
    world.job("a", cpu=1).round().start("a").job("b", cpu=1).after("45s")
    world.finish("a").round()
    told = scrape(desk)
    assert told.value("poise_wait_seconds_sum", priority="medium") == pytest.approx(45)
    assert told.value("poise_wait_seconds_bucket", priority="medium", le="10.0") == 1
    assert told.value("poise_wait_seconds_bucket", priority="medium", le="60.0") == 2
    assert told.counts("poise_ended_attempts_total", "outcome") == {"done": 1}


@pytest.mark.parametrize(("run", "result"), [("95s", "inside"), ("300s", "longer"), ("5s", "shorter")])
def test_run_times_are_compared_with_what_was_forecast_when_work_was_placed(run: str, result: str) -> None:
    world = World().nodes(1, cpu=1)
    desk = Desk(world)
    told: list[dict[str, float]] = []
    for number, took in enumerate(["100s", "90s", "110s", "100s", "95s", run]):
        world.job(f"run-{number}", cpu=1, **{"class": "same"}).round().start(f"run-{number}")
        told.append(scrape(desk).counts("poise_run_forecasts_total", "result"))
        world.after(took).finish(f"run-{number}", run=took)
    told.append(scrape(desk).counts("poise_run_forecasts_total", "result"))
    assert told[:3] == [{}, {}, {"inside": 1}], "nothing is known of the first"
    assert told[5] == {"inside": 4}
    assert told[6] == ({"inside": 5} if result == "inside" else {"inside": 4, result: 1})


@pytest.mark.parametrize(("run", "result"), [("100s", "inside"), ("20s", "earlier"), ("900s", "later")])
def test_starts_are_compared_with_what_was_forecast_when_somebody_asked_first(run: str, result: str) -> None:
    world = World().nodes(1, cpu=1)
    desk = Desk(world)
    for number, took in enumerate(["100s", "90s", "110s", "100s", "95s", "105s"]):
        world.job(f"run-{number}", cpu=1, **{"class": "same"}).round().start(f"run-{number}")
        world.after(took).finish(f"run-{number}", run=took)
    world.job("runs", cpu=1, **{"class": "same"}).round().start("runs").job("waits", cpu=1, **{"class": "same"}).round()
    answer = desk.call("GET", "/v1/jobs/waits/explanation")
    told = json.loads(answer.body)["waiting"][0]["start"]
    world.after(run)
    assert desk.call("GET", "/v1/jobs/waits/explanation").status == 200, "a later forecast does not count"
    assert scrape(desk).counts("poise_start_forecasts_total", "result") == {}
    world.finish("runs", run=run).round()
    after = scrape(desk)
    assert after.counts("poise_start_forecasts_total", "result") == {result: 1}
    off = abs(parse_duration(run) - told["likely"]) / SECOND
    assert after.value("poise_start_forecast_error_seconds_sum") == pytest.approx(off, abs=0.01)
    world.start("waits").after("95s").finish("waits", run="95s")
    world.job("again", cpu=1).round()
    assert scrape(desk).counts("poise_start_forecasts_total", "result") == {result: 1}, "of this one nobody was told"


def test_a_decision_that_the_ledger_rejects_is_counted_by_its_reason() -> None:
    world = World().nodes(1, cpu=1).job("a", cpu=1).job("b", cpu=1)
    plan = world.plan()
    world.round()
    world.say(Decided(plan, None))
    told = scrape(Desk(world))
    assert told.value("poise_rejected_decisions_total", decision="place", reason="NOT_PENDING") >= 1


def test_a_control_plane_that_stands_by_says_so_and_nothing_of_the_fleet() -> None:
    desk = Desk(World().nodes(2).job("a").round())
    cast(Any, desk.plane).behind, cast(Any, desk.plane).accepting = "https://other:7717", False
    told = scrape(desk)
    assert told.value("poise_leader") == told.value("poise_accepting") == 0
    assert told.value("poise_log_revision") == desk.world.ledger.revision
    assert told.names() == {metric.name for metric in metrics.METRICS if metric.seen == "standby"}


def test_a_real_control_plane_counts_what_it_does_until_it_stands_by(tmp_path: Path) -> None:
    async def live() -> None:
        async with open_door(tmp_path) as door:
            door.plane.post(FromNode("n1", Hello(node=node("n1"))))
            compiled = compile_spec({"name": "a", "run": "true"}, wall=0.0)
            await door.plane.request(lambda request: Submit(request, compiled, bearer=HOME))

            async def told() -> Told:
                return Told((await door.call("GET", "/metrics")).body.decode())

            async with asyncio.timeout(PATIENCE):
                while not (found := await told()).value("poise_placed_tasks_total", priority="medium"):
                    pass  # the observer has a thread of its own
            assert found.value("poise_round_seconds_count") > 0 < found.value("poise_log_sync_seconds_count")
            assert found.value("poise_store_used_bytes") > 0 < found.value("poise_store_available_bytes")
            assert found.value("poise_leader") == 1
            door.plane.behind, door.plane.away = "", "the store is away"
            found = await told()
            assert found.value("poise_leader") == found.value("poise_store_up") == 0
            assert "poise_nodes" not in found.names()

    uvloop.run(live())


def test_a_tenant_is_told_of_its_own_queue_and_of_no_other_tenant() -> None:
    world = World().nodes(1, cpu=1)
    for tenant in ("bob", "ann", "bob"):
        world.job(cpu=1, tenant=tenant)
    world.round()
    desk = Desk(world)
    for secret, role in (("hers", Role.VIEWER), ("ops", Role.OPERATOR)):
        desk.token(secret, "ann", role)
    hers, all_ = scrape(desk, "hers"), scrape(desk, "ops")
    assert all_.of("poise_tenant_unfinished_units", "tenant") == {"ann": 1, "bob": 2}
    assert hers.of("poise_tenant_unfinished_units", "tenant") == {"ann": 1}
    assert sum(of.value for of in hers.samples if of.name == "poise_pending_units") == 1
    hidden = all_.names() - hers.names()
    assert {"poise_units", "poise_placed_tasks_total", "poise_wait_seconds"} <= hidden
    assert hidden == {metric.name for metric in metrics.METRICS if metric.seen == "operator"} & all_.names()


def test_what_agents_know_is_told_of_the_busiest_nodes() -> None:
    world = World().nodes(metrics.SHOWN_NODES + 20)
    for number in range(1, metrics.SHOWN_NODES + 21):
        world.hear(f"n{number}", Beat(load=Load(cpu=number, load1=1500, memory=250, disk=10, network=20)))
    told = scrape(Desk(world))
    shown = told.of("poise_node_cpu_ratio", "node")
    assert len(shown) == metrics.SHOWN_NODES and min(shown.values()) == pytest.approx(0.021)
    assert told.value("poise_node_load1_ratio", node="n120") == 1.5
    assert told.value("poise_node_memory_ratio", node="n120") == 0.25


def test_a_name_keeps_its_series_until_it_falls_well_behind() -> None:
    busiest = Busiest(2)
    assert busiest.of({"a": 3, "b": 2, "c": 1, "d": 0, "e": 0}) == {"a", "b"}
    assert busiest.of({"a": 3, "b": 2, "c": 9, "d": 8, "e": 0}) == {"a", "b"}, "fourth of two is not well behind"
    assert busiest.of({"a": 3, "b": 2, "c": 9, "d": 8, "e": 7}) == {"a", "c"}
    assert busiest.of({"z": 1}) == {"z"}


def test_what_a_tenant_asks_changes_no_series_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SHOWN_TENANTS", 2)
    world = World().nodes(1, cpu=1)
    for tenant, jobs in (("ann", 4), ("bob", 3), ("cem", 2), ("dan", 1)):
        for number in range(jobs):
            world.job(f"{tenant}{number}", tenant=tenant)
    desk = Desk(world.round())
    desk.token("dan", "dan", Role.VIEWER)
    before = scrape(desk).of("poise_tenant_unfinished_units", "tenant")
    for number in range(2):
        world.job(f"c{number}", tenant="cem")
    assert scrape(desk, "dan").of("poise_tenant_unfinished_units", "tenant") == {"dan": 1}
    assert scrape(desk).of("poise_tenant_unfinished_units", "tenant").keys() == before.keys() == {"ann", "bob", "other"}


def window(at: int, **signals: int) -> Window:
    values = tuple(signals.get(name, UNKNOWN) for name in SIGNALS)
    return Window(at, values, values)


def test_energy_and_waste_are_added_up_once_for_each_minute_that_a_node_has_measured() -> None:
    minutes, held = Minutes(lambda: None), Held(cores=8.0, devices=4, held_cores=6.0, held_devices=4)
    for cpu in (100, 250):  # the same minute, as it is by then
        minutes.take("n1", [window(600, cpu=cpu, device=500, power=50_000, device_power=400_000)], held)
    assert minutes.told() == {}, "it is not over"
    minutes.take("n1", [window(660, cpu=0), window(540, cpu=900)], held)
    told = minutes.told()
    assert told[metrics.HELD_SECONDS] == {("cpu",): 360, ("device",): 240}
    assert told[metrics.IDLE_SECONDS] == {("cpu",): 240, ("device",): 120}
    assert told[metrics.ENERGY] == {("processors",): 3000, ("devices",): 24_000}
    co2 = {("processors", "constant"): 3000 / 3.6e6 * 0.473, ("devices", "constant"): 24_000 / 3.6e6 * 0.473}
    assert told[metrics.CO2E] == pytest.approx(co2)
    assert metrics.ELECTRICITY not in told
    minutes.take("n1", [window(720)], held)
    assert minutes.told()[metrics.HELD_SECONDS] == {("cpu",): 720, ("device",): 240}, "nobody measured the devices"
    minutes.keep_only({})
    assert minutes.latest("n1") is None


def test_the_energy_of_a_minute_has_the_co2e_or_the_price_of_its_hour() -> None:
    """A kWh a minute at 0.4, one at 0.1, and one in an hour without a value; then the file has prices."""
    values = {"kind": "intensity", "dated": [{"from": "1970-01-01T00:00", "hours": [0.4, 0.1]}]}
    known = compile_intensity(values)
    minutes, held = Minutes(lambda: known), Held(cores=8.0, devices=4, held_cores=6.0, held_devices=4)
    for at in (3540, 3600, 7200, 7260):
        minutes.take("n1", [window(at, device_power=60_000_000)], held)
    co2 = {("devices", "hour"): 0.4 + 0.1, ("devices", "constant"): 0.473}
    assert minutes.told()[metrics.CO2E] == pytest.approx(co2)
    known = compile_intensity(values | {"unit": "$/kWh", "hours": [2.0] * 24})
    minutes.take("n1", [window(7320)], held)
    told = minutes.told()
    assert told[metrics.ELECTRICITY] == pytest.approx({("devices",): 2.0})
    assert told[metrics.CO2E] == pytest.approx(co2 | {("devices", "constant"): 2 * 0.473})


def test_durations_of_rounds_and_commits_fall_into_buckets() -> None:
    tally = Tally(Ledger)
    ms = MILLISECOND
    tally.observe(RoundTook(at=1, revision=1, policy="poise", view=ms, decide=20 * ms, wait=0, apply=4 * ms))
    tally.observe(CommitTook(at=1, revision=2, events=1, append=ms // 10, sync=5 * SECOND))
    told = Told(text(tally.told()).decode())
    assert told.value("poise_round_seconds_sum") == pytest.approx(0.025)
    assert told.value("poise_round_seconds_bucket", le="0.03") == 1
    assert told.value("poise_round_seconds_bucket", le="0.01") == 0
    assert told.value("poise_round_phase_seconds_bucket", phase="apply", le="0.003") == 0
    assert told.value("poise_round_phase_seconds_bucket", phase="apply", le="0.01") == 1
    assert told.value("poise_log_sync_seconds_bucket", le="1.0") == 0
    assert told.value("poise_log_sync_seconds_bucket", le="+Inf") == told.value("poise_log_sync_seconds_count") == 1


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_value_that_is_not_finite_changes_no_histogram(value: float) -> None:
    bins = Bins((1.0, 2.0))
    for one in (0.5, value, 3.0):
        bins.add(one)
    assert (bins.counts, bins.total) == ([1, 0, 1], 3.5)


def test_counters_begin_at_zero_so_that_their_first_rate_is_right() -> None:
    told = Told(text(Tally(Ledger).told()).decode())
    assert told.value("poise_lost_nodes_total") == told.value("poise_submitted_jobs_total") == 0
    assert told.value("poise_preempted_units_total", cause="move") == 0
    assert told.value("poise_wait_seconds_count", priority="urgent") == told.value("poise_round_seconds_count") == 0


def test_the_log_and_the_room_that_it_has_are_told(tmp_path: Path) -> None:
    desk = Desk(World(), logs=tmp_path)
    assert "poise_store_used_bytes" not in scrape(desk).names(), "a log that is shared is no file here"
    (tmp_path / "log.db").write_bytes(b"x" * 4096)
    told = scrape(desk)
    assert told.value("poise_store_used_bytes") == 4096
    assert told.value("poise_store_available_bytes") > 0
    assert log_size(tmp_path / "log.db", 5000)[metrics.STORE_AVAILABLE] == {(): 904}
    assert log_size(tmp_path / "log.db", 4000)[metrics.STORE_AVAILABLE] == {(): 0}


def test_the_number_of_series_has_a_ceiling_however_large_the_fleet_and_many_the_tenants() -> None:
    world, minutes = benchmark.fleet(10_000, 1000)
    plane = benchmark.InMemory(world)
    cost = benchmark.scrape(plane, Gauges(cast(Plane, plane), minutes))
    told = Told(cost.text.decode())
    assert cost.series <= benchmark.LIMIT_SERIES
    assert len(told.of("poise_node_cpu_ratio", "node")) == metrics.SHOWN_NODES
    tenants = told.of("poise_tenant_unfinished_units", "tenant")
    assert len(tenants) == metrics.SHOWN_TENANTS + 1 and sum(tenants.values()) == 2000
    devices = [sample for sample in told.samples if sample.name == "poise_devices"]
    models = {sample.labels["model"] for sample in devices}
    assert len(models) == metrics.SHOWN_MODELS + 1 and "other" in models
    assert sum(sample.value for sample in devices) == 80_000


def test_names_and_help_follow_the_conventions() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert metric.name.startswith("poise_") and metric.about and not metric.about.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram") and list(metric.buckets) == sorted(metric.buckets)
        assert not re.search("_(ms|milli|mb|kb|percent)", metric.name)
        assert not {"job", "task", "user", "unit"} & set(metric.labels), "their number has no limit"
