"""The metrics of the control plane, each declared once, in the order of the reference.

Names follow Prometheus' conventions: base units, `_total` for counters. No job, task or user is a label: their number
has no limit. Labels whose values the fleet or its users name (nodes, device models, tenants) have at most
`SHOWN` values; all others fold into `other`, or are left out if their sum means nothing.
"""

from poise.model.metrics import Metric, Seen

SHOWN_NODES = 128
"""Maximum number of nodes with their own series, the busiest ones."""

SHOWN_LOST = 25
SHOWN_MODELS = 25
SHOWN_TENANTS = 50

ROUND_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LOG_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WAIT_SECONDS = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28_800.0, 86_400.0)
ERROR_RATIOS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def _counter(name: str, about: str, *labels: str, seen: Seen = "operator") -> Metric:
    return Metric(name, "counter", about, labels, seen=seen)


def _gauge(name: str, about: str, *labels: str, seen: Seen = "operator") -> Metric:
    return Metric(name, "gauge", about, labels, seen=seen)


def _histogram(name: str, buckets: tuple[float, ...], about: str, *labels: str, seen: Seen = "operator") -> Metric:
    return Metric(name, "histogram", about, labels, buckets, seen)


INFO = _gauge(
    "poise_info",
    "Version of this control plane, and the name of its fleet; always 1",
    "version",
    "fleet",
    seen="standby",
)
LEADER = _gauge("poise_leader", "1: this control plane leads; 0: it stands by", seen="standby")
ACCEPTING = _gauge(
    "poise_accepting", "1: changes are accepted; 0: the store cannot be written, or this is a standby", seen="standby"
)
TERM = _gauge("poise_term", "Term of the latest leader, which fences earlier ones", seen="standby")
STORE_UP = _gauge("poise_store_up", "1: the store of the log answers; 0: this standby cannot reach it", seen="standby")
REVISION = _gauge("poise_log_revision", "Latest revision of the log that is applied here", seen="standby")
POLICY = _gauge("poise_policy_info", "The policy that decides; always 1", "policy", seen="tenant")

ROUNDS = _histogram(
    "poise_round_seconds",
    ROUND_SECONDS,
    "Duration of a round, from making its view to applying its plan",
    seen="tenant",
)
PHASES = _histogram(
    "poise_round_phase_seconds",
    ROUND_SECONDS,
    "Duration of each phase of a round: `view`, `decide`, `wait` for the next turn, `apply` (verify and apply)",
    "phase",
    seen="tenant",
)
DECIDING = _gauge(
    "poise_deciding_seconds",
    "Time since the policy was asked for a plan that it has not answered; 0: none",
    seen="tenant",
)
POLICY_FAILURES = _counter(
    "poise_policy_failures_total", "Failures of a policy, after which the safe policy decided", seen="tenant"
)
REJECTED = _counter(
    "poise_rejected_decisions_total",
    "Decisions of plans that the ledger rejected, by kind and by the code of the first reason",
    "decision",
    "reason",
)

APPEND = _histogram(
    "poise_log_append_seconds", LOG_SECONDS, "Time to hand the events of one turn to the log", seen="tenant"
)
SYNC = _histogram(
    "poise_log_sync_seconds",
    LOG_SECONDS,
    "Time from handing events to the log until they are durable (fsync, or the shared store)",
    seen="tenant",
)
LOG_LAG = _gauge("poise_log_lag_events", "Events that are applied and not durable yet", seen="tenant")
OUTBOX = _gauge("poise_outbox_messages", "Messages and answers that wait for the log to be durable", seen="tenant")
EVENTS = _counter("poise_log_events_total", "Durable events", seen="tenant")
STORE_USED = _gauge("poise_store_used_bytes", "Size of the log on disk, where it is a file", seen="tenant")
STORE_AVAILABLE = _gauge(
    "poise_store_available_bytes",
    "Bytes by which the log may grow: free on its disk, or up to `--log-limit` if that is less",
    seen="tenant",
)
MISSED = _counter(
    "poise_observations_missed_total", "Observations that were dropped because an observer was too slow", seen="tenant"
)
REFUSALS = _counter("poise_refused_requests_total", "Refused requests to the API, by error code", "code")

