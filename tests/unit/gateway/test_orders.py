"""What rules ask of services: replicas within the limits of the service, and copies that cost clients nothing."""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from poise.client import Client
from poise.errors import Unreachable
from poise.model.reports.services import OrdersReport, ServiceLeftOut, ServiceOrder
from poise.model.served import GatewayNews, Served, ServiceNews
from poise.model.servicefile import DeclaredService, compile_service
from poise.units import MINUTE, SECOND
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.scaler import with_orders
from poise_serve.notes import Notes
from poise_serve.orders import MOST_COPIED, Copies, Mirror, Orders
from poise_serve.replicas import Replicas
from poise_serve.service import Service
from unit.gateway.test_canary import Played, same


class Gateway:
    """A gateway with the services `chat` and `chat-v2`."""

    loop: asyncio.AbstractEventLoop
    asked: asyncio.Event

    def __init__(self, tmp_path: Any, **fields: Any) -> None:
        self.chat, self.other = Played(same), Played(same)
        services = {"chat": cast(Service, self.chat), "chat-v2": cast(Service, self.other)}
        self.said: list[str] = []
        declared = compile_service({"kind": "service", "name": "chat", "model": "app.py:Model", **fields})
        self.service = Service("chat", declared.limits, tmp_path / "chat.sock", cast(Any, None))
        notes = Notes(tmp_path / "chat.json")
        notes.noted.jobs = ["j1"]
        self.replicas = Replicas(declared, self.service, self.connect, {"env": {}}, "ann", self.said.append, notes)
        self.orders = Orders(self.connect, services, lambda: {"chat": self.replicas}, self.news, self.said.append)
        self.reachable = True
        self.reported: list[ServiceNews] = []

    def connect(self) -> Client:
        reachable = self.reachable
        self.loop.call_soon_threadsafe(self.asked.set)
        if not reachable:
            raise Unreachable("the control plane does not answer")
        return cast(Client, self)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None: ...

    def news(self) -> list[GatewayNews]:
        news = ServiceNews(service="chat", job="j1", state=Served(waiting=4, ready=2, wanted=3))
        return [GatewayNews(gateway="0a1b2c3d", services=(news,)), GatewayNews(gateway="0a1b2c3d")]

    def service_orders(self, news: GatewayNews) -> OrdersReport:
        self.reported += news.services
        left_out = tuple(ServiceLeftOut(service=one.service, why="there is no job") for one in news.services)
        return OrdersReport(orders=(ServiceOrder(service="chat", rule="night", by=-1),), left_out=left_out)

    def answers(self, times: int) -> None:
        for number in range(times):
            self.chat.ask(b"%d" % number, lambda told: None)


def scaled(by: int) -> ServiceOrder:
    return ServiceOrder(service="chat", rule="crowd", by=by)


def mirrored(share: float) -> ServiceOrder:
    return ServiceOrder(service="chat", rule="try", to="chat-v2", share=share)


@pytest.mark.parametrize(
    ("fields", "by", "wanted", "made"),
    [
        ({"replicas": "1..4"}, 2, 1, 3),
        ({"replicas": "1..4"}, 9, 1, 4),
        ({"replicas": "2..4"}, -3, 4, 2),
        ({"replicas": "0..4"}, -3, 2, 1),
        ({"replicas": "0..4"}, 2, 0, 0),
        ({"replicas": 2}, 3, 2, 5),
        ({"replicas": 2}, -5, 2, 1),
    ],
)
def test_replicas_change_within_the_limits_of_the_service(
    fields: dict[str, Any], by: int, wanted: int, made: int, tmp_path: Any
) -> None:
    gateway = Gateway(tmp_path, **fields)
    gateway.orders.take([scaled(by)])
    rules = gateway.replicas._declared.rules
    assert with_orders(wanted, gateway.replicas.ordered, rules) == made
    gateway.orders.take([])
    assert with_orders(wanted, gateway.replicas.ordered, rules) == wanted


def test_a_first_replica_takes_at_least_as_long_to_start_as_it_has_taken_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submitted() -> None:
        gateway.loop, gateway.asked = asyncio.get_running_loop(), asyncio.Event()
        await gateway.replicas._submit()

    monkeypatch.setattr(Client, "submit", lambda *_, **__: "j2")
    gateway = Gateway(tmp_path, replicas="0..4")
    now = time.monotonic_ns()
    assert gateway.replicas.start_up(now) == 0
    asyncio.run(submitted())
    assert MINUTE - 10 * SECOND < gateway.replicas.start_up(now + MINUTE) <= MINUTE


def test_a_gateway_that_takes_over_knows_how_long_a_replica_takes_to_start(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "chat.json")
    notes.noted.start_up = MINUTE
    notes.write()
    gateway = Gateway(tmp_path, replicas="1..4")
    assert gateway.replicas.start_up(time.monotonic_ns()) == MINUTE
    assert gateway.service.batcher.start_up == MINUTE, "clients are told when to try again"


def test_orders_are_said_once_and_sum_up(tmp_path: Any) -> None:
    gateway = Gateway(tmp_path)
    for _ in range(3):
        gateway.orders.take([scaled(2), ServiceOrder(service="chat", rule="night", by=-1)])
    assert gateway.replicas.ordered == 1
    assert gateway.said == ["chat: +2 replicas by rule crowd", "chat: -1 replicas by rule night"]


