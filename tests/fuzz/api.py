"""`make schemathesis`: a real control plane, and a real gateway with models and an upstream, each against its own
OpenAPI document, by the checks of `schemathesis.toml` and `serving.toml`.

python -m fuzz.api [OPTION OF `st run`]…
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from gateway.server import models
from system.living import Living
from system.serving import Serving

from fuzz.mutate import Request
from fuzz.target import Target, target
from poise.config import Endpoint

SETTINGS = Path(__file__).parent
TOOL = Path(sys.executable).with_name("st")

APP = """
from typing import Annotated, Literal

import msgspec

class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: Annotated[float, msgspec.Meta(ge=-1000, le=1000)]
    y: Annotated[float, msgspec.Meta(ge=-1000, le=1000)] = 0.0
    kind: Literal["corner", "edge"] = "corner"
    tags: dict[str, Annotated[str, msgspec.Meta(max_length=20)]] = {}

class Shape(msgspec.Struct, forbid_unknown_fields=True):
    points: Annotated[list[Point], msgspec.Meta(min_length=1, max_length=8)]
    name: str | None = None

class Extent(msgspec.Struct):
    width: float
    height: float
    name: str | None

class Measures:
    def predict(self, batch: list[Shape]) -> list[Extent]:
        return [self.extent(shape.points, shape.name) for shape in batch]

    def extent(self, points, name):
        xs, ys = [one.x for one in points], [one.y for one in points]
        return Extent(max(xs) - min(xs), max(ys) - min(ys), name)

class Reverses:
    def decode(self, body):
        return body

    def predict(self, batch):
        return [body[::-1] for body in batch]

    def encode(self, result) -> bytes:
        return result
"""

SERVED = {"Measures": "cache: {size: 1MiB, ttl: 1m}", "Reverses": ""}
FILE = "kind: service\nname: {name}\nmodel: app.py:{name}\nresources: {{cpu: 50m}}\n{more}\n"


def control_plane(control: Target, options: list[str]) -> int:
    """The exit code of the tool, or 1 if the log says that something failed that no answer told of."""
    asked = Request(f"GET /v1/schema/openapi.json HTTP/1.1\r\nHost: poise\r\n{control.bearer}\r\n\r\n".encode(), True)
    document = control.root / "openapi.json"
    document.write_bytes(asyncio.run(control.exchange(asked)).partition(b"\r\n\r\n")[2])
    port = msgspec.json.decode(control.home.endpoint.read_bytes(), type=Endpoint).port
    options = ["--header", control.bearer, *options]
    code = _run("schemathesis.toml", document, f"http://127.0.0.1:{port}", options)
    complaint = control.complaint()
    sys.stderr.write(complaint)
    return code or int(bool(complaint))


def gateway(living: Living, served: Serving, options: list[str]) -> int:
    """The exit code of the tool, or 1 if a replica has ended meanwhile."""
    document = living.root / "openapi.json"
    document.write_bytes(served.ask(b"", "/openapi.json", "GET").body)
    before = served.text
    code = _run("serving.toml", document, f"http://{served.url}", options)
    complaint = served.text[len(before) :]
    sys.stderr.write(complaint)
    return code or int(bool(complaint))


@contextlib.contextmanager
def serving() -> Iterator[tuple[Living, Serving]]:
    """A gateway with two models, and an upstream that speaks OpenAI's API."""
    living = Living()
    try:
        living.file("app.py", APP)
        with models("a") as (_, urls):
            living.file("front.yaml", f"kind: upstreams\nupstreams:\n- {{name: a, url: '{urls[0]}'}}\n")
            for name, more in SERVED.items():
                living.file(f"{name}.yaml", FILE.format(name=name, more=more))
            served = Serving(living, *(f"{name}.yaml" for name in SERVED), "front.yaml")
            for name in SERVED:
                served.until_said(f"{name}: 1 of 1 ready")
            yield living, served
            served.end()
        living.close()
    finally:
        living.destroy()


def _run(settings: str, document: Path, url: str, options: list[str]) -> int:
    command = [str(TOOL), "--config-file", str(SETTINGS / settings), "run", str(document), "--url", url, *options]
    return subprocess.run(command, cwd=document.parent, check=False).returncode


if __name__ == "__main__":
    with target() as control:
        code = control_plane(control, sys.argv[1:])
    with serving() as (living, served):
        sys.exit(gateway(living, served, sys.argv[1:]) or code)
