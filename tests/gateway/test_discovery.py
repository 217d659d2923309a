"""Upstreams from DNS, with a name server that says what a test tells it to, over real UDP and TCP; and those that an
API server of Kubernetes reports. Those that the control plane reports are in `system/test_serve_discovery.py`.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from drivers.kubernetes_api import kubernetes_api

from gateway.front import WEB, Front, front, least_outstanding
from gateway.server import models, until
from poise.errors import InputError, SpecError
from poise.model.reports.services import Endpoint
from poise.model.serving_upstreams import Discovery, Upstream, compile_upstreams
from poise_serve import dns
from poise_serve.discovery import Discoverer
from poise_serve.dns import Server, Unresolved
from poise_serve.reported import task_upstreams


def name(text: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in text.split(".")) + b"\0"


def srv(priority: int, weight: int, port: int, host: bytes, ttl: int = 30) -> bytes:
    told = struct.pack(">3H", priority, weight, port) + host
    return b"\xc0\x0c" + struct.pack(">2HIH", 33, 1, ttl, len(told)) + told


def answer(query: bytes, *records: bytes, flags: int = 0x8180) -> bytes:
    return query[:2] + struct.pack(">5H", flags, 1, len(records), 0, 0) + query[12:] + b"".join(records)


class NameServer(asyncio.DatagramProtocol):
    """Answers each query over UDP with what `says` makes of it; nothing, if that is empty."""

    def __init__(self) -> None:
        self.says: Callable[[bytes], bytes] = lambda query: answer(query)
        self.over_tcp: Callable[[bytes], bytes] = lambda query: answer(query)
        self.place = ("127.0.0.1", 0)
        self.failed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.place = transport.get_extra_info("sockname")

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if told := self.says(data):
            self._transport.sendto(told, addr)

    def fails(self, query: bytes) -> bytes:
        self.failed.set()
        return answer(query, flags=0x8182)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        told = self.over_tcp(await reader.readexactly(length))
        writer.write(struct.pack(">H", len(told)) + told)
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    while True:
        transport, made = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
        try:
            tcp = await asyncio.start_server(made.serve_tcp, *made.place)
            break
        except OSError:  # another process has that port for TCP
            transport.close()
    try:
        yield made
    finally:
        tcp.close()
        transport.close()


async def ask(says: Callable[[bytes], bytes]) -> list[Server]:
    async with name_server() as there:
        there.says = says
        return await dns.servers("_http._tcp.vllm.test", [there.place])


def test_srv_records_are_read_with_their_ttl_and_compressed_names() -> None:
    def says(query: bytes) -> bytes:
        return answer(
            query,
            srv(0, 5, 8000, b"\x01a\xc0\x17", ttl=7),  # `a.` and a pointer to `vllm.test` in the question
            srv(10, 0, 8001, name("b.test")),
        )

    assert asyncio.run(ask(says)) == [Server("a.vllm.test", 8000, 0, 5, 7), Server("b.test", 8001, 10, 0, 30)]


def test_a_name_that_does_not_exist_has_no_servers() -> None:
    assert asyncio.run(ask(lambda query: answer(query, flags=0x8183))) == []
    assert asyncio.run(ask(lambda query: answer(query, srv(0, 0, 0, b"\0")))) == [], "`.` is no server"


def test_an_answer_that_was_cut_is_asked_over_tcp() -> None:
    async def run() -> list[Server]:
        async with name_server() as there:
            there.says = lambda query: answer(query, flags=0x8380)
            there.over_tcp = lambda query: answer(query, *[srv(0, 0, 8000 + at, name("a.test")) for at in range(100)])
            return await dns.servers("_http._tcp.vllm.test", [there.place])

    assert len(asyncio.run(run())) == 100


@pytest.mark.parametrize(
    "says",
    [
        lambda query: b"x",
        lambda query: answer(query, flags=0x8182),
        lambda query: answer(query, flags=0x0180),
        lambda query: b"\0\0" + answer(query)[2:] if query[:2] != b"\0\0" else b"\1\1" + answer(query)[2:],
        lambda query: answer(query, srv(0, 0, 1, b"\xc0\xff")),
        lambda query: answer(query, srv(0, 0, 1, b"\x3fa")),
        lambda query: answer(query, b"\xc0\x0c\x00"),
        lambda query: answer(query, srv(0, 0, 1, b"\x01\xff\0")),
        lambda query: answer(query, srv(0, 0, 1, b"\x80a\0")),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error(says: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Unresolved, match=r"_http._tcp.vllm.test: 127.0.0.1"):
        asyncio.run(ask(says))


def test_a_name_server_that_is_away_is_an_error_and_the_next_one_is_asked() -> None:
    async def run() -> list[Server]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            away = free.getsockname()
        async with name_server() as there:
            there.says = lambda query: answer(query, srv(0, 0, 8000, name("a.test")))
            with pytest.raises(Unresolved):
                await dns.servers("_http._tcp.vllm.test", [away])
            return await dns.servers("_http._tcp.vllm.test", [away, there.place])

    assert [one.host for one in asyncio.run(run())] == ["a.test"]


def discovery(**more: object) -> Discovery:
    document = {"kind": "upstreams", "discover": [{"name": "pool", "limit": 8, "weight": 2} | more]}
    return compile_upstreams(document).discover[0]


def test_priorities_are_tiers_and_weights_are_weights() -> None:
    async def run() -> tuple[Upstream, ...]:
        async with name_server() as there:
            there.says = lambda query: answer(
                query, srv(10, 5, 8000, name("a.test")), srv(10, 0, 8001, name("a.test")), srv(20, 1, 1, name("b.test"))
            )
            discoverer = Discoverer(lambda *_: asyncio.sleep(0), [there.place])
            found = await discoverer.look_up([discovery(srv="_http._tcp.vllm.test")])
            await discoverer.stop()
            return found["pool"]

    found = [(one.name, one.url, one.tier, one.weight, one.limit) for one in asyncio.run(run())]
    assert found == [
        ("pool-a.test-8000", "http://a.test:8000", 0, 10, 8),
        ("pool-a.test-8001", "http://a.test:8001", 0, 2, 8),
        ("pool-b.test-1", "http://b.test:1", 1, 2, 8),
    ]


def test_names_are_looked_up_again_and_a_failure_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """SRV records when they expire."""
    monkeypatch.setattr("poise_serve.discovery.SHORTEST", 0.01)
    told: list[list[str]] = []

    async def run() -> None:
        changed = asyncio.Event()

        async def found(of: Discovery, upstreams: tuple[Upstream, ...]) -> None:
            told.append([one.name for one in upstreams])
            changed.set()

        async with name_server() as there:
            there.says = lambda query: answer(query, srv(0, 0, 1, name("a.test"), ttl=0))
            discoverer = Discoverer(found, [there.place])
            first = await discoverer.look_up([discovery(srv="_http._tcp.vllm.test", every="1m")])
            assert [one.name for one in first["pool"]] == ["pool-a.test-1"]
            there.says = lambda query: answer(query, srv(0, 0, 2, name("a.test"), ttl=0))
            await asyncio.wait_for(_until(lambda: told[-1:] == [["pool-a.test-2"]], changed), 10)
            there.says, failed = there.fails, there.failed
            await asyncio.wait_for(failed.wait(), 10)
            assert told[-1] == ["pool-a.test-2"]
            await discoverer.stop()

    asyncio.run(run())


async def _until(true: Callable[[], bool], changed: asyncio.Event) -> None:
    while not true():
        await changed.wait()
        changed.clear()


def test_addresses_of_a_host_are_upstreams() -> None:
    with models("a") as (_, urls):
        port = urls[0].rpartition(":")[2]
        discover = [{"name": "pool", "dns": f"localhost:{port}", "every": "1s"}]
        with front([], discover=discover) as (app, _):
            states = {one.name: one.state for one in app.upstreams.states}
            assert states[f"pool-127.0.0.1-{port}"] == "healthy"
            app.change(discover=[], upstreams=[{"name": "a", "url": urls[0]}])
            assert [one.name for one in app.upstreams.states] == ["a"]


def test_a_host_that_cannot_be_looked_up_leaves_the_others() -> None:
    with models("a") as (_, urls):
        discover = [{"name": "pool", "dns": "no-such-host.invalid:80"}]
        with front(urls, discover=discover) as (app, _):
            assert [one.name for one in app.upstreams.states] == ["u0"]


def endpoint_slice(name: str, url: str, **conditions: bool) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "vllm"}},
        "ports": [{"name": "metrics", "port": 1}, {"name": "http", "port": int(url.rpartition(":")[2])}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": conditions}],
    }


def test_endpoints_of_a_service_join_when_they_are_ready_and_end_without_a_failed_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with models("a", "b") as (servers, urls), kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        names = [f"pods-127.0.0.1-{url.rpartition(':')[2]}" for url in urls]
        api.put("endpointslices", "vllm-1", "models", **endpoint_slice("vllm-1", urls[0], ready=True))
        api.put("endpointslices", "vllm-2", "models", **endpoint_slice("vllm-2", urls[1], ready=False))
        api.put("endpointslices", "other", "models", metadata={"name": "other"}, endpoints=None, ports=None)

        def states(app: Front) -> dict[str, str]:
            return {one.name: one.state for one in app.upstreams.states}

        with front([], discover=[{"name": "pods", "kubernetes": "models/vllm:http"}]) as (app, url):
            assert states(app) == {names[0]: "healthy"}
            api.patch("endpointslices", "vllm-2", endpoint_slice("vllm-2", urls[1], ready=True), "models")
            until(lambda: states(app) == dict.fromkeys(names, "healthy"))
            servers[0].go.clear()
            with ThreadPoolExecutor(2) as clients:
                ask = lambda: WEB.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}).status_code  # noqa: E731
                asked = [clients.submit(ask) for _ in range(2)]
                until(lambda: servers[0].running == 1)
                ending = endpoint_slice("vllm-1", urls[0], ready=False, serving=True, terminating=True)
                api.patch("endpointslices", "vllm-1", ending, "models")
                until(lambda: states(app) == {names[0]: "leaving", names[1]: "healthy"})
                servers[0].go.set()
                assert [one.result() for one in asked] == [200, 200]
            until(lambda: states(app) == {names[1]: "healthy"})


def test_a_gateway_that_takes_over_while_nobody_reports_goes_on_with_the_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise_serve.discovery.FIRST", 0.5)
    memory, url = tmp_path / "mark.found", "http://127.0.0.1:8000"

    async def run(file: Path | None) -> dict[str, tuple[Upstream, ...]]:
        discoverer = Discoverer(lambda *_: asyncio.sleep(0), memory=file)
        found = await discoverer.look_up([discovery(kubernetes="models/vllm:http")])
        await discoverer.stop()
        return found

    with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        api.put("endpointslices", "vllm-1", "models", **endpoint_slice("vllm-1", url, ready=True))
        before = asyncio.run(run(memory))
    assert [one.url for one in before["pool"]] == [url]
    assert asyncio.run(run(memory)) == before
    assert asyncio.run(run(None)) == {}, "without a report, nothing is known"


def test_without_credentials_for_the_cluster_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    with pytest.raises(InputError) as raised:
        Front([], {}, {}, {"discover": [{"name": "pods", "kubernetes": "models/vllm"}]}, least_outstanding)
    assert raised.value.record.field == "discover[0].kubernetes"


def test_tasks_of_a_job_are_upstreams_at_the_ports_of_their_parts() -> None:
    discover = {"name": "fleet", "job": "vllm:8000+part", "limit": 8}
    (fleet,) = compile_upstreams({"kind": "upstreams", "discover": [discover]}).discover
    assert fleet.job is not None
    places = [
        Endpoint(task="j7.main[0]", epoch=1, part=0, node="n1", address="10.0.0.1"),
        Endpoint(task="j7.main[1]", epoch=3, part=1, node="n2", address="fd00::2"),
        Endpoint(task="j7.main[2]", epoch=1, part=2, node="here", address=""),
        Endpoint(task="j7.main[9]", epoch=1, part=60_000, node="here", address=""),
    ]
    found = [(one.name, one.url, one.limit) for one in task_upstreams(fleet.job, fleet.like, places)]
    assert found == [
        ("fleet-j7.main-0-1", "http://10.0.0.1:8000", 8),
        ("fleet-j7.main-1-3", "http://[fd00::2]:8001", 8),
        ("fleet-j7.main-2-1", "http://127.0.0.1:8002", 8),
    ]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "discover[0]"),
        ({"job": "vllm:8000", "dns": "a:1"}, "discover[0]"),
        ({"job": "vllm"}, "discover[0].job"),
        ({"job": "vllm:0"}, "discover[0].job"),
        ({"job": "vllm:8000+rank"}, "discover[0].job"),
        ({"kubernetes": "vllm"}, "discover[0].kubernetes"),
        ({"kubernetes": "Models/vllm"}, "discover[0].kubernetes"),
    ],
)  # fmt: skip
def test_a_wrong_source_is_an_error(said: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        discovery(**said)
    assert raised.value.record.field == field
