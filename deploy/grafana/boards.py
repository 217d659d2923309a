"""Writes the Grafana boards beside this file: JSON to import, or to provision.

    python deploy/grafana/boards.py          write every board
    python deploy/grafana/boards.py --check  say which is out of date, and end with 1 if any is

Needs grafana-foundation-sdk, which the extra `dev` brings. A board has rows of panels, a panel has queries by the text
of their legend. `$job` is the name of the scrape job, `$service` the services that are chosen.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

FOLDER = Path(__file__).resolve().parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
OF_JOB = '{job=~"$job"}'
OR_ZERO = " or vector(0)"
"""For what has no series until it happens."""

WIDTH, HEIGHT = 24, 8

SECONDS, BYTES, RATIO, PER_SECOND, WATTS = "s", "bytes", "percentunit", "ops", "watt"


class Panel(NamedTuple):
    """One chart, or with `now` one number. `queries` by their legend, in which `{{label}}` is the value of a label."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    about: str = ""
    stacked: bool = False
    now: bool = False


class Board(NamedTuple):
    """Rows of panels under their headings. `services`: it has a choice of services."""

    name: str
    title: str
    about: str
    rows: dict[str, list[Panel]]
    services: bool = False


def quantiles(metric: str, by: str = "", legend: str = "", where: str = OF_JOB) -> dict[str, str]:
    """Median and P99 of a histogram, by the values of a label if one is named."""
    labels = f"le, {by}" if by else "le"
    rates = f"sum by ({labels}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return {f"{name}{legend}": f"histogram_quantile({of}, {rates})" for name, of in (("P50", 0.5), ("P99", 0.99))}


def rate(metric: str, by: str, where: str = OF_JOB) -> str:
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def total(metric: str, by: str, where: str = OF_JOB) -> str:
    return f"sum by ({by}) ({metric}{where})"


CONTROL = Board(
    "poise-control",
    "Poise: control plane",
    "Is it up, does it decide, is the log fast enough?",
    {
        "State": [
            Panel("Leaders", {"": f"sum(poise_leader{OF_JOB})"}, now=True, about="1 unless nobody leads"),
            Panel("Standbys", {"": f"count(poise_leader{OF_JOB} == 0) or vector(0)"}, now=True),
            Panel(
                "Accepts changes", {"": f"max(poise_accepting{OF_JOB})"}, now=True, about="0: the log cannot be written"
            ),
            Panel("Term", {"": f"max(poise_term{OF_JOB})"}, now=True, about="Rises with each new leader"),
            Panel("Policy", {"{{policy}}": f"poise_policy_info{OF_JOB}"}, now=True),
            Panel("Version", {"{{version}}": f"poise_info{OF_JOB}"}, now=True),
        ],
        "Deciding": [
            Panel("Duration of a round", quantiles("poise_round_seconds"), SECONDS),
            Panel(
                "Mean duration of each phase",
                {
                    "{{phase}}": f"{rate('poise_round_phase_seconds_sum', 'phase')} / "
                    f"{rate('poise_round_phase_seconds_count', 'phase')}"
                },
                SECONDS,
                "view: make the view; decide: the policy; wait: for the next turn; apply: verify and apply",
                True,
            ),
            Panel("Rounds", {"rounds": rate("poise_round_seconds_count", "job")}, PER_SECOND),
            Panel("Waiting for the policy", {"{{instance}}": f"poise_deciding_seconds{OF_JOB}"}, SECONDS),
            Panel(
                "Rejected decisions",
                {"{{decision}} {{reason}}": rate("poise_rejected_decisions_total", "decision, reason") + OR_ZERO},
                PER_SECOND,
                "Plans were made on an older state, or the policy is wrong",
            ),
            Panel(
                "Failures of the policy",
                {"failures": rate("poise_policy_failures_total", "job")},
                PER_SECOND,
                "The safe policy decides then",
            ),
        ],
        "Log": [
            Panel("Until durable", quantiles("poise_log_sync_seconds"), SECONDS, "fsync, or the shared store"),
            Panel("Appending", quantiles("poise_log_append_seconds"), SECONDS),
            Panel("Events", {"events": rate("poise_log_events_total", "job")}, PER_SECOND),
            Panel(
                "Lag",
                {"events not durable": f"poise_log_lag_events{OF_JOB}", "outbox": f"poise_outbox_messages{OF_JOB}"},
            ),
            Panel(
                "Room",
                {"available": f"poise_store_available_bytes{OF_JOB}", "used": f"poise_store_used_bytes{OF_JOB}"},
                BYTES,
            ),
            Panel("Revision", {"{{instance}}": f"poise_log_revision{OF_JOB}"}, about="A standby follows the leader"),
        ],
        "Process": [
            Panel("CPU", {"{{instance}}": rate("process_cpu_seconds_total", "instance")}, "percentunit"),
            Panel("Memory", {"{{instance}}": f"process_resident_memory_bytes{OF_JOB}"}, BYTES),
            Panel("Refused requests", {"{{code}}": rate("poise_refused_requests_total", "code") + OR_ZERO}, PER_SECOND),
            Panel("Missed observations", {"missed": rate("poise_observations_missed_total", "job")}, PER_SECOND),
        ],
    },
)

