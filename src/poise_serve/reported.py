"""Upstreams that others report: the tasks of a job, by the control plane, and the endpoints of a Service of Kubernetes,
by its API server.

A thread asks, because both clients wait for their answers. It gives each new answer to the loop at once. While it gets
none, the upstreams stay as they are, and their probes tell whether they work.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator

import msgspec

from poise.client import Client
from poise.drivers.kubernetes.objects import Known, Record
from poise.errors import InputError, PoiseError
from poise.model.reports.services import Endpoint
from poise.model.serving_upstreams import MAX_PORT, MAX_UPSTREAMS, Discovery, JobPlace, ServicePlace, Upstream

WAIT = 10.0
"""Seconds that the control plane waits for a change before it answers."""

PAUSE = 1.0
"""Seconds after an error until the control plane is asked again."""

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"

Give = Callable[[tuple[Upstream, ...]], None]


class Reports:
    """The reports for one discovery, until stopped. `connect` returns a client of the control plane."""

    def __init__(self, discovery: Discovery, connect: Callable[[], Client]) -> None:
        self.coming: asyncio.Queue[tuple[Upstream, ...]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()
        self._end: Callable[[], None] = self._ending.set
        if discovery.job is not None:
            job, like = discovery.job, discovery.like
            follow = threading.Thread(target=self._follow_job, args=(job, like, connect), daemon=True)
            follow.start()
        elif discovery.kubernetes is not None:
            self._follow_service(discovery.kubernetes, discovery.like)

    def stop(self) -> None:
        """Report nothing more. The thread ends after its current request."""
        self._ending.set()
        self._end()

    def _give(self, found: Iterable[Upstream]) -> None:
        unique = {one.name: one for one in found}
        told = tuple(unique.values())[:MAX_UPSTREAMS]
        if not self._ending.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.coming.put_nowait, told)

    def _follow_job(self, place: JobPlace, like: Upstream, connect: Callable[[], Client]) -> None:
        known = ""
        while not self._ending.is_set():
            try:
                with connect() as client:
                    while not self._ending.is_set():
                        told = client.endpoints(place.job, known=known, wait=WAIT)
                        if told.complete and told.known != known:
                            self._give(task_upstreams(place, like, told.endpoints))
                            known = told.known
            except PoiseError:
                self._ending.wait(PAUSE)

    def _follow_service(self, place: ServicePlace, like: Upstream) -> None:
        from poise.drivers.kubernetes.api import Api  # slow to import, and seldom needed
        from poise.drivers.kubernetes.credentials import find_access
        from poise.drivers.kubernetes.watching import Watched

        watched = Watched(
            Api(find_access("")),
            SLICES.format(place.namespace),
            EndpointSlice,
            {"labelSelector": f"kubernetes.io/service-name={place.service}"},
            changed=lambda: self._give(service_upstreams(place, like, watched.items())),
        )
        self._end = watched.stop
        watched.start()


def check(discovery: Discovery, field: str) -> None:
    """Raise `InputError` if there are no credentials for the reports of a discovery."""
    if discovery.kubernetes is None:
        return
    from poise.drivers.kubernetes.credentials import find_access  # slow to import, and seldom needed

    try:
        find_access("")
    except InputError as error:
        record = error.record
        hint = "set KUBECONFIG to a file that `kubectl` can use, or give the Pod a service account"
        raise InputError(record.message, field=field, need=record.need, have=record.have, hint=hint) from None


def task_upstreams(place: JobPlace, like: Upstream, endpoints: Iterable[Endpoint]) -> Iterator[Upstream]:
    """Return the upstreams of the tasks of a job. Another attempt of a task is another upstream: its cache is empty."""
    for one in endpoints:
        port = place.port + one.part * place.by_part
        if port <= MAX_PORT:
            task = re.sub(r"[^\w.]+", "-", one.task).strip("-")
            yield upstream_at(like, one.address or "127.0.0.1", port, f"{like.name}-{task}-{one.epoch}")


class Conditions(Record, frozen=True):
    """The conditions of an endpoint. A missing `ready` counts as true, a missing `terminating` as false."""

    ready: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(Record, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: Conditions = Conditions()


class SlicePort(Record, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Known, frozen=True):
    """Some of the endpoints of a Service, all with the same ports."""

    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None


def service_upstreams(place: ServicePlace, like: Upstream, slices: Iterable[EndpointSlice]) -> Iterator[Upstream]:
    """Return the upstreams of the ready endpoints of a Service, at its port."""
    for one in slices:
        ports = [port for port in one.ports or () if port.port is not None and port.protocol in (None, "TCP")]
        named = [port for port in ports if place.port in (port.name, str(port.port))]
        for port in named[:1] if place.port else ports[:1] if len(ports) == 1 else ():
            for endpoint in one.endpoints or ():
                conditions = endpoint.conditions
                if endpoint.addresses and conditions.ready is not False and not conditions.terminating:
                    yield upstream_at(like, endpoint.addresses[0], port.port or 0)


def upstream_at(like: Upstream, host: str, port: int, name: str = "") -> Upstream:
    """Return the upstream at this address, with the settings of `like`. By default its address is its name."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = name or f"{like.name}-{host.replace(':', '.')}-{port}"
    return msgspec.structs.replace(like, name=name, url=f"http://{place}")


__all__ = ["EndpointSlice", "Reports", "check", "service_upstreams", "task_upstreams", "upstream_at"]