JOBS = _gauge("poise_unfinished_jobs", "Jobs that have not ended")
UNITS = _gauge(
    "poise_units",
    "Unfinished units (tasks, or gangs): `pending` in a queue, `active` on nodes, or `blocked` (by needs, or on hold)",
    "state",
)
PENDING = _gauge(
    "poise_pending_units",
    "Pending units by priority class and by the code of the first reason for which they wait",
    "priority",
    "reason",
    seen="tenant",
)
QUEUE_AGE = _gauge(
    "poise_queue_age_seconds",
    "Longest wait of a unit at the head of a queue, by priority class",
    "priority",
    seen="tenant",
)
WAIT = _histogram(
    "poise_wait_seconds", WAIT_SECONDS, "Wait of placed units since they could start, by priority class", "priority"
)
SUBMITTED = _counter("poise_submitted_jobs_total", "Submitted jobs")
PLACED = _counter("poise_placed_tasks_total", "Tasks that were placed, by priority class", "priority")
PREEMPTED = _counter(
    "poise_preempted_units_total",
    "Units that were asked to save and stop: `yield` to others, `move` to another node, `grow` or `shrink`",
    "cause",
)
RESIZED = _counter("poise_resized_gangs_total", "Running gangs that changed their size in place", "cause")
ENDED = _counter("poise_ended_attempts_total", "Attempts that ended, by outcome", "outcome")
STRAGGLERS = _counter("poise_stragglers_total", "Attempts and gang members that were slower than their siblings")
DEADLINES = _counter(
    "poise_missed_deadlines_total", "Units that were cancelled because their deadline could not be met"
)
CALLS = _counter("poise_calls_total", "Calls of functions that returned")
FORECASTS = _counter(
    "poise_run_forecasts_total",
    "Finished tasks whose run time was forecast at placement: it lay `inside` the interval of about 95 %, or was "
    "`shorter` or `longer`",
    "result",
)
FORECAST_ERROR = _histogram(
    "poise_run_forecast_error_ratio", ERROR_RATIOS, "Absolute error of the run time forecast, divided by the run time"
)

START_FORECASTS = _counter(
    "poise_start_forecasts_total",
    "Starts compared with the first forecast that a user asked for while the job waited: the start was `inside` the "
    "interval of about 80 % (P10 to P90), or `earlier` or `later`",
    "result",
)
START_FORECAST_ERROR = _histogram(
    "poise_start_forecast_error_seconds",
    WAIT_SECONDS,
    "Absolute difference between such a start and the P50 of its forecast",
)

TENANT_UNITS = _gauge(
    "poise_tenant_unfinished_units",
    f"Unfinished units of the {SHOWN_TENANTS} tenants with the most units; the rest is `other`",
    "tenant",
    seen="tenant",
)
BUDGET_SPENT = _gauge(
    "poise_budget_spent_ratio",
    f"Spent fraction of a budget in its period, for the {SHOWN_TENANTS} budgets with the largest fraction",
    "budget",
)

TENANT_PENDING = _gauge("poise_tenant_pending_units", "Pending units of the same tenants", "tenant", seen="tenant")

NODES = _gauge(
    "poise_nodes",
    "Nodes by condition: `up`, `suspect` (silent for a moment), `lost`, `drained`, `emptying`, `unfit`",
    "condition",
    seen="tenant",
)
CONNECTED = _gauge("poise_connected_agents", "Agents that are connected", seen="tenant")
HEARTBEAT = _gauge(
    "poise_heartbeat_age_seconds",
    "Longest time since the last message of a connected agent",
    seen="tenant",
)
LOST = _gauge("poise_node_lost", f"1 for each node that is lost, up to {SHOWN_LOST}", "node", seen="tenant")
LOST_TOTAL = _counter("poise_lost_nodes_total", "Nodes that became lost", seen="tenant")
LOAD = _gauge(
    "poise_node_load_level",
    "Nodes by load level: `low`, `medium`, `high`, and `hot` (high for a while)",
    "level",
    seen="tenant",
)

