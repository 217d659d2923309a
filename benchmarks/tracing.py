"""The cost of exporting traces: one job of many tasks, with and without `poise up --traces`, in turns.

    python benchmarks/tracing.py [--tasks 10000] [--runs 5] [--json]

Everything runs on two cores: control plane, agent, keepers, commands, the exporter, and a receiver of OTLP that keeps
what it is sent. A run ends when the end of the job is durable. Then all spans are waited for and counted: three of each
task, and two of the job. The exporter computes only where a core is idle; its CPU time is told apart from that of the
control plane, and both change less with other work on the machine than the time of the job does.
"""

import argparse
import contextlib
import gzip
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import harness
import psutil
from harness import Figure, rate, ratio, say

from poise.drivers.lock import holder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from otlp.trace_service_pb2 import ExportTraceServiceRequest

TARGET_RATIO = 1.03
"""A traced job costs at most 3 % of throughput."""

SPANS_SECONDS = 120.0
WARM = 20
"""Commands that run first, of five spans each."""


class Receiver:
    """Keeps the bodies that it is sent, and decodes them when they are counted."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> set[tuple[bytes, bytes]]:
        """The ids of all spans that have come."""
        requests = [ExportTraceServiceRequest.FromString(gzip.decompress(body)) for body in list(self.bodies)]
        return {
            (span.trace_id, span.span_id)
            for request in requests
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        }


class Run(NamedTuple):
    """Seconds from the submission of the job to its durable end, and milliseconds of CPU for each task: of the control
    plane, of the exporter until all spans have come, and of all of Poise with the processes that it started.
    """

    took: float
    control: float
    exporter: float
    everything: float


def run(tasks: int, got: Receiver | None) -> Run:
    """The job once; traced if there is a receiver."""
    with harness.own_fleet(*(["--traces", got.url] if got else []), warm=WARM) as fleet:
        groups = fleet.processes()
        if got is not None:
            groups["exporter"] = [psutil.Process(holder(fleet.home.traces / "lock"))]
        before, begun = computed(groups), perf_counter()
        job = fleet.client.submit({"run": ["/bin/true"], "parts": tasks})
        report = fleet.client.wait(job)
        took = perf_counter() - begun
        if report.exit_code != 0:
            raise RuntimeError(f"the job ended as {report.status}")
        if got is not None:
            until_all_came(got, 3 * tasks + 2 + 5 * WARM)
        used = {name: 1e3 * (seconds - before[name]) / tasks for name, seconds in computed(groups).items()}
    return Run(took, used["control plane"], used.get("exporter", 0.0), sum(used.values()))


def computed(groups: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Seconds of CPU so far, of the tasks that keepers have started too."""
    return {name: sum(sum(process.cpu_times()[:4]) for process in group) for name, group in groups.items()}


def until_all_came(got: Receiver, wanted: int) -> None:
    """Until so many spans are there, no more and no fewer."""
    deadline = time.monotonic() + SPANS_SECONDS
    while (there := len(got.spans())) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{there} of {wanted} spans have come")
        time.sleep(0.5)
    got.bodies.clear()


def measure(tasks: int, runs: int) -> list[Figure]:
    plain: list[Run] = []
    traced: list[Run] = []
    with contextlib.closing(Receiver()) as got:
        for number in range(runs):
            order: list[tuple[list[Run], Receiver | None]] = [(plain, None), (traced, got)]
            for found, to in order if number % 2 == 0 else reversed(order):
                found.append(run(tasks, to))
            say(f"run {number + 1}: {plain[-1].took:.2f} s not traced, {traced[-1].took:.2f} s traced")
    took, control, _, everything = (list(values) for values in zip(*plain, strict=True))
    took_traced, control_traced, exporter, everything_traced = (list(values) for values in zip(*traced, strict=True))
    return [
        rate("tasks, not traced", tasks, took),
        rate("tasks, traced", tasks, took_traced),
        ratio("  time, traced over not traced", took_traced, took, limit=TARGET_RATIO),
        Figure(name="CPU of the control plane for a task, not traced", unit="ms", values=control),
        Figure(name="CPU of the control plane for a task, traced", unit="ms", values=control_traced),
        ratio("  traced over not traced", control_traced, control, limit=TARGET_RATIO),
        Figure(name="CPU of the exporter for a task", unit="ms", values=exporter),
        Figure(name="CPU of all of Poise and the task, not traced", unit="ms", values=everything),
        Figure(name="CPU of all of Poise and the task, traced", unit="ms", values=everything_traced),
        ratio("  traced over not traced", everything_traced, everything),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks of the job")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return harness.program(lambda: measure(given.tasks, given.runs), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