QUEUE = Board(
    "poise-queue",
    "Poise: queue and work",
    "What waits, for how long, why; what ran, and how it ended.",
    {
        "Waiting": [
            Panel(
                "Pending by reason",
                {"{{reason}}": total("poise_pending_units", "reason")},
                stacked=True,
                about="The first reason; `poise explain JOB` shows all",
            ),
            Panel("Pending by class", {"{{priority}}": total("poise_pending_units", "priority")}, stacked=True),
            Panel("Units", {"{{state}}": total("poise_units", "state")}, stacked=True),
            Panel(
                "Longest wait at the head of a queue",
                {"{{priority}}": f"max by (priority) (poise_queue_age_seconds{OF_JOB})"},
                SECONDS,
            ),
            Panel("Wait of what was placed", quantiles("poise_wait_seconds", "priority", " {{priority}}"), SECONDS),
            Panel("Tenants: pending", {"{{tenant}}": total("poise_tenant_pending_units", "tenant")}, stacked=True),
            Panel(
                "Tenants: unfinished", {"{{tenant}}": total("poise_tenant_unfinished_units", "tenant")}, stacked=True
            ),
            Panel("Jobs", {"unfinished": f"sum(poise_unfinished_jobs{OF_JOB})"}),
        ],
        "Done": [
            Panel("Submitted jobs", {"jobs": rate("poise_submitted_jobs_total", "job")}, PER_SECOND),
            Panel(
                "Placed tasks", {"{{priority}}": rate("poise_placed_tasks_total", "priority")}, PER_SECOND, stacked=True
            ),
            Panel(
                "Ended attempts",
                {"{{outcome}}": rate("poise_ended_attempts_total", "outcome")},
                PER_SECOND,
                stacked=True,
            ),
            Panel(
                "Preempted, moved and resized",
                {
                    "{{cause}}": rate("poise_preempted_units_total", "cause"),
                    "{{cause}} in place": rate("poise_resized_gangs_total", "cause"),
                },
                PER_SECOND,
            ),
            Panel("Calls of functions", {"calls": rate("poise_calls_total", "job")}, PER_SECOND),
            Panel(
                "Stragglers and missed deadlines",
                {
                    "stragglers": rate("poise_stragglers_total", "job"),
                    "missed deadlines": rate("poise_missed_deadlines_total", "job"),
                },
                PER_SECOND,
            ),
        ],
        "Forecasts": [
            Panel(
                "Run times inside their interval",
                {
                    "part": f'sum(increase(poise_run_forecasts_total{{job=~"$job", result="inside"}}[1d])) / '
                    f"sum(increase(poise_run_forecasts_total{OF_JOB}[1d]))"
                },
                RATIO,
                "About 95 % if forecasts are right; of the last day",
            ),
            Panel("Error of run time forecasts", quantiles("poise_run_forecast_error_ratio"), RATIO),
            Panel(
                "Starts inside their interval",
                {
                    "part": f'sum(increase(poise_start_forecasts_total{{job=~"$job", result="inside"}}[1d])) / '
                    f"sum(increase(poise_start_forecasts_total{OF_JOB}[1d]))"
                },
                RATIO,
                "About 80 % if forecasts are right; of the last day, and of jobs that somebody asked about",
            ),
            Panel("Error of start forecasts", quantiles("poise_start_forecast_error_seconds"), SECONDS),
        ],
    },
)

