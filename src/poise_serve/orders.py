"""Reports the services of a gateway to the control plane, and carries out what its rules ask of them: more or fewer
replicas, and copies of requests for another service.

The gateway reports and asks for the orders every two seconds while it has replicas. Without an answer, the last orders
stay: a control plane that restarts changes nothing. An order ends with the firing of its rule. A service that the
control plane does not record is said once, with the reason.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from poise.client import Client
from poise.errors import PoiseError
from poise.model.reports.services import OrdersReport, ServiceLeftOut, ServiceOrder
from poise.model.served import GatewayNews
from poise_serve.kernel.batcher import Refuse
from poise_serve.replicas import Replicas
from poise_serve.service import Service
from poise_serve.wire import Answer

EVERY = 2.0
"""Seconds between two reports."""

MOST_COPIED = 64 << 20
"""Maximum bytes of unanswered copies, so that a slow service gets no more. A single copy may be larger."""


class Copies:
    """The latest outcome of a copy. Services tell it to the mirror that has made the copy, and then to the others."""

    latest: Answer | Refuse | None = None


class Mirror:
    """Copies the share `part` of the answered requests of a service to another one, in the deferred lane, and drops the
    answers. The metrics of the other service show how it does. Copies are not copied again: two services may mirror
    each other. All mirrors share the `copies`.
    """

    def __init__(self, source: Service, target: Service, part: float, copies: Copies) -> None:
        self.source, self.target, self.part, self._made = source, target, part, copies
        self._due = 0.0
        self._copied = 0  # bytes
        self._copies: dict[int, int] = {}
        self._count = 0
        source.listeners.append(self._heard)

    def end(self) -> None:
        """Make no more copies, and cancel those without an answer."""
        self.source.listeners.remove(self._heard)
        for number in self._copies.values():
            self.target.cancel(number)
        self._copies.clear()

    def _heard(self, body: bytes, told: Answer | Refuse, _: int) -> None:
        if not isinstance(told, Answer) or told is self._made.latest:
            return
        self._due += self.part
        if self._due < 1:
            return
        self._due -= 1
        if self._copies and self._copied + len(body) > MOST_COPIED:
            return
        self._count += 1
        copy = self._count
        self._copied += len(body)
        self._copies[copy] = 0
        number = self.target.ask(body, partial(self._done, copy, len(body)), deferred=True)
        if copy in self._copies:  # otherwise it was refused at once
            self._copies[copy] = number

    def _done(self, copy: int, size: int, told: Answer | Refuse) -> None:
        self._made.latest = told
        self._copies.pop(copy, None)
        self._copied -= size


class Orders:
    """The orders for the services of one gateway. `services` are its services by name, `replicas` what maintains the
    replicas of each. `news` returns the reports for the control plane.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        services: Mapping[str, Service],
        replicas: Callable[[], Mapping[str, Replicas]],
        news: Callable[[], Sequence[GatewayNews]],
        say: Callable[[str], None],
    ) -> None:
        self._connect, self._services, self._replicas, self._say = connect, services, replicas, say
        self._news = news
        self._mirrors: dict[tuple[str, str], Mirror] = {}
        self._copies = Copies()
        self._said: set[ServiceOrder] = set()
        self._left_out: set[ServiceLeftOut] = set()

    async def follow(self) -> None:
        """Report, and carry out the orders, until cancelled."""
        try:
            while True:
                await asyncio.sleep(EVERY)
                if any(one.notes.noted.jobs for one in self._replicas().values()):
                    try:
                        told = await asyncio.to_thread(self._asked, self._news())
                    except PoiseError:
                        continue  # the last orders stay
                    self.take(told[-1].orders)
                    self._say_left_out({one for report in told for one in report.left_out})
        finally:
            self.take(())

    def take(self, orders: Sequence[ServiceOrder]) -> None:
        """Carry out these orders, and end those before."""
        served = self._replicas()
        for replicas in served.values():  # models may share replicas
            replicas.ordered = sum(order.by for order in orders if served.get(order.service) is replicas)
        wanted = {(order.service, order.to): order for order in orders if order.to}
        for key, mirror in list(self._mirrors.items()):
            order = wanted.get(key)
            same = (self._services.get(key[0]), self._services.get(key[1])) == (mirror.source, mirror.target)
            if order is None or order.share != mirror.part or not same:
                self._mirrors.pop(key).end()
        for key, order in wanted.items():
            source, target = (self._services.get(name) for name in key)
            if source is not None and target is not None and key not in self._mirrors:
                self._mirrors[key] = Mirror(source, target, order.share, self._copies)
        for order in (order for order in orders if order not in self._said and order.service in self._services):
            self._say(self._in_words(order))
        self._said = set(orders)

    def _asked(self, news: Sequence[GatewayNews]) -> list[OrdersReport]:
        with self._connect() as client:
            return [client.service_orders(one) for one in news]

    def _say_left_out(self, left_out: set[ServiceLeftOut]) -> None:
        for one in sorted(left_out - self._left_out, key=lambda one: one.service):
            self._say(f"{one.service}: rules get no signals of it: {one.why}")
        self._left_out = left_out

    def _in_words(self, order: ServiceOrder) -> str:
        by_rule = f"by rule {order.rule}"
        if not order.to:
            return f"{order.service}: {order.by:+d} replicas {by_rule}"
        if order.to not in self._services:
            return f"{order.service}: no copies {by_rule}: this gateway has no service {order.to}"
        return f"{order.service}: {order.share:.3g} of its requests are copied to {order.to} {by_rule}"


__all__ = ["Mirror", "Orders"]
