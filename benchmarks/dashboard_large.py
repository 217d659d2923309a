"""Measure a large fleet on the dashboard pages: the time to the first picture, and the cost of navigating.

    python benchmarks/dashboard_large.py [--nodes 10000] [--records 1000000] [--seconds 5] [--pages 50] [--rounds 2]
        [--keep FOLDER] [--json]

A log of such a fleet (`looking_back.py`) is given to a real control plane with an agent, and a real dashboard serves
it. Debian's headless Chromium opens *Now* and *Timeline* on the same two cores. The figures are the time until each
draws its first picture, the bytes received until then, and the load of a page while jobs are submitted. The timeline is
then dragged for some seconds, to measure the frames and the compute time per frame (`Performance.getMetrics`).

Then the browser is closed, and jobs are submitted at a steady pace: in turns without pages, and with `--pages` of them,
each with its own session and stream (`dashboard.py`). The figures are the rounds of the control plane, and the time
from the answer to a submission until the last page has the job.
"""

import argparse
import contextlib
import itertools
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import harness
import looking_back
from dashboard import TARGET_LAG_MS, TARGET_ROUNDS, Pages, dashboard, paced, shown, slowest_round
from harness import Figure, Fleet, percentile, say

from poise.client import Client
from poise.config import Home
from poise.control.start import ensure_up
from poise.dashboard.app import ASSETS
from poise.dashboard.serve import new_link
from poise.drivers.dashboards import Running
from poise.units import HOUR

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser
from browser import Browser

FIRST_SECONDS, FRAME_MS, FRONT_END_KB = 1.0, 1000 / 60, 250.0
OPEN_SECONDS = 120.0

OUTAGE_HOLD = str(HOUR)
"""Nanoseconds for which the work of the nodes of the log, which are not there, stays in place."""

PACED_SECONDS, PER_SECOND, SETTLE_SECONDS = 25.0, 20.0, 5.0
"""Settings of the job stream in each turn: as many rounds as the control plane remembers."""

WATCH = """
addEventListener("DOMContentLoaded", () => {
  const look = () => {
    const canvas = document.querySelector("main canvas");
    const drawn = canvas && canvas.width && canvas.height && canvas.getContext("2d")
      .getImageData(0, 0, canvas.width, canvas.height).data.some((one) => one);
    if (drawn && (location.pathname !== "/timeline" || canvas.getAttribute("aria-label")?.includes(" rows"))) {
      window.drawnAfter = performance.now();
      window.came = performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0);
    } else setTimeout(look, 5);
  };
  look();
});
"""
"""Records when the first picture is drawn: `drawnAfter`, in milliseconds since the page request."""

FRAMES = """
new Promise((done) => {
  const times = [];
  const until = performance.now() + %d;
  const frame = (now) => { times.push(now); if (now < until) requestAnimationFrame(frame); else done(times); };
  requestAnimationFrame(frame);
})
"""

DRAG = """
(() => {
  const canvas = document.querySelector("main canvas");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const tell = (what, x) => canvas.dispatchEvent(new PointerEvent(what, { bubbles: true, pointerId: 1, button: 0,
    buttons: 1, clientX: x, clientY: top + height / 2 }));
  let x = left + width / 2, step = 7;
  canvas.setPointerCapture = () => {};
  tell("pointerdown", x);
  const move = () => {
    x += step;
    if (x > left + width - 50 || x < left + 250) step = -step;
    tell("pointermove", x);
    window.dragging = requestAnimationFrame(move);
  };
  move();
})()
"""


@contextlib.contextmanager
def large_fleet(nodes: int, records: int, kept: Path | None) -> Iterator[Fleet]:
    """Run a control plane and an agent on the log of a large fleet; copy the `kept` log if it exists."""
    with harness.own_home() as home:
        if kept is None or not kept.exists():
            say(f"writing a log of {records:,} records")
            looking_back.write(home if kept is None else Home(kept), nodes, records)
        if kept is not None:
            shutil.copytree(kept, home.root)
        with contextlib.closing(ensure_up(home, "--port", "0", "--outage-hold", OUTAGE_HOLD)) as client:
            yield Fleet(home, client)


def opened(page: Browser, address: str) -> tuple[float, float]:
    """Return the seconds until the first picture, and the KB received until then."""
    page.call("Page.navigate", url=address)
    deadline = time.monotonic() + OPEN_SECONDS
    while (found := page.evaluate("window.drawnAfter ? [window.drawnAfter, window.came] : null")) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{address} has drawn nothing: {page.errors}")
        time.sleep(0.05)
    return found[0] / 1e3, found[1] / 1e3


def computed(page: Browser) -> float:
    """Return the milliseconds that the page has computed."""
    metrics = page.call("Performance.getMetrics")["metrics"]
    return 1e3 * next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def frames(page: Browser, seconds: float) -> tuple[list[float], float]:
    """Return the milliseconds between frames, and the milliseconds computed per frame."""
    before = computed(page)
    times: list[float] = page.evaluate(FRAMES % (1000 * seconds))
    used = computed(page) - before
    return [after - at for at, after in itertools.pairwise(times)], used / max(1, len(times) - 1)


