"""Compare Poise's dashboard with those of Ray and Dask: the time until a browser shows what has run, and its cost.

    python benchmarks/peers.py install ray-jobs dask
    python benchmarks/dashboards.py [--tasks 10000] [--rounds 3] [--seconds 10] [--only NAMES] [--json]

Each system runs `--tasks` no-op tasks on two cores, and then one a second. Debian's headless Chromium, with an empty
profile, opens the page that shows them: the job page of Ray and Poise, the status page of Dask. The figures are

* the time until the page shows them: the number of tasks as text, or for Dask its pictures, which have no text;
* the bytes received and the compute time of the page until then (`Performance.getMetrics`);
* the compute time of the page and its server processes while the page stays open.

Ray's dashboard shows at most 10,000 tasks of a job.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import harness
import peers
import psutil
from dashboard import dashboard
from harness import Figure, absent, say

from poise.dashboard.serve import new_link
from poise.drivers.lock import holder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser
from browser import Browser

OPEN_SECONDS = 60.0

WATCH = """
addEventListener("DOMContentLoaded", () => {
  const inside = (root, name) => [...root.querySelectorAll(name),
    ...[...root.querySelectorAll("*")].flatMap((one) => one.shadowRoot ? inside(one.shadowRoot, name) : [])];
  const look = () => {
    if (%s) {
      window.shownAfter = performance.now();
      window.came = performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0);
    } else setTimeout(look, 20);
  };
  look();
});
"""
"""Records when a condition first holds: `shownAfter`, in milliseconds since the page request."""

COUNTED = "/%s/.test(document.body.innerText.replace(/[,.\\u202f\\u00a0 ]/g, ''))"
"""Condition: the number of tasks appears as text."""

DRAWN = (
    "inside(document, 'canvas').some((one) => one.width > 99 && one.height > 99 && one.getContext('2d')"
    ".getImageData(0, 0, one.width, one.height).data.some((of) => of))"
)
"""Condition: a picture is drawn."""


class Shown(NamedTuple):
    """Seconds until a page shows the tasks, KB received and milliseconds computed until then; then the compute load of
    the open page and of its server processes, in percent of a core.
    """

    after: float
    came: float
    computed: float
    open: float
    serving: float


class Serving(NamedTuple):
    """A page, its display condition, and its server processes."""

    url: str
    condition: str
    processes: list[psutil.Process]
    version: str = ""


@contextlib.contextmanager
def poise(tasks: int) -> Iterator[Serving]:
    """Run a job with `tasks` tasks, and then one task a second."""
    with harness.own_fleet(warm=harness.SLOTS) as fleet:
        job = fleet.client.submit({"run": ["/bin/true"], "parts": tasks, "name": "many"})
        fleet.client.wait(job)
        with dashboard(fleet.home) as running, beside(fleet.home.root):
            link = new_link(fleet.home, running.url)
            yield Serving(
                f"{running.url}jobs/{job}#{link.partition('#')[2]}",
                COUNTED % tasks,
                [psutil.Process(holder(fleet.home.dashboard))],
            )


@contextlib.contextmanager
def beside(root: Path) -> Iterator[None]:
    """Submit a task a second."""
    program = "while sleep 1; do poise submit -- true >/dev/null 2>&1; done"
    environ = {**os.environ, "POISE_HOME": str(root), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(["/bin/sh", "-c", program], env=environ)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def peer(name: str, script: str, condition: str, tasks: int) -> Iterator[Serving]:
    """Serve a peer's page. Raises Absent if the peer is not installed or does not run."""
    python, mark = peers.python_of(peers.FOLDER, peers.PEERS[name]), harness.new_mark()
    with tempfile.TemporaryDirectory(prefix="pb-", ignore_cleanup_errors=True) as work:
        process = subprocess.Popen(
            [python, str(peers.SCRIPTS / script), work, str(tasks)],
            cwd=work,
            env={**os.environ, **mark, "TMPDIR": work},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            line = process.stdout.readline()  # type: ignore[union-attr]
            if not line:
                raise peers.Absent("it does not run here")
            told: dict[str, Any] = json.loads(line)
            started = psutil.Process(process.pid)
            serves = [
                one
                for one in (started, *started.children(recursive=True))
                if re.search(told["served_by"], " ".join(one.cmdline()))
            ]
            yield Serving(told["url"], condition, serves, told["version"])
        finally:
            harness.end_marked(mark, work)
            process.wait()


def shown(of: Serving, seconds: float) -> Shown:
    """Open the page in a new browser, and measure it."""
    with browser.running() as page:
        page.call("Performance.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH % of.condition)
        page.call("Page.navigate", url=of.url)
        deadline = time.monotonic() + OPEN_SECONDS
        while (found := page.evaluate("window.shownAfter ? [window.shownAfter, window.came] : null")) is None:
            if time.monotonic() > deadline:
                text = page.evaluate("document.body.innerText")[:500]
                raise peers.Absent(f"the page does not show the tasks within {OPEN_SECONDS:.0f} s: {text!r}")
            time.sleep(0.05)
        until = computed(page)
        before, begun = served(of), perf_counter()
        time.sleep(seconds)
        took = perf_counter() - begun
        return Shown(
            found[0] / 1e3,
            found[1] / 1e3,
            until,
            (computed(page) - until) / took / 10,
            100 * (served(of) - before) / took,
        )


def computed(page: Browser) -> float:
    """Return the milliseconds that the page has computed."""
    metrics = page.call("Performance.getMetrics")["metrics"]
    return 1e3 * next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def served(of: Serving) -> float:
    """Return the CPU seconds of the server processes."""
    return sum(sum(process.cpu_times()[:2]) for process in of.processes)


def measure(tasks: int, rounds: int, seconds: float, only: str) -> list[Figure]:
    systems = {
        "Poise": lambda: poise(tasks),
        "Ray": lambda: peer("ray-jobs", "ray_dashboard.py", COUNTED % tasks, tasks),
        "Dask": lambda: peer("dask", "dask_dashboard.py", DRAWN, tasks),
    }
    systems = {name: system for name, system in systems.items() if not only or name in only.split(",")}
    found: dict[str, list[Shown]] = {name: [] for name in systems}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in systems if number % 2 == 0 else reversed(systems):
            if name in missing:
                continue
            try:
                with systems[name]() as serving:
                    found[name].append(shown(serving, seconds))
            except peers.Absent as why:
                missing[name] = str(why)
                say(f"{name}: {why}")
            else:
                say(f"round {number + 1}: {name} {serving.version} shows them after {found[name][-1].after:.2f} s")
    figures = [absent(name, why) for name, why in missing.items()]
    for name, of in found.items():
        if of and name not in missing:
            figures += [
                Figure(name=f"{name}: shown after", unit="s", values=[one.after for one in of]),
                Figure(name="  KB until then", unit="", values=[one.came for one in of]),
                Figure(name="  computed by the page until then", unit="ms", values=[one.computed for one in of]),
                Figure(name="  the open page", unit="%", values=[one.open for one in of]),
                Figure(name="  what serves it", unit="%", values=[one.serving for one in of]),
            ]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="dashboards of Poise, Ray and Dask")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="for which each page stays open")
    parser.add_argument("--only", default="", help="of Poise,Ray,Dask, those that are measured")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = given.tasks, given.rounds, given.seconds, given.only
    return harness.program(lambda: measure(*sizes), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