def test_two_services_may_mirror_each_other(tmp_path: Any) -> None:
    """Copies of copies would never end."""
    gateway = Gateway(tmp_path)
    back = ServiceOrder(service="chat-v2", rule="try-back", to="chat", share=1.0)
    gateway.orders.take([mirrored(1.0), back])
    gateway.chat.ask(b"1", lambda told: None)
    assert (gateway.chat.asked, gateway.other.asked) == ([b"1"], [b"1"])
    gateway.other.ask(b"2", lambda told: None)
    assert (gateway.chat.asked, gateway.other.asked) == ([b"1", b"2"], [b"1", b"2"])


def test_a_share_of_the_answered_requests_is_copied_while_the_order_stands(tmp_path: Any) -> None:
    gateway = Gateway(tmp_path)
    gateway.orders.take([mirrored(0.25)])
    gateway.answers(100)
    assert len(gateway.other.asked) == 25
    gateway.orders.take([mirrored(0.5)])
    gateway.answers(100)
    assert len(gateway.other.asked) == 75
    gateway.orders.take([])
    gateway.answers(100)
    assert len(gateway.other.asked) == 75
    assert gateway.chat.listeners == []


def test_a_service_that_does_not_answer_gets_only_so_many_copies(tmp_path: Any) -> None:
    gateway = Gateway(tmp_path)
    gateway.other.holds = True
    mirror = Mirror(cast(Service, gateway.chat), cast(Service, gateway.other), 1.0, Copies())
    for _ in range(8):
        gateway.chat.ask(bytes(MOST_COPIED // 4), lambda told: None)
    assert len(gateway.other.asked) == 4
    gateway.other.release(1)
    gateway.chat.ask(bytes(MOST_COPIED // 4), lambda told: None)
    assert len(gateway.other.asked) == 5
    mirror.end()
    assert gateway.other.cancelled == [2, 3, 4, 5]


def test_refused_requests_are_not_copied_and_refused_copies_leave_nothing(tmp_path: Any) -> None:
    gateway = Gateway(tmp_path)
    mirror = Mirror(cast(Service, gateway.chat), cast(Service, gateway.other), 1.0, Copies())
    gateway.other.answers = lambda body: Refuse(1, "full", "full")
    gateway.answers(3)
    mirror.end()
    assert (len(gateway.other.asked), gateway.other.cancelled) == (3, [])
    gateway.chat.answers = lambda body: Refuse(1, "full", "full")
    Mirror(cast(Service, gateway.chat), cast(Service, gateway.other), 1.0, Copies())
    gateway.answers(3)
    assert len(gateway.other.asked) == 3


def test_copies_for_a_service_of_another_gateway_are_refused_in_words(tmp_path: Any) -> None:
    gateway = Gateway(tmp_path)
    gateway.orders.take([ServiceOrder(service="chat", rule="try", to="elsewhere", share=0.5)])
    assert gateway.said == ["chat: no copies by rule try: this gateway has no service elsewhere"]


def test_without_an_answer_the_last_orders_stay(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.orders.EVERY", 0.001)
    gateway = Gateway(tmp_path)

    async def followed() -> int:
        gateway.loop, gateway.asked = asyncio.get_running_loop(), asyncio.Event()
        following = asyncio.create_task(gateway.orders.follow())
        for _ in range(3):
            await gateway.asked.wait()
            gateway.asked.clear()
        gateway.reachable = False
        await gateway.asked.wait()
        await asyncio.sleep(0.02)
        stays = gateway.replicas.ordered
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return stays

    assert asyncio.run(followed()) == -1
    assert set(gateway.reported) == set(gateway.news()[0].services), "its report goes with the question"
    assert gateway.said.count("chat: rules get no signals of it: there is no job") == 1
    assert gateway.replicas.ordered == 0


class Busy:
    """Stands for a service whose replicas `j1` and `j2` are ready, and are busy until the test ends that."""

    path = Path("unused")
    ever_ready = True

    def __init__(self) -> None:
        self.watchers: list[Any] = []
        self.busy, self.drained, self.cancelled = {"j1", "j2"}, list[str](), list[str]()

    def note_start_up(self, took: int) -> None: ...

    def leave_behind(self, job: str, epoch: int) -> None: ...

    def has(self, job: str) -> bool:
        return True

    def is_busy(self, job: str) -> bool:
        return job in self.busy

    def drain(self, job: str) -> None:
        self.drained.append(job)


def test_a_surplus_replica_ends_once_it_has_answered_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may take minutes, and the grace of a cancelled job is seconds."""
    service, notes = Busy(), Notes(tmp_path / "chat.json")
    notes.noted.jobs, notes.noted.ready = ["j1", "j2"], True

    async def cancel(job: str) -> None:
        service.cancelled.append(job)

    async def submit() -> None:
        notes.noted.jobs.append("j3")

    async def nothing_is_over(_: object) -> bool:
        return False

    def declared(replicas: int) -> DeclaredService:
        return compile_service({"kind": "service", "name": "chat", "model": "app.py:Model", "replicas": replicas})

    replicas = Replicas(declared(1), cast(Any, service), cast(Any, None), {"env": {}}, "ann", print, notes)
    monkeypatch.setattr("poise_serve.replicas.LOOK_EVERY", 0)
    for name, made in (("_cancel", cancel), ("_submit", submit), ("_ask", nothing_is_over)):
        monkeypatch.setattr(replicas, name, made)
    for _ in range(2):
        asyncio.run(replicas._look())
    assert (service.drained, service.cancelled, notes.noted.jobs) == (["j2"], [], ["j1", "j2"])
    assert replicas.wanted == 1
    replicas.become(declared(2))
    asyncio.run(replicas._look())
    assert notes.noted.jobs == ["j1", "j2", "j3"], "a drained one does not count"
    service.busy.clear()
    asyncio.run(replicas._look())
    assert (service.cancelled, notes.noted.jobs) == (["j2"], ["j1", "j3"])