FLEET = Board(
    "poise-fleet",
    "Poise: fleet",
    "Nodes and devices: what is used, what is not and why, and what that costs.",
    {
        "Nodes": [
            Panel("Nodes", {"{{condition}}": total("poise_nodes", "condition")}, stacked=True),
            Panel("Connected agents", {"agents": f"sum(poise_connected_agents{OF_JOB})"}),
            Panel("Oldest heartbeat", {"{{instance}}": f"poise_heartbeat_age_seconds{OF_JOB}"}, SECONDS),
            Panel(
                "Lost nodes", {"lost": f"sum(increase(poise_lost_nodes_total{OF_JOB}[1h]))"}, about="In the last hour"
            ),
            Panel("Load levels", {"{{level}}": total("poise_node_load_level", "level")}, stacked=True),
            Panel("Names of lost nodes", {"{{node}}": f"poise_node_lost{OF_JOB} or vector(0)"}),
        ],
        "Use": [
            Panel(
                "Devices",
                {"{{state}}": total("poise_devices", "state")},
                stacked=True,
                about="fragmented: free, on a node on which no waiting work fits",
            ),
            Panel(
                "Devices in use by model",
                {
                    "{{model}}": f'sum by (model) (poise_devices{{job=~"$job", state=~"held|shared"}}) / '
                    f"{total('poise_devices', 'model')}"
                },
                RATIO,
            ),
            Panel("CPU cores", {"{{state}}": total("poise_cpu_cores", "state")}, stacked=True),
            Panel("Memory", {"{{state}}": total("poise_memory_bytes", "state")}, BYTES, stacked=True),
        ],
        "Waste, energy and cost": [
            Panel(
                "Held and idle",
                {
                    "{{resource}}": f"sum by (resource) (rate(poise_held_idle_seconds_total{OF_JOB}[10m])) / "
                    f"sum by (resource) (rate(poise_held_seconds_total{OF_JOB}[10m]))"
                },
                RATIO,
                "The part of what tasks hold that is not busy",
            ),
            Panel(
                "Power",
                {"{{part}}": f"sum by (part) (rate(poise_energy_joules_total{OF_JOB}[10m]))"},
                WATTS,
                "As nodes measure it",
                stacked=True,
            ),
            Panel(
                "Energy of a day",
                {"{{part}}": f"sum by (part) (increase(poise_energy_joules_total{OF_JOB}[1d])) / 3.6e6"},
                "kwatth",
            ),
            Panel(
                "Price of devices",
                {"{{state}}": total("poise_device_price_dollars_per_hour", "state")},
                "currencyUSD",
                "An hour, where the price is known",
                stacked=True,
            ),
        ],
        "The busiest nodes": [
            Panel("CPU", {"{{node}}": f"topk(20, poise_node_cpu_ratio{OF_JOB})"}, RATIO),
            Panel("Threads per core", {"{{node}}": f"topk(20, poise_node_load1_ratio{OF_JOB})"}),
            Panel("Memory", {"{{node}}": f"topk(20, poise_node_memory_ratio{OF_JOB})"}, RATIO),
            Panel("Disk", {"{{node}}": f"topk(20, poise_node_disk_busy_ratio{OF_JOB})"}, RATIO),
            Panel("Network", {"{{node}}": f"topk(20, poise_node_network_ratio{OF_JOB})"}, RATIO),
            Panel("Devices", {"{{node}}": f"topk(20, poise_node_device_busy_ratio{OF_JOB})"}, RATIO),
            Panel("Power", {"{{node}}": f"topk(20, poise_node_power_watts{OF_JOB})"}, WATTS),
            Panel("Failed attempts", {"{{node}}": f"topk(20, poise_node_failure_ratio{OF_JOB})"}, RATIO),
            Panel("CPU of agents", {"{{node}}": f"topk(20, poise_agent_cpu_cores{OF_JOB})"}, "percentunit"),
            Panel("Sent by agents", {"{{node}}": f"topk(20, poise_agent_sent_bytes_per_second{OF_JOB})"}, "Bps"),
        ],
    },
)