CPU = _gauge(
    "poise_cpu_cores",
    "CPU cores: `held` by tasks, `free`, or `closed` (on nodes that take no new work)",
    "state",
    seen="tenant",
)
MEMORY = _gauge("poise_memory_bytes", "Memory of nodes: `held`, `free` or `closed`, as above", "state", seen="tenant")
DEVICES = _gauge(
    "poise_devices",
    "Devices by model and state: `held`, `shared` (a part is held), `free`, `fragmented` (free, on a node on which no "
    "waiting work fits), `cordoned`, `drained`, `unfit`, `suspect`, `lost`",
    "model",
    "state",
    seen="tenant",
)
PRICE = _gauge(
    "poise_device_price_dollars_per_hour",
    "Price of devices whose price is known: `held` or `unused`",
    "state",
    seen="tenant",
)
HELD_SECONDS = _counter(
    "poise_held_seconds_total",
    "CPU cores (`cpu`) and devices (`device`) held by tasks, times seconds, on nodes that measure their use",
    "resource",
    seen="tenant",
)
IDLE_SECONDS = _counter(
    "poise_held_idle_seconds_total",
    "The part of `poise_held_seconds_total` that was not busy: waste",
    "resource",
    seen="tenant",
)
ENERGY = _counter(
    "poise_energy_joules_total", "Energy that nodes measured, of `processors` and of `devices`", "part", seen="tenant"
)
CO2E = _counter(
    "poise_co2e_kilograms_total",
    "CO2e of the energy that nodes measured: by its `hour` in `intensity.yaml`, else at the world's mean (`constant`)",
    "part",
    "rate",
    seen="tenant",
)
ELECTRICITY = _counter(
    "poise_electricity_dollars_total",
    "Price of the energy that nodes measured, in hours to which `intensity.yaml` gives a price",
    "part",
    seen="tenant",
)

NODE_CPU = _gauge(
    "poise_node_cpu_ratio",
    f"CPU in use, as the agent reports it, of the {SHOWN_NODES} nodes with the highest use",
    "node",
    seen="tenant",
)
NODE_LOAD1 = _gauge(
    "poise_node_load1_ratio", "Threads that run or wait for a CPU, per core, mean of one minute", "node", seen="tenant"
)
NODE_MEMORY = _gauge("poise_node_memory_ratio", "Memory in use", "node", seen="tenant")
NODE_DISK = _gauge("poise_node_disk_busy_ratio", "Time that the busiest disk was busy", "node", seen="tenant")
NODE_NETWORK = _gauge("poise_node_network_ratio", "Network capacity in use", "node", seen="tenant")
NODE_DEVICES = _gauge(
    "poise_node_device_busy_ratio", "Time that the devices were busy, mean of the latest minute", "node", seen="tenant"
)
NODE_POWER = _gauge(
    "poise_node_power_watts", "Power of processors and devices, mean of the latest minute", "node", seen="tenant"
)
NODE_FAILURES = _gauge(
    "poise_node_failure_ratio", "Attempts that were lost or failed there, per attempt, smoothed", "node", seen="tenant"
)
AGENT_CPU = _gauge("poise_agent_cpu_cores", "CPU that the agent itself uses", "node", seen="tenant")
AGENT_SENT = _gauge(
    "poise_agent_sent_bytes_per_second", "Bytes per second that the agent itself sends", "node", seen="tenant"
)

METRICS: tuple[Metric, ...] = tuple(value for value in vars().values() if isinstance(value, Metric))
"""All metrics, in the order above."""
