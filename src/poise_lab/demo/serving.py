"""`python -m poise_lab.demo.serving`: a live service under a load that rises above its capacity and falls again.

It starts `poise serve` with a model that reads digits, sends it digits that were not used for training (an open loop:
questions are sent when due, regardless of earlier answers), and shows the results: one line per second here, and a page
with curves. The capacity of the model is measured first, so that the load has the same shape on any machine.
"""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from poise.units import SECOND
from poise_lab.demo.digits import Digits
from poise_lab.page import CURVE, WIDTH, Page, along, ticks

OBJECTIVE = 0.2
"""Objective for the P99 latency, in seconds."""

BATCH = 16

SHAPE = (0.2, 0.2, 0.4, 0.6, 0.8, 0.9, 1.5, 1.5, 1.5, 2.0, 2.0, 0.9, 0.6, 0.4, 0.2, 0.2)
"""The load in each second, as a fraction of the replica's capacity."""

CONNECTIONS = 128

TIMEOUT = 5.0


class Second:
    """Results of the questions of one second."""

    def __init__(self) -> None:
        self.asked = 0
        self.took: list[float] = []
        self.refused: list[float] = []
        self.failed = 0

    def quantile(self, part: float) -> float:
        took = sorted(self.took)
        return took[min(len(took) - 1, int(part * len(took)))] if took else 0.0