OF_SERVICE = '{deployment=~"$service"}'
SERVICES = Board(
    "poise-services",
    "Poise: services",
    "Requests, errors and durations of services and of model servers.",
    {
        "Services": [
            Panel(
                "Answered requests",
                {
                    "{{deployment}} {{status}}": rate(
                        "serve_deployment_request_counter_total", "deployment, status", OF_SERVICE
                    )
                },
                "reqps",
            ),
            Panel(
                "Failed requests",
                {"{{deployment}}": f"poise:service_errors:ratio5m{OF_SERVICE}"},
                RATIO,
                "Answers with 5xx and refused requests, of all; by poise-rules.yml",
            ),
            Panel(
                "Burn rate of the 99.9 % objective",
                {
                    "{{deployment}} 1h": f"poise:service_errors:ratio1h{OF_SERVICE} / 0.001",
                    "{{deployment}} 6h": f"poise:service_errors:ratio6h{OF_SERVICE} / 0.001",
                },
                about="14.4 in an hour, or 6 in six hours, alert",
            ),
            Panel(
                "Refused requests",
                {
                    "{{deployment}} {{reason}}": rate(
                        "serve_deployment_error_counter_total", "deployment, reason", OF_SERVICE
                    )
                    + OR_ZERO
                },
                "reqps",
            ),
            Panel(
                "Duration",
                quantiles("serve_deployment_processing_latency_ms", "deployment", " {{deployment}}", OF_SERVICE),
                "ms",
            ),
            Panel(
                "Wait for a batch",
                quantiles("serve_batch_wait_time_ms", "deployment", " {{deployment}}", OF_SERVICE),
                "ms",
            ),
            Panel(
                "Requests of a batch", quantiles("serve_actual_batch_size", "deployment", " {{deployment}}", OF_SERVICE)
            ),
            Panel(
                "Queue",
                {
                    "{{deployment}} waiting": total("serve_deployment_queued_queries", "deployment", OF_SERVICE),
                    "{{deployment}} in work": total("serve_replica_processing_queries", "deployment", OF_SERVICE),
                },
            ),
            Panel("Replicas", {"{{deployment}}": total("serve_deployment_replica_healthy", "deployment", OF_SERVICE)}),
            Panel(
                "Memory for a batch",
                {"{{deployment}}": f"min by (deployment) (poise_batch_room{OF_SERVICE})"},
                about="Items; 0 if not known",
            ),
        ],
        "Model servers": [
            Panel("Requests", {"{{model}}": rate("vllm:num_incoming_requests_total", "model", "")}, "reqps"),
            Panel(
                "Errors",
                {"{{server}} {{error_type}}": rate("vllm:request_errors_total", "server, error_type", "") + OR_ZERO},
                "reqps",
            ),
            Panel("Duration", quantiles("vllm:request_latency_seconds", "server", " {{server}}", ""), SECONDS),
            Panel("In work", {"{{server}}": total("vllm:num_requests_running", "server", "")}),
            Panel("Healthy", {"{{server}}": total("vllm:healthy_pods_total", "server", "")}),
            Panel("Ejected", {"{{server}}": total("poise_upstream_ejected", "server", "")}),
        ],
    },
    services=True,
)

BOARDS = (CONTROL, QUEUE, FLEET, SERVICES)


def made(board: Board) -> Any:
    """The JSON of a board, as plain values."""
    building = (
        dashboard.Dashboard(board.title)
        .uid(board.name)
        .description(board.about)
        .tags(["poise"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, label, of in variables(board):
        building.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(of)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".+")
        )
    for title, panels in board.rows.items():
        building.with_row(dashboard.Row(title))
        width = max(WIDTH // len(panels), 4) if panels[0].now else WIDTH // 3
        for panel in panels:
            building.with_panel(built(panel).span(width))
    values = json.loads(json.dumps(building.build(), cls=JSONEncoder))
    for number, panel in enumerate(values["panels"], start=1):
        panel["id"] = number
    return values


def variables(board: Board) -> Iterator[tuple[str, str, str]]:
    if board.services:
        yield "service", "Service", "label_values(serve_deployment_replica_healthy, deployment)"
    else:
        yield "job", "Job", "label_values(poise_leader, job)"


def built(panel: Panel) -> Any:
    made: Any = stat.Panel() if panel.now else timeseries.Panel()
    made.title(panel.title).description(panel.about).datasource(SOURCE).unit(panel.unit)
    made.height(4 if panel.now else HEIGHT)
    if panel.now:
        named = any("{{" in legend for legend in panel.queries)
        made.text_mode("name" if named else "value").graph_mode("none")
    else:
        made.min(0).fill_opacity(20 if panel.stacked else 0)
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL if panel.stacked else StackingMode.NONE))
        made.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        made.legend(legend.show_legend(True))
    for number, query in enumerate(queries(panel)):
        made.with_target(query.ref_id(chr(ord("A") + number)))
    return made


def queries(panel: Panel) -> Iterator[Any]:
    for legend, expression in panel.queries.items():
        query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
        yield query.instant() if panel.now else query.range()


def main() -> int:
    parser = argparse.ArgumentParser(description="write the Grafana boards")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a board is out of date")
    options = parser.parse_args()
    stale = 0
    for board in BOARDS:
        path, text = FOLDER / f"{board.name}.json", json.dumps(made(board), indent=1) + "\n"
        if options.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                print(f"out of date: {path.name}", file=sys.stderr)
                stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(path.name)
    return stale


if __name__ == "__main__":
    sys.exit(main())
