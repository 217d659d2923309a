"""Every alert fires when it should, is silent when it should, and names only what is there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deploy.debian import DEPLOY, RULES, promtool
from deploy.exported import exported, metrics_in
from poise.cli.main import COMMANDS

GATEWAY = 'deployment="chat", job="poise-gateway", instance="g:8000"'
PLANE = 'job="poise", instance="a:7717"'


class Case(NamedTuple):
    """Series with one sample a minute; when the alert is silent, when it fires, and with which labels and summary."""

    alert: str
    series: dict[str, str]
    silent: tuple[str, ...]
    fires: str
    labels: dict[str, str]
    summary: str


def of_plane(**more: str) -> dict[str, str]:
    return {"job": "poise", "instance": "a:7717", **more}


def slower(bucket: str, limit: str, above: str) -> dict[str, str]:
    """All of 100 a minute are below the limit, and after an hour half of them."""
    steady, half = "0+100x120", "0+100x60 6000+50x60"
    return {f'{bucket}{{{PLANE}, le="{le}"}}': half if le == limit else steady for le in (limit, above, "+Inf")}


CASES = [
    Case("PoiseDown",
         {'up{job="poise", instance="a:7717"}': "1x9 0x9", 'up{job="poise", instance="b:7717"}': "0x4 1x7 0x6"},
         ("9m", "12m"), "14m", {"job": "poise"}, "No control plane answers"),
    Case("PoiseDown",
         {'up{job="other", instance="a:7717"}': "1x19", 'up{job="poise", instance="a:7717"}': "1x9 stale"},
         ("9m",), "12m", {"job": "poise"}, "No control plane answers"),
    Case("PoiseNoLeader",
         {f"poise_leader{{{PLANE}}}": "1x9 0x9", 'poise_leader{job="poise", instance="b:7717"}': "0x19"},
         ("9m", "10m"), "12m", {"job": "poise"}, "No control plane leads"),
    Case("PoiseStandbyMissing",
         {f"up{{{PLANE}}}": "1x30", 'up{job="poise", instance="b:7717"}': "1x9 0x20",
          f"poise_leader{{{PLANE}}}": "1x30", 'poise_leader{job="poise", instance="b:7717"}': "0x9 stale"},
         ("9m", "13m"), "17m", {"job": "poise"}, "The control plane has no standby"),
    Case("PoiseStoreUnreachable", {f"poise_store_up{{{PLANE}}}": "1x9 0x9"},
         ("9m", "11m"), "13m", of_plane(), "The standby a:7717 cannot reach the shared store"),
    Case("PoiseNotAccepting", {f"poise_leader{{{PLANE}}}": "0x9 1x9", f"poise_accepting{{{PLANE}}}": "0x19"},
         ("9m", "10m"), "12m", of_plane(), "The control plane accepts no changes"),
    Case("PoiseStoreNearlyFull",
         {f"poise_store_available_bytes{{{PLANE}}}": "1.1e9x9 9e8x19", f"poise_store_used_bytes{{{PLANE}}}": "1e6x30"},
         ("9m", "14m"), "16m", of_plane(), "The log has 900M left (bytes, or the part of its limit)"),
    Case("PoiseStoreNearlyFull",
         {f"poise_store_available_bytes{{{PLANE}}}": "2e9x30", f"poise_store_used_bytes{{{PLANE}}}": "17e9x9 19e9x20"},
         ("9m", "14m"), "16m", of_plane(), "The log has 95.24m left (bytes, or the part of its limit)"),
    Case("PoiseNotDeciding", {f"poise_deciding_seconds{{{PLANE}}}": "59x9 80+0x9"},
         ("9m", "10m"), "12m", of_plane(), "The policy has not answered for 1m 20s"),
    Case("PoisePolicyFailing", {f"poise_policy_failures_total{{{PLANE}}}": "0x29 1x30"},
         ("29m", "50m"), "32m", of_plane(), "The policy failed, and the safe policy decides"),
    Case("PoiseRoundsSlow", slower("poise_round_seconds_bucket", "1.0", "3.0"),
         ("60m", "65m"), "80m", {"job": "poise"}, "One round in a hundred takes 2.96s"),
    Case("PoiseNodeLost",
         {f'poise_nodes{{{PLANE}, condition="lost"}}': "0x9 2x9", f'poise_node_lost{{{PLANE}, node="n1"}}': "_x10 1x9",
          f'poise_node_lost{{{PLANE}, node="n7"}}': "_x10 1x9"},
         ("9m", "10m"), "12m", of_plane(condition="lost"), "2 nodes are lost n1 n7"),
    Case("PoiseNodeUnfit", {f'poise_nodes{{{PLANE}, condition="unfit"}}': "0x9 1x9"},
         ("9m", "14m"), "16m", of_plane(condition="unfit"), "1 nodes cannot start commands"),
    Case("PoiseNodeCpuHigh", {f'poise_node_cpu_ratio{{{PLANE}, node="n1"}}': "0.9x9 0.95x4 0.5 0.95x9"},
         ("9m", "14m", "19m"), "21m", of_plane(node="n1"), "CPU use of n1 is 95% for 5 minutes"),
    Case("PoiseDeviceFailed",
         {f'poise_devices{{{PLANE}, model="H100", state="cordoned"}}': "_x10 1x9",
          f'poise_devices{{{PLANE}, model="H100", state="held"}}': "8x20"},
         ("9m", "14m"), "16m", {"job": "poise", "model": "H100"}, "1 devices of the model H100 are closed to new work"),
    Case("PoiseQueueOld",
         {f'poise_queue_age_seconds{{{PLANE}, priority="high"}}': "3000+60x30",
          f'poise_queue_age_seconds{{{PLANE}, priority="low"}}': "7200x30"},
         ("10m", "15m"), "17m", of_plane(priority="high"), "Work of class high has waited 1h 7m 0s"),
    Case("PoiseQueueOld", {f'poise_queue_age_seconds{{{PLANE}, priority="low"}}': "86000+60x30"},
         ("6m", "11m"), "14m", of_plane(priority="low"), "Work of class low has waited 1d 0h 7m 20s"),
    Case("PoiseDevicesFragmented",
         {f'poise_devices{{{PLANE}, model="H100", state="fragmented"}}': "20x9 30x90",
          f'poise_devices{{{PLANE}, model="H100", state="held"}}': "80x9 70x90",
          f'poise_devices{{{PLANE}, model="H100", state="lost"}}': "900x100"},
         ("9m", "65m"), "75m", {"job": "poise"}, "30% of the devices are free, and no waiting work fits"),
    Case("PoiseDevicesIdle",
         {f'poise_held_seconds_total{{{PLANE}, resource="device"}}': "0+600x400",
          f'poise_held_idle_seconds_total{{{PLANE}, resource="device"}}': "0+300x100 30000+540x300"},
         ("100m", "200m"), "340m", of_plane(resource="device"), "90% of the held device time is idle"),
    Case("PoiseServiceErrors",
         {f'serve_deployment_request_counter_total{{{GATEWAY}, status="200"}}': "0+96x30 2880+90x30",
          f'serve_deployment_request_counter_total{{{GATEWAY}, status="500"}}': "0+4x30 120+4x30",
          f'serve_deployment_error_counter_total{{{GATEWAY}, reason="full"}}': "0x30 0+6x30",
          f'serve_deployment_error_counter_total{{{GATEWAY}, reason="cancelled"}}': "0+50x60"},
         ("30m", "38m"), "50m", {"deployment": "chat"}, "10% of the requests of chat fail"),
    Case("PoiseServiceBurnsFast",
         {f'serve_deployment_request_counter_total{{{GATEWAY}, status="200"}}': "0+990x60 59400+950x100",
          f'serve_deployment_request_counter_total{{{GATEWAY}, status="500"}}': "0+10x60 600+50x100"},
         ("60m",), "150m", {"deployment": "chat"},
         "chat fails 5% of its requests: 2 % of a month's errors in an hour"),
    Case("PoiseServiceBurnsSlowly",
         {f'serve_deployment_request_counter_total{{{GATEWAY}, status="200"}}': "0+995x400 398000+990x400",
          f'serve_deployment_request_counter_total{{{GATEWAY}, status="500"}}': "0+5x400 2000+10x400"},
         ("400m",), "780m", {"deployment": "chat"},
         "chat fails 1% of its requests: 5 % of a month's errors in six hours"),
    Case("PoiseServiceWithoutReplica", {f"serve_deployment_replica_healthy{{{GATEWAY}}}": "1x9 0x9"},
         ("9m", "14m"), "16m", {"deployment": "chat", "job": "poise-gateway", "instance": "g:8000"},
         "The service chat has no replica"),
    Case("PoiseUpstreamEjected",
         {'poise_upstream_ejected{server="v1", job="poise-gateway", instance="g:8000"}': "0x9 1x9"},
         ("9m", "14m"), "16m", {"server": "v1", "job": "poise-gateway", "instance": "g:8000"},
         "The model server v1 gets no requests since it failed"),
    Case("PoiseLogSlow", slower("poise_log_sync_seconds_bucket", "0.3", "1.0"),
         ("60m", "65m"), "80m", {"job": "poise"}, "One commit in a hundred takes 986ms to be durable"),
]  # fmt: skip


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def as_test(case: Case) -> dict[str, Any]:
    rule = ALERTS[case.alert]
    annotations = {
        "summary": case.summary,
        "description": rule["annotations"]["description"].replace("{{ $labels.node }}", case.labels.get("node", "")),
    }
    fires = {"exp_labels": case.labels | rule["labels"], "exp_annotations": annotations}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            *({"eval_time": at, "alertname": case.alert, "exp_alerts": []} for at in case.silent),
            {"eval_time": case.fires, "alertname": case.alert, "exp_alerts": [fires]},
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_is_silent_until_it_has_to_fire(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [as_test(case)]}))
    promtool("test", "rules", file)


def test_every_alert_has_such_a_test() -> None:
    assert {case.alert for case in CASES} == ALERTS.keys()
    assert all(case.silent and case.fires for case in CASES)


def test_prometheus_takes_the_rules_and_the_configuration(tmp_path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES)
    (tmp_path / "poise.token").touch()
    for name in ("prometheus.yml", RULES.name):
        (tmp_path / name).write_bytes((DEPLOY / "prometheus" / name).read_bytes())
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")


def test_rules_name_only_metrics_that_poise_exports() -> None:
    known = exported() | {"up"} | {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert metrics_in(rule["expr"]) <= known, rule


def test_each_alert_says_what_to_do_by_commands_that_exist() -> None:
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        for command in re.findall("`poise ([a-z]+)", " ".join(rule["annotations"].values())):
            assert command in COMMANDS, (name, command)