def changes(client: Client, page: Browser, seconds: float) -> float:
    """Return the milliseconds that the page computes per second while a job is submitted four times a second."""
    before, begun = computed(page), perf_counter()
    while perf_counter() - begun < seconds:
        client.submit(harness.NO_OP)
        time.sleep(0.25)
    return (computed(page) - before) / (perf_counter() - begun)


def many_pages(fleet: Fleet, running: Running, pages: int, rounds: int) -> list[Figure]:
    """Measure rounds without and with pages, in turns, and the delay until pages show a change."""
    alone: list[float] = []
    beside: list[float] = []
    first, last = [], []
    number = 0
    for _ in range(rounds):
        for count in (0, pages):
            with contextlib.ExitStack() as stack:
                seen: dict[str, list[float]] = {}
                if count:
                    reading = Pages(fleet.home, running, count)
                    stack.callback(reading.close)
                    seen = reading.seen
                time.sleep(SETTLE_SECONDS)
                cpu, _, answered = paced(fleet, PACED_SECONDS, PER_SECOND, number)
                number += len(answered)
                time.sleep(1)
                (beside if count else alone).append(slowest_round(fleet))
                say(f"{count} pages: rounds {slowest_round(fleet):.2f} ms, control plane {cpu:.1f} % of a core")
                if count:
                    soon, late = shown(seen, answered, count)
                    first.append(percentile(soon, 50))
                    last.append(percentile(late, 99))
    slower = [100 * (with_pages / without - 1) for without, with_pages in zip(alone, beside, strict=True)]
    return [
        Figure(name="phases of a round, P99, no page", unit="ms", values=alone),
        Figure(name=f"phases of a round, P99, {pages} pages", unit="ms", values=beside),
        Figure(name="  slower with pages", unit="%", values=slower, limit=TARGET_ROUNDS),
        Figure(name="shown by the first page, P50", unit="ms", values=first),
        Figure(name="shown by the last page, P99", unit="ms", values=last, limit=TARGET_LAG_MS),
    ]


def measure(
    nodes: int, records: int, seconds: float, pages: int, rounds: int, kept: Path | None = None
) -> list[Figure]:
    with large_fleet(nodes, records, kept) as fleet, dashboard(fleet.home) as running:
        return [*one_page(fleet, running, seconds), *(many_pages(fleet, running, pages, rounds) if pages else [])]


def one_page(fleet: Fleet, running: Running, seconds: float) -> list[Figure]:
    """Measure one browser on such a fleet."""
    with browser.running() as page:
        page.call("Performance.enable")
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        now_cold, came = opened(page, new_link(fleet.home, running.url))
        now_warm, _ = opened(page, f"{running.url}now")
        busy = changes(fleet.client, page, seconds)
        timeline_cold, _ = opened(page, f"{running.url}timeline")
        timeline_warm, _ = opened(page, f"{running.url}timeline")
        page.evaluate(DRAG)
        between, each = frames(page, seconds)
        if errors := [error for error in page.errors if "503" not in error]:  # the page retries after a 503
            raise RuntimeError(f"the pages had errors: {errors}")
    front_end = sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) / 1e3
    return [
        Figure(name="Now, first picture of a new dashboard", unit="s", values=[now_cold]),
        Figure(name="Now, first picture", unit="s", values=[now_warm], limit=FIRST_SECONDS),
        Figure(name="  KB until then", unit="", values=[came]),
        Figure(name="Now, busy with changes", unit="%", values=[busy / 10]),
        Figure(name="Timeline, first picture of a new dashboard", unit="s", values=[timeline_cold]),
        Figure(name="Timeline, first picture", unit="s", values=[timeline_warm], limit=FIRST_SECONDS),
        Figure(name="frame while dragging, P50", unit="ms", values=[percentile(between, 50)]),
        Figure(name="frame while dragging, P95", unit="ms", values=[percentile(between, 95)]),
        Figure(name="computed for a frame", unit="ms", values=[each], limit=FRAME_MS),
        Figure(name="front end, KB", unit="", values=[front_end], limit=FRONT_END_KB),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="a large fleet on the pages of the dashboard")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of dragging, and of changes")
    parser.add_argument("--pages", type=int, default=50, help="open pages; 0: only the browser is measured")
    parser.add_argument("--rounds", type=int, default=2, help="turns without and with those pages")
    parser.add_argument("--keep", type=Path, help="the log is kept in this folder, and taken from there the next time")
    parser.add_argument("--json", action="store_true")
    given: Any = parser.parse_args()
    sizes = given.nodes, given.records, given.seconds, given.pages, given.rounds, given.keep
    return harness.program(lambda: measure(*sizes), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
