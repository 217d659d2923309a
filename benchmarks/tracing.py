"""The cost of exporting traces: one job of many tasks, with and without `poise up --traces`, in turns.

    python benchmarks/tracing.py [--tasks 10000] [--runs 5] [--json]

Everything runs on two cores: control plane, agent, keepers, commands, the exporter, and a receiver of OTLP that keeps
what it is sent. A run ends when the end of the job is durable. Then all spans are waited for and counted: three of each
task, and two of the job.
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
from typing import Any

import harness
import psutil
from harness import Figure, rate, ratio, say

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from otlp.trace_service_pb2 import ExportTraceServiceRequest

TARGET_RATIO = 1.03
"""A traced job takes at most 3 % longer."""

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


def run(tasks: int, got: Receiver | None) -> tuple[float, float]:
    """Seconds from the submission of the job to its durable end, and those that control plane and agent computed;
    traced if there is a receiver.
    """
    with harness.own_fleet(*(["--traces", got.url] if got else []), warm=WARM) as fleet:
        deciding = [one for name in ("control plane", "agent") for one in fleet.processes()[name]]
        before, begun = sum(map(computed, deciding)), perf_counter()
        job = fleet.client.submit({"run": ["/bin/true"], "parts": tasks})
        report = fleet.client.wait(job)
        took, cpu = perf_counter() - begun, sum(map(computed, deciding)) - before
        if report.exit_code != 0:
            raise RuntimeError(f"the job ended as {report.status}")
        if got is not None:
            until_all_came(got, 3 * tasks + 2 + 5 * WARM)
    return took, cpu


def computed(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def until_all_came(got: Receiver, wanted: int) -> None:
    """Until so many spans are there, no more and no fewer."""
    deadline = time.monotonic() + SPANS_SECONDS
    while (there := len(got.spans())) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{there} of {wanted} spans have come")
        time.sleep(0.5)
    got.bodies.clear()


def measure(tasks: int, runs: int) -> list[Figure]:
    plain: list[tuple[float, float]] = []
    traced: list[tuple[float, float]] = []
    with contextlib.closing(Receiver()) as got:
        for number in range(runs):
            order: list[tuple[list[tuple[float, float]], Receiver | None]] = [(plain, None), (traced, got)]
            for found, to in order if number % 2 == 0 else reversed(order):
                found.append(run(tasks, to))
            say(f"run {number + 1}: {plain[-1][0]:.2f} s not traced, {traced[-1][0]:.2f} s traced")
    (took, cpu), (took_traced, cpu_traced) = (list(zip(*found, strict=True)) for found in (plain, traced))
    return [
        rate("tasks, not traced", tasks, took),
        rate("tasks, traced", tasks, took_traced),
        ratio("  time, traced over not traced", took_traced, took, limit=TARGET_RATIO),
        ratio("  CPU of control plane and agent, traced over not traced", cpu_traced, cpu),
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