class Clients:
    """A pool of keep-alive connections; opens another one if none is free."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._bound = asyncio.Semaphore(CONNECTIONS)

    async def ask(self, body: bytes) -> int:
        """Send a request; return the status code of the answer."""
        async with self._bound:
            reader, writer = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
            start = f"POST /predict HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(start.encode() + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            self._free.append((reader, writer))
            return int(head[9:12])

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def drive(host: str, port: int, bodies: Sequence[bytes], capacity: float) -> list[Second]:
    """Send the load in `SHAPE`; return the results, second by second."""
    clients, draw = Clients(host, port), random.Random(0)  # noqa: S311 — a load, no secret
    seconds = [Second() for _ in SHAPE]
    asking: set[asyncio.Task[None]] = set()

    async def one(second: Second) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                status = await clients.ask(draw.choice(bodies))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            second.failed += 1
            return
        took = time.perf_counter() - began
        if status == 200:
            second.took.append(took)
        elif status == 503:
            second.refused.append(took)
        else:
            second.failed += 1

    began = time.perf_counter()
    due = 0.0
    told = 0
    while due < len(SHAPE):
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        second = seconds[int(due)]
        second.asked += 1
        task = asyncio.create_task(one(second))
        asking.add(task)
        task.add_done_callback(asking.discard)
        due += draw.expovariate(capacity * SHAPE[int(due)])
        if int(due) > told + 1:
            tell(told, seconds[told])
            told += 1
    await asyncio.gather(*asking)
    for number in range(told, len(SHAPE)):
        tell(number, seconds[number])
    clients.close()
    return seconds


def tell(number: int, second: Second) -> None:
    sys.stdout.write(
        f"{number:>3} s  asked {second.asked:>5}  answered {len(second.took):>5}  refused {len(second.refused):>5}  "
        f"P50 {1000 * second.quantile(0.5):>4.0f} ms  P99 {1000 * second.quantile(0.99):>4.0f} ms\n"
    )
    sys.stdout.flush()


def page_of(seconds: Sequence[Second], capacity: float, objective: float) -> str:
    """Return the curves as a self-contained page."""
    page = Page("A service under a load that rises beyond what it can do")
    late = sum(took > objective for second in seconds for took in second.took)
    answered = sum(len(second.took) for second in seconds)
    refused = sorted(took for second in seconds for took in second.refused)
    page.raw("<dl>")
    page.figure("Asked", str(sum(second.asked for second in seconds)), f"at most {max(SHAPE):g} times what it can do")
    page.figure("Answered", str(answered), f"{late} of them later than {1000 * objective:.0f} ms")
    refused_after = f"after {1000 * refused[len(refused) // 2]:.0f} ms, the median" if refused else ""
    page.figure("Refused", str(len(refused)), refused_after)
    page.figure("It can do", f"{capacity:.0f} a second", f"in batches of at most {BATCH}")
    page.raw("</dl>")
    curves(
        page,
        "Questions a second",
        {
            "asked": [second.asked for second in seconds],
            "answered": [len(second.took) for second in seconds],
            "refused": [len(second.refused) for second in seconds],
        },
    )
    curves(
        page,
        "Milliseconds that answers took",
        {
            "P99": [1000 * second.quantile(0.99) for second in seconds],
            "P50": [1000 * second.quantile(0.5) for second in seconds],
        },
    )
    return page.text()


COLOURS = ("var(--faint)", "var(--done)", "var(--failed)")


def curves(page: Page, title: str, lines: dict[str, list[float]]) -> None:
    most = max(max(values) for values in lines.values()) or 1.0
    length = len(SHAPE) * SECOND
    page.tag("h2", title)
    page.tag("p", f"At most {most:,.4g} on this scale.", class_="faint")
    page.raw(f'<svg viewBox="0 0 {WIDTH} {CURVE + 24}" role="img" aria-label="{title}">\n')
    ticks(page, length, CURVE + 24)
    for colour, (name, values) in zip(COLOURS, lines.items(), strict=False):
        points = " ".join(
            f"{along((at + 0.5) * SECOND, length):g},{CURVE - (CURVE - 6) * value / most:.1f}"
            for at, value in enumerate(values)
        )
        page.raw(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>\n')
        at, value = len(values) // 2, values[len(values) // 2]
        where = f'x="{along((at + 0.6) * SECOND, length):g}" y="{CURVE - (CURVE - 6) * value / most - 3:.0f}"'
        page.raw(f"<text {where}>{name}</text>\n")
    page.raw("</svg>\n")


def capacity_of(model: Digits) -> float:
    """Return the digits per second that the model reads in its largest batches on this machine, less 20 % for a busy
    gateway.
    """
    example, best = model.example(), 0.0
    for _ in range(20):
        began = time.perf_counter()
        model.predict([example] * BATCH)
        best = max(best, BATCH / (time.perf_counter() - began))
    return best * 0.8


def main(out: Path) -> int:
    """Run the whole demonstration; return 0 if the P99 latency is within the objective."""
    model = Digits()
    model.load()
    capacity = capacity_of(model)
    root = Path(tempfile.mkdtemp(prefix="poise-serve-"))
    poise = str(Path(sys.executable).with_name("poise"))
    command = [poise, "serve", "poise_lab.demo.digits:Digits", "--port", "0", "--json"]
    promise = ["--objective", f"{1000 * OBJECTIVE:.0f}ms", "--batch", str(BATCH)]
    environ = os.environ | {"POISE_HOME": str(root / "home"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(  # noqa: S603 — our own program
        [*command, *promise], stdout=subprocess.PIPE, cwd=root, env=environ
    ) as process:
        try:
            seconds = asyncio.run(ask(_address(process), model.questions(), capacity))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            shutil.rmtree(root, ignore_errors=True)
    out.write_text(page_of(seconds, capacity, OBJECTIVE))
    took = sorted(took for second in seconds for took in second.took)
    p99 = took[int(0.99 * len(took))]
    verdict = "kept" if p99 <= OBJECTIVE else "missed"
    sys.stdout.write(f"P99 of what was answered: {1000 * p99:.0f} ms, {verdict}. The curves: {out}\n")
    return 0 if p99 <= OBJECTIVE else 2


def _address(process: subprocess.Popen[bytes]) -> tuple[str, int]:
    """Return the address that the service reports."""
    said = b""
    while process.stdout is not None and not said.rstrip().endswith(b"}"):
        line = process.stdout.readline()
        if not line:
            raise SystemExit(process.wait())
        said += line
    host, _, port = json.loads(said)["url"].rpartition("/")[2].partition(":")
    return host, int(port)


async def ask(address: tuple[str, int], bodies: Sequence[bytes], capacity: float) -> list[Second]:
    """Wait until the service answers, then send the load in `SHAPE`."""
    clients = Clients(*address)
    await clients.ask(bodies[0])
    clients.close()
    sys.stdout.write(f"the model reads about {capacity:.0f} digits a second; {1000 * OBJECTIVE:.0f} ms are promised\n")
    return await drive(*address, bodies, capacity)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "serving.html")))
