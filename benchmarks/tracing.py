"""Measure the cost of exporting traces: one job of many tasks, with and without `poise up --traces`, in turns.

    python benchmarks/tracing.py [--tasks 10000] [--runs 5] [--parts] [--json]

Everything runs on two cores: control plane, agent, keepers, commands, the exporter, and an OTLP receiver that stores
what it gets. A run ends when the end of the job is durable. Then the benchmark waits for all spans and counts them:
three per task, and two for the job. The exporter computes only on idle cores; its CPU time is reported separately from
that of the control plane, and both depend less on other work on the machine than the time of the job. With `--parts`,
there are two more runs in each round: traced with an exporter that is stopped during the job, and untraced beside a
process with the exporter's low priority that uses 10 % of a core.
"""

import argparse
import contextlib
import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
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
"""Maximum cost of tracing: 3 % of throughput."""

SPANS_SECONDS = 120.0
WARM = 20
"""Commands that run first, of five spans each."""


OTHER = """
import time
from poise.drivers.system import give_way
give_way()
while True:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        sorted(map(str, range(1000)))
    time.sleep(0.45)
"""


class Receiver:
    """Stores the request bodies, and decodes them when they are counted."""

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
        """Return the ids of all received spans."""
        requests = [ExportTraceServiceRequest.FromString(gzip.decompress(body)) for body in list(self.bodies)]
        return {
            (span.trace_id, span.span_id)
            for request in requests
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        }


class Run(NamedTuple):
    """Seconds from the submission of the job to its durable end, and milliseconds of CPU per task: of the control
    plane, of the exporter until all spans have arrived, and of all of Poise including the processes that it started.
    """

    took: float
    control: float
    exporter: float
    everything: float


def run(tasks: int, got: Receiver | None, *, stopped: bool = False, beside: bool = False) -> Run:
    """Run the job once; traced if there is a receiver, with the exporter `stopped` until the end of the job or not, or
    `beside` another process.
    """
    with harness.own_fleet(*(["--traces", got.url] if got else []), warm=WARM) as fleet:
        groups = fleet.processes()
        if got is not None:
            groups["exporter"] = [psutil.Process(holder(fleet.home.traces / "lock"))]
            if stopped:
                groups["exporter"][0].suspend()
        before, begun = computed(groups), perf_counter()
        with other() if beside else contextlib.nullcontext():
            job = fleet.client.submit({"run": ["/bin/true"], "parts": tasks})
            report = fleet.client.wait(job)
        took, after = perf_counter() - begun, computed(groups)
        if stopped:
            groups["exporter"][0].resume()
        if report.exit_code != 0:
            raise RuntimeError(f"the job ended as {report.status}")
        if got is not None:
            until_all_came(got, 3 * tasks + 2 + 5 * WARM)
            after["exporter"] = computed(groups)["exporter"]  # the other processes continued meanwhile
        used = {name: 1e3 * (seconds - before[name]) / tasks for name, seconds in after.items()}
    return Run(took, used["control plane"], used.get("exporter", 0.0), sum(used.values()))


@contextlib.contextmanager
def other() -> Iterator[None]:
    """Run a low-priority process that uses 10 % of a core."""
    process = subprocess.Popen([sys.executable, "-c", OTHER])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def computed(groups: dict[str, list[psutil.Process]]) -> dict[str, float]:
    """Return the CPU seconds so far, including the tasks that keepers have started."""
    return {name: sum(sum(process.cpu_times()[:4]) for process in group) for name, group in groups.items()}


def until_all_came(got: Receiver, wanted: int) -> None:
    """Wait until exactly the expected number of spans has arrived."""
    deadline = time.monotonic() + SPANS_SECONDS
    while (there := len(got.spans())) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{there} of {wanted} spans have come")
        time.sleep(0.5)
    got.bodies.clear()


def measure(tasks: int, runs: int, *, parts: bool) -> list[Figure]:
    found: dict[str, list[Run]] = {"not traced": [], "traced": []}
    if parts:
        found |= {"traced, exporter stopped": [], "not traced, beside another process": []}
    with contextlib.closing(Receiver()) as got:
        for number in range(runs):
            for name in found if number % 2 == 0 else reversed(found):
                to = None if name.startswith("not") else got
                made = run(tasks, to, stopped=name.endswith("stopped"), beside=name.endswith("process"))
                found[name].append(made)
                say(f"run {number + 1}: {made.took:.2f} s {name}")
    figures: list[Figure] = []
    plain = found["not traced"]
    for name, of in found.items():
        figures += [
            rate(f"tasks, {name}", tasks, [one.took for one in of]),
            Figure(name="  CPU of the control plane for a task", unit="ms", values=[one.control for one in of]),
            Figure(name="  CPU of all of Poise and the task", unit="ms", values=[one.everything for one in of]),
        ]
        if of is not plain:
            limit = TARGET_RATIO if name == "traced" else None
            figures += [
                ratio("  time, over not traced", *_of(of, plain, "took"), limit=limit),
                ratio("  CPU of the control plane, over not traced", *_of(of, plain, "control"), limit=limit),
                ratio("  CPU of all, over not traced", *_of(of, plain, "everything")),
            ]
    exporter = [one.exporter for one in found["traced"]]
    return [*figures, Figure(name="CPU of the exporter for a task", unit="ms", values=exporter)]


def _of(runs: Sequence[Run], plain: Sequence[Run], name: str) -> tuple[list[float], list[float]]:
    return [getattr(one, name) for one in runs], [getattr(one, name) for one in plain]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks of the job")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--parts", action="store_true", help="measure where the cost comes from, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    return harness.program(lambda: measure(given.tasks, given.runs, parts=given.parts), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
