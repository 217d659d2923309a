"""A running Poise with a service, a node that the test plays, and Debian's Prometheus and Alertmanager beside it."""

import contextlib
import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import yaml
from gateway.server import models
from system.living import Living, free_port, until
from system.serving import Serving
from websockets.sync.client import connect

from deploy.debian import DEPLOY, RULES, alertmanager, program
from poise.kernel.frames import Frames
from poise.model.load import Load, Upkeep
from poise.model.messages import Beat, Hello
from poise.model.resources import Device, Node
from poise.model.usage import MINUTE, SIGNALS, Window

FLEET = """
kind: fleet
name: lab
nodes:
  own: {cpu: 4, memory: 4GiB, devices: [{model: H100, count: 2, price: 4.0}]}
"""
UPSTREAMS = """
kind: upstreams
upstreams: [{name: server, url: "%s"}]
"""
SERVICE = """
kind: service
name: twice
model: model.py:Twice
objective: {latency_p99: 500ms}
resources: {cpu: 500m}
"""
MODEL = '''
class Twice:
    """Twice of what it is asked."""

    def predict(self, batch: list[float]) -> list[float]:
        return [2 * one for one in batch]
'''


class PlayedNode:
    """A node that says how busy it has been, and runs nothing. It connects anew after `leave` only by `join`."""

    def __init__(self, living: Living, name: str) -> None:
        self._url = f"ws://127.0.0.1:{json.loads(living.home.endpoint.read_text())['port']}/v1/channel"
        self._token = living.home.token.read_text().strip()
        self._name = name
        self._left = threading.Event()
        self._speaking = threading.Thread()

    def join(self) -> None:
        self._left.clear()
        self._speaking = threading.Thread(target=self._speak, daemon=True)
        self._speaking.start()

    def leave(self) -> None:
        self._left.set()
        self._speaking.join(30)

    def _speak(self) -> None:
        node = Node(
            name=self._name,
            incarnation="1",
            cpu=8000,
            memory=2**34,
            devices=(Device(index=0, model="H100", memory=80 * 2**30),),
        )
        frames = Frames()
        with connect(self._url, additional_headers={"Authorization": f"Bearer {self._token}"}) as line:
            self._say(line, frames, Hello(node=node))
            load = Load(cpu=420, load1=500, memory=300, disk=10, network=20)
            while not self._left.is_set():  # what is said before the node has joined is not kept
                self._say(line, frames, Beat(load=load, windows=self._minutes(), upkeep=Upkeep(sent=500, cpu=1000)))
                with contextlib.suppress(TimeoutError):  # what it is told means nothing to it, and has to be read
                    while True:
                        line.recv(timeout=0.5)

    def _say(self, line: Any, frames: Frames, message: Hello | Beat) -> None:
        line.send(msgspec.msgpack.encode((frames.number(), message)))

    def _minutes(self) -> tuple[Window, ...]:
        """The latest, of which all but the last are over."""
        signals = {"cpu": 420, "device": 500, "power": 90_000, "device_power": 350_000}
        values = tuple(signals.get(name, -1) for name in SIGNALS)
        begins = int(time.time()) // MINUTE * MINUTE
        return tuple(Window(begins - MINUTE * ago, values, values) for ago in (2, 1, 0))


class Heard:
    """A webhook: the names of alerts that fire, and that have been resolved."""

    def __init__(self) -> None:
        self.fired: list[str] = []
        self.resolved: list[str] = []
        heard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for alert in body["alerts"]:
                    name = alert["labels"]["alertname"]
                    (heard.fired if alert["status"] == "firing" else heard.resolved).append(name)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Monitored:
    """All of it. Prometheus has the shipped rules, which wait for a second instead of minutes."""

    def __init__(self, living: Living, folder: Path) -> None:
        self.living, self.folder = living, folder
        self.prometheus, self.alertmanager = free_port(), free_port()
        self.heard = Heard()
        self.node = PlayedNode(living, "played")

    @contextlib.contextmanager
    def running(self, gateway: str) -> Iterator[None]:
        self._configure(gateway)
        here = "127.0.0.1"
        commands = [
            [program("prometheus"), "--config.file=prometheus.yml", f"--web.listen-address={here}:{self.prometheus}",
             "--storage.tsdb.path=data", "--storage.tsdb.retention.time=1h"],
            [*alertmanager(), "--config.file=alertmanager.yml", "--cluster.listen-address=",
             f"--web.listen-address={here}:{self.alertmanager}", "--storage.path=alerts"],
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:
            for command in commands:
                output = stack.enter_context((self.folder / f"{len(command)}.txt").open("wb"))
                process = stack.enter_context(
                    subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
                )
                stack.callback(process.terminate)
            stack.callback(self.heard.close)
            yield

    def _configure(self, gateway: str) -> None:
        """The shipped files, with other addresses and less patience."""
        done = self.living.poise("token", "add", "--tenant", "ops", "--role", "observer", "--name", "prometheus")
        assert done.code == 0, done.err
        (self.folder / "poise.token").write_bytes(done.out)
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{self.alertmanager}"]
        port = json.loads(self.living.home.endpoint.read_text())["port"]
        for scraped, target in zip(config["scrape_configs"], (f"127.0.0.1:{port}", gateway), strict=True):
            scraped["static_configs"][0]["targets"] = [target]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        rules = yaml.safe_load(RULES.read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "1s"
        (self.folder / RULES.name).write_text(yaml.safe_dump(rules))
        config = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
        config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        config["receivers"][0]["webhook_configs"][0]["url"] = self.heard.url
        (self.folder / "alertmanager.yml").write_text(yaml.safe_dump(config))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples as of now; none while it does not answer."""
        asked = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.prometheus}/api/v1/query?{asked}", timeout=10
            ) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it starts
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        except OSError:
            return []
        return found

    def said(self) -> str:
        return (
            "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.txt")) + self.living.messages()[-2000:]
        )


@contextlib.contextmanager
def monitored(folder: Path) -> Iterator[Monitored]:
    program("prometheus"), alertmanager()  # skips before anything is started
    with contextlib.ExitStack() as stack:
        living = Living()
        stack.callback(living.close)
        living.file("fleet.yaml", FLEET)
        living.file("model.py", MODEL)
        living.file("service.yaml", SERVICE)
        living.up("--fleet", "fleet.yaml")
        found = Monitored(living, folder)
        found.node.join()
        _, [upstream] = stack.enter_context(models("server"))
        living.file("upstreams.yaml", UPSTREAMS % upstream)
        serving = Serving(living, "service.yaml", "upstreams.yaml")
        try:
            for name, gpus in (("holds", "2"), ("waits", "2")):
                assert living.poise("submit", "--name", name, "--gpu", gpus, "--", "sleep", "600").code == 0
            assert living.poise("run", "--name", "short", "--cpu", "0.5", "--", "true").code == 0
            assert serving.ask(21.0, "/predict").status == 200
            assert serving.ask({"model": "m", "prompt": "hello"}, "/v1/completions").status == 200
            with found.running(serving.url):
                until(lambda: bool(found.query("poise_leader == 1")), "it is scraped", found.said)
                yield found
        finally:
            serving.end()
            found.node.leave()
