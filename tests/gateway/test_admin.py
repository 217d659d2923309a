"""The admin API at the address of a gateway, for keys that may use it."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from gateway.server import Serving, models
from poise.client import Client
from poise.model.serving_upstreams import Front
from poise_serve.admin import Admin
from poise_serve.app import Gateway
from poise_serve.cli.serve import declared_of
from poise_serve.door import Door
from poise_serve.keys import Keys, Usage
from poise_serve.live import Live, restored
from poise_serve.metrics import Metrics
from poise_serve.pool import chooser
from poise_serve.running import Running
from poise_serve.upstreams import Upstreams

KEYS = """
kind: keys
keys:
- {{name: ops, sha256: {ops}, scopes: [admin]}}
- {{name: app, sha256: {app}, scopes: [ask, read, forget]}}
"""


def nobody() -> Client:
    raise AssertionError("upstreams need no control plane")


class Changed:
    """What `poise serve` makes of documents of upstreams, with keys."""

    def __init__(self, folder: Path, *documents: dict[str, Any]) -> None:
        file = folder / "keys.yaml"
        file.write_text(KEYS.format(**{name: hashlib.sha256(name.encode()).hexdigest() for name in ("ops", "app")}))
        self._folder, self._documents, self._file = folder, documents, file
        self.said: list[str] = []

    @asynccontextmanager
    async def during(self) -> AsyncIterator[None]:
        base = {"folder": str(self._folder), "env": {}}
        running = Running(self._folder, "mark", nobody, base, "ann", self.said.append)
        gateway = Gateway(running.fronts, running.services, running.trials, running.caches, running.registry)

        async def opened(front: Front) -> Upstreams:
            gateway.rest = Upstreams(front, chooser(front), Metrics(running.registry), {}, {})
            await gateway.rest.start()
            return gateway.rest

        path = self._folder / "127.0.0.1:1.applied"
        saved = restored(path, self._documents, taken_over=False)
        live = Live(saved, path, declared_of, running, {}, opened, {}, self.said.append)
        await live.start()
        gateway.admin = Admin(live, lambda: "http://127.0.0.1:1")
        self.door = Door(gateway, keys=Keys(self._file, None), usage=Usage(CollectorRegistry()))
        yield
        if live.upstreams is not None:
            await live.upstreams.stop()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.door(scope, receive, send)


@contextmanager
def changed(folder: Path, *documents: dict[str, Any]) -> Iterator[tuple[Changed, str]]:
    app = Changed(folder, *documents)
    with Serving(app, during=app.during) as serving:
        yield app, f"{serving.url}/admin/"


def upstreams(*urls: str, **more: Any) -> dict[str, Any]:
    listed = [{"name": f"u{place}", "url": url} for place, url in enumerate(urls)]
    return {"kind": "upstreams", "upstreams": listed} | more


def post(url: str, body: object, key: str = "ops") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url, content=content, headers={"authorization": f"Bearer {key}"}, timeout=20)


def report(url: str) -> Any:
    return httpx.get(url, headers={"authorization": "Bearer ops"}).json()


def test_a_key_with_the_scope_changes_the_gateway_and_is_named(tmp_path: Path) -> None:
    with models("a", "b") as (_, urls), changed(tmp_path) as (app, url):
        assert post(f"{url}apply", {"documents": [upstreams(*urls)]}).json()["changes"]
        assert [one["state"] for one in report(url)["upstreams"]] == ["healthy", "healthy"]
        post(f"{url}drain", {"name": "u0"})
        told = report(url)
        assert told["drained"] == ["u0"] and {one["by"] for one in told["history"]} == {"the key ops"}
        assert any("the key ops changed: + upstreams.u0.drained" in line for line in app.said)
        assert post(f"{url}undo", {}).status_code == 200 and report(url)["drained"] == []
    with changed(tmp_path) as (_, url):
        assert [one["name"] for one in report(url)["upstreams"]] == ["u0", "u1"], "it is kept"


def test_first_upstreams_without_their_key_change_nothing(tmp_path: Path) -> None:
    with models("a") as (_, urls), changed(tmp_path) as (_, url):
        document = upstreams(*urls)
        document["upstreams"][0]["key_from"] = "NOT_SET"
        for _ in range(2):
            told = post(f"{url}apply", {"documents": [document]})
            assert told.status_code == 422 and "the variable with the key is not set" in told.text
        assert report(url)["documents"] == {}
        assert post(f"{url}apply", {"documents": [upstreams(*urls)]}).json()["changes"]
        assert [one["state"] for one in report(url)["upstreams"]] == ["healthy"]


@pytest.mark.parametrize(("key", "status"), [("app", 403), ("other", 401)])
def test_other_keys_may_not(tmp_path: Path, key: str, status: int) -> None:
    with changed(tmp_path) as (_, url):
        for name in ("apply", "drain", "undo", ""):
            assert post(url + name, {"documents": []}, key).status_code == status


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("apply", b"", 422, "the body cannot be read"),
        ("apply", b"[" * 5000, 422, "the body cannot be read"),
        ("apply", {"documents": 1}, 422, "documents"),
        ("apply", {"documents": [1]}, 422, "documents"),
        ("apply", {"documents": [{}]}, 422, "this file is not a service"),
        ("apply", {"documents": [{"kind": "upstreams"}]}, 422, "invalid number of upstreams"),
        ("apply", {"documents": [{"kind": "upstreams", "upstreams": [{"name": "a"}]}]}, 422, "url"),
        ("apply", {"documents": [], "more": 1}, 422, "more"),
        ("apply", {"documents": [upstreams("a:1"), upstreams("a:1")]}, 400, "two documents"),
        ("apply", {"documents": [upstreams("a:1", router="none")]}, 422, "there is no such router"),
        ("apply", {"documents": [{"kind": "service", "name": "x", "model": "gone.py:X"}]}, 400, "no such file"),
        ("drain", {"name": "u9"}, 404, "there is no upstream or replica `u9`"),
        ("drain", {}, 422, "name"),
        ("remove", {"name": "u0"}, 422, "invalid number of upstreams"),
        ("remove", {"name": "u9"}, 404, "there is no service or upstream `u9`"),
        ("undo", {}, 409, "there is no change to undo"),
        ("promote", {"name": "x"}, 404, "there is no canary of `x` on trial"),
        ("nothing", {}, 404, "there is no /admin/nothing"),
        ("apply", b" " * (9 << 20), 400, "the request is too large"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(
    tmp_path: Path, name: str, body: object, status: int, said: str
) -> None:
    with models("a") as (_, urls), changed(tmp_path, upstreams(*urls)) as (_, url):
        before = report(url)["documents"]
        answer = post(url + name, body)
        assert answer.status_code == status, answer.text
        assert said in json.dumps(answer.json()["error"])
        assert report(url)["documents"] == before and report(url)["history"] == []


def test_only_some_methods_are_for_it(tmp_path: Path) -> None:
    with changed(tmp_path) as (_, url):
        assert httpx.get(f"{url}apply", headers={"authorization": "Bearer ops"}).status_code == 403
