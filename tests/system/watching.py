"""A running Poise with jobs of each kind, its dashboard, and a browser in it: for tests and for pictures."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from browser import Browser, running

from poise.client import Client
from system.living import Living, ended, kill, until
from system.serving import Serving

FLEET = """
kind: fleet
name: two
nodes:
  fast:
    {cpu: 4, memory: 4GiB, rack: r1,
     devices: [{model: fast, backend: cuda, count: 2, memory: 16GB, power: 300W, price: 2}]}
  slow:
    {cpu: 4, memory: 4GiB, rack: r2,
     devices: [{model: slow, backend: rocm, count: 2, memory: 16GB, power: 200W, price: 1}]}
"""
GRAPH = """
kind: graph
name: report
tasks:
  fetch: {run: echo fetched}
  count: {run: echo counted, needs: [fetch]}
  write: {run: sleep 1000, needs: [count], expect: 10m}
"""
TRAINS = """
import time
import torch
import poise
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 64)[:, None], 3 * torch.linspace(-1, 1, 64)[:, None])
model = torch.nn.Linear(1, 1)
with poise.Session(model, torch.optim.SGD(model.parameters(), 0.05), data, epochs=100_000, batch=16) as run:
    for x, y in run:
        run.step(torch.nn.functional.mse_loss(model(x), y))
        time.sleep(0.2)
"""
SERVICE = """
class Twice:
    def predict(self, batch: list[float]) -> list[float]:
        return [2 * one for one in batch]
"""
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


class Seen(NamedTuple):
    """A Poise, its dashboard, and a browser that has come in by a link."""

    living: Living
    process: "subprocess.Popen[bytes]"
    url: str
    browser: Browser

    serving: Serving | None = None

    @property
    def client(self) -> Client:
        return self.living.client()

    def go(self, path: str) -> None:
        """Open a page of the dashboard from its beginning."""
        self.browser.call("Page.navigate", url=self.url.rstrip("/") + path)
        self.browser.wait()
        self.wait("Boolean(document.querySelector('main h1'))")

    def wait(self, condition: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        return until(lambda: self.browser.evaluate(condition), condition, self.text)

    def text(self) -> str:
        found: str = self.browser.evaluate("document.body.innerText")
        return found

    def rows(self, caption: str) -> list[list[str]]:
        """The cells of the table with this caption, without its head."""
        found: list[list[str]] = self.browser.evaluate(
            "[...document.querySelectorAll('table')].filter((one) => one.caption.textContent.startsWith("
            f"{json.dumps(caption)})).flatMap((one) => [...one.tBodies[0].rows])"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return found

    def figure(self, name: str) -> str:
        found: str = self.browser.evaluate(
            f"document.querySelector('[data-figure={json.dumps(name)}]')?.textContent ?? ''"
        )
        return found


def link(living: Living, **more: str) -> dict[str, str]:
    """Another link of a dashboard that runs."""
    found: dict[str, str] = living.poise("dashboard", "--json", **more).value
    return found


def first_value(process: "subprocess.Popen[bytes]") -> Any:
    """The JSON value that a command prints before it goes on."""
    assert process.stdout is not None
    lines: list[bytes] = []
    while not lines or lines[-1] != b"}\n":
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    return json.loads(b"".join(lines))


@contextmanager
def working(living: Living) -> Iterator[Serving]:
    """A training session and a service that has answered, beside the jobs."""
    living.file("trains.py", TRAINS)
    told = living.poise("submit", "--name", "learns", "--cpu", "1", "--", sys.executable, "trains.py")
    assert told.code == 0, told.err
    living.file("app.py", SERVICE)
    serving = Serving(living, "app.py:Twice")
    try:
        for number in range(20):
            assert serving.ask(number).value == 2 * number
        until(lambda: living.client().job("learns").training, "it says how it trains", living.messages)
        yield serving
    finally:
        serving.end()


@contextmanager
def watched(*, works: bool = False) -> Iterator[Seen]:
    """One job of each kind: on all devices, waiting for devices, a graph that is half done, one that failed; and what
    is `working`, where that is wanted.
    """
    living = Living()
    try:
        living.up("--policy", "fifo", "--fleet", str(living.file("fleet.yaml", FLEET)))
        living.poise("submit", "--gpu", "2", "--name", "train", "--expect", "1h", "--", "sleep", "1000")
        told = living.poise("submit", "--gpu", "2", "--name", "says", "--expect", "1h", "--", "sh", "-c",
                            f"echo {json.dumps(MARKUP)}; exec sleep 1000")  # fmt: skip
        assert told.code == 0, told.err
        living.poise("submit", str(living.file("graph.yaml", GRAPH)))
        living.poise("submit", "--name", "wrong", "--", "false")
        with working(living) if works else nullcontext() as serving:
            living.poise("submit", "--gpu", "2", "--name", "next", "--expect", "1m", "--", "true")
            until(lambda: living.client().job("report").counts == {"done": 2, "running": 1}, "the graph is half done")
            until(lambda: living.client().job("wrong").exit_code, "one has failed")
            until(lambda: living.client().job("says").status == "running", "two run")
            process = living.start("dashboard", "--json", "--port", "0")
            try:
                with running() as browser:
                    first = first_value(process)
                    browser.call("Page.navigate", url=first["link"])
                    browser.wait()
                    found = Seen(living, process, first["url"], browser, serving)
                    found.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '2'")
                    yield found
            finally:
                kill(process.pid, signal.SIGINT)
                done = ended(process)
        assert (done.code, done.err) == (0, "")
    except BaseException:
        living.destroy()
        raise
    living.close()
