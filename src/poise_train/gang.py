"""Forms the group that trains together: this process alone, the workers of a Poise gang, or those of torchrun.

Under Poise the workers of one machine meet in the folder POISE_GANG_DIR, by a file for each generation of the gang, and
communicate over the loopback interface. If a gang may span several machines (POISE_GANG_ADDRESS is this machine's
address), the folder holds the address of the first worker's store for each generation. New `Orders` may arrive at any
time, when workers are lost, join or must leave. Then the remaining workers leave their group and form the group of the
next generation, in the same processes.

A script may have several sessions, one after another. Each is a separate gang: the first sessions of all workers form
one, then the second ones, and so on, under names with the session's number.
"""

import functools
import hashlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from poise.decoding import json_decoder
from poise.errors import GangBroken
from poise.model.training import ORDERS, UNIT, Orders
from poise_train import topology

FORM_SECONDS = 60.0
"""Timeout for forming a group; the control plane starts all workers of a gang at once."""

TALK_SECONDS = 600.0
"""Timeout of collective operations: the longest step that does not count as a hang."""

ORDERED_SECONDS = 10.0
"""Time that a collective operation on GPUs may still take after newer orders have arrived. One in gloo cannot be
aborted from here: it ends when its neighbours leave their group, or after TALK_SECONDS."""

LONG_SECONDS = 5.0
"""A worker reports when it has waited this long for the others."""

_LOOK_SECONDS = 0.02
_WATCH_SECONDS = 0.5
_OVER = "over"


_begun = itertools.count(1)


def next_session() -> int:
    """Return the number of a new session, from 1. Equal on all workers of a gang, which run the same script."""
    return next(_begun)


class WorkerLost(Exception):
    """A worker was lost during a collective operation."""


class Leaving(Exception):
    """This worker must leave its gang, or has joined after the end of training; then `over_at` is the last step."""

    def __init__(self, over_at: int = -1) -> None:
        super().__init__()
        self.over_at = over_at


class Gang:
    """This worker's place in its gang. `world` workers have the ranks from 0; `together` if there are others. `session`
    is the number of its session among those of the script, from 1.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.session = 1
        self.rank, self.world, self.generation = 0, 1, 0
        self._folder = "" if _under_torchrun() else os.environ.get("POISE_GANG_DIR", "")
        self._address = os.environ.get("POISE_GANG_ADDRESS", "")
        self._orders = os.environ.get(ORDERS, "") if self._folder else ""
        self._theirs = dist.is_initialized()  # the script made the group and owns it
        self._look = Orders(generation=0, world=1, rank=0), (0, 0)  # the latest orders, and which file they were in
        self._member = False  # of any group yet
        self._epoch = int(os.environ.get("POISE_EPOCH", 0))
        self._training = 0  # not known yet
        self._watch: threading.Thread | None = None
        self._over = threading.Event()
        self._waits_since = 0.0
        self.waits_long: Callable[[], object] = bool

    @property
    def together(self) -> bool:
        return self.world > 1

    @property
    def watched(self) -> bool:
        """Return whether Poise watches the gang: if a worker is lost, it sends new orders or stops the others."""
        return bool(self._folder)

    @property
    def resizes(self) -> bool:
        """Return whether the gang can change its members while it runs."""
        return bool(self._orders)

    def form(self, beat: Callable[[], None] = lambda: None) -> None:
        """Form the group. Raises Leaving if this worker is not a member, WorkerLost or GangBroken."""
        if self._theirs:
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        elif self._folder:
            while not self._meet(self._told(), beat):
                pass
        elif _under_torchrun():
            store, self.rank, self.world = _rendezvous()
            dist.init_process_group(
                _backend(self.device),
                store=PrefixStore(f"session-{self.session}", store),
                rank=self.rank,
                world_size=self.world,
                timeout=timedelta(seconds=TALK_SECONDS),
            )
        if self.together:
            with self.waiting():
                topology.learn(self.rank, self.world, form=FORM_SECONDS, talk=TALK_SECONDS)

    def disband(self, *, broken: bool = False) -> None:
        """Leave the group. Abort a `broken` one, whose operations may never end."""
        if self._watch is not None:
            self._over.set()
            self._watch.join()
            self._watch = None
        if broken and not self._theirs:
            topology.abort()
        topology.forget()
        if not self._theirs and dist.is_initialized():
            dist.destroy_process_group()

    def conclude(self, step: int) -> None:
        """Mark the training as finished at this step, so that no more workers join."""
        if self._folder:
            draft = self._path(f"{_OVER}.{self.rank}")
            draft.write_text(str(step))
            draft.replace(self._path(_OVER))

    @property
    def is_over(self) -> bool:
        """Whether a worker has finished the training."""
        return bool(self._folder) and self._path(_OVER).exists()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the enclosed block as waiting for the other workers."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = 0.0

    def newer(self) -> Orders | None:
        """Return orders that have arrived since the gang was formed."""
        orders = self._read()
        return orders if orders is not None and orders.generation > self.generation else None

    def agreed(self) -> tuple[int, int]:
        """Return the highest epoch of all members so far, because a worker that joins has a later one, and the number
        of the training, which all attempts under Poise share and each run by hand draws anew.
        """
        if not self._training and self.rank == 0:
            unit = os.environ.get(UNIT, "").encode()
            drawn = hashlib.blake2b(unit, digest_size=7).digest() if unit else secrets.token_bytes(7)
            self._training = 1 + int.from_bytes(drawn, "big")
        if self.together:
            found = torch.tensor([self._epoch, self._training])
            dist.all_reduce(found, dist.ReduceOp.MAX)
            self._epoch, self._training = found.tolist()
        return self._epoch, self._training

    def leaves(self) -> bool:
        """Return whether this worker must leave while the others continue."""
        orders = self.newer()
        return orders is not None and orders.rank < 0

    def is_to_change(self) -> bool:
        """Whether newer orders can be followed now. The others continue until the joining workers, which have the last
        ranks, are ready.
        """
        orders = self.newer()
        if orders is None or orders.rank < 0:
            return orders is not None
        return all(self._path(_joins(orders, rank)).exists() for rank in range(self.world, orders.world))

    def await_newer(self, seconds: float, beat: Callable[[], None]) -> bool:
        """Wait for newer orders. Returns whether they arrived; none do after another worker has finished training."""
        until = time.monotonic() + seconds
        while self.newer() is None:
            if time.monotonic() > until or self.is_over:
                return False
            beat()
            time.sleep(_LOOK_SECONDS)
        return True

    def _told(self) -> Orders:
        """Return the latest orders, or those that the process was started with."""
        orders = self._read()
        if orders is not None:
            return orders
        world, rank = int(os.environ["POISE_WORLD_SIZE"]), int(os.environ["POISE_RANK"])
        return Orders(generation=0, world=world, rank=rank)

    def _read(self) -> Orders | None:
        """Read the current orders. Each update is a new file."""
        if not self._orders:
            return None
        try:
            status = Path(self._orders).stat()
            if (file := (status.st_ino, status.st_mtime_ns)) != self._look[1]:
                self._look = json_decoder(Orders).decode(Path(self._orders).read_bytes()), file
            return self._look[0]
        except (OSError, msgspec.DecodeError):
            return None  # none have come yet

    def _meet(self, orders: Orders, beat: Callable[[], None]) -> bool:
        """Form the group of these orders. Returns false if newer ones arrived before all workers did."""
        self.disband()
        self.generation = orders.generation
        if orders.rank < 0:
            raise Leaving
        self.rank, self.world = orders.rank, orders.world
        if orders.world == 1:
            self._member = True
            return True
        if not self._member:
            self._path(_joins(orders, orders.rank)).touch()
        until = time.monotonic() + FORM_SECONDS
        store = self._store(orders)
        while store is None:
            if not self._wait_on(orders, [0], until, beat):
                return False
            store = self._store(orders)
        store.set(f"here.{orders.rank}", "")
        while missing := [rank for rank in range(orders.world) if not store.check([f"here.{rank}"])]:
            if not self._wait_on(orders, missing, until, beat):
                return False
        try:
            dist.init_process_group(
                _backend(self.device),
                store=PrefixStore("group", store),
                rank=orders.rank,
                world_size=orders.world,
                timeout=timedelta(seconds=FORM_SECONDS),
            )
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TALK_SECONDS), dist.group.WORLD)
        except RuntimeError as error:
            raise WorkerLost(str(error)) from None
        self._member = True
        self._over.clear()
        self._watch = threading.Thread(target=self._watch_over, daemon=True)
        self._watch.start()
        return True

    def _store(self, orders: Orders) -> Store | None:
        """Return the store of this generation; None until its first worker has published the address."""
        if not self._address:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            return FileStore(str(self._path(f"workers.{orders.generation}")), orders.world)
        for backend in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{backend}_SOCKET_IFNAME", _interface(self._address))
        place, patience = self._path(f"listens.{orders.generation}"), timedelta(seconds=FORM_SECONDS)
        if orders.rank == 0:
            store = TCPStore(self._address, 0, is_master=True, timeout=patience, wait_for_workers=False)
            draft = place.with_name(f".{place.name}")
            draft.write_text(f"{self._address} {store.port}")
            draft.replace(place)
            return store
        try:
            host, port = place.read_text().split()
        except FileNotFoundError:
            return None
        try:
            return TCPStore(host, int(port), timeout=patience, wait_for_workers=False)
        except RuntimeError as error:
            raise WorkerLost(str(error)) from None

    def _wait_on(self, orders: Orders, missing: list[int], until: float, beat: Callable[[], None]) -> bool:
        """Wait briefly for missing workers. Returns false if there are newer orders."""
        if self.newer() is not None:
            return False
        if self._path(_OVER).exists():
            self.world = 1  # it takes part in no more collective operations
            raise Leaving(int(self._path(_OVER).read_text()))
        if time.monotonic() > until:
            raise GangBroken(
                f"worker {orders.rank} has waited {FORM_SECONDS:.0f} s for the others of its gang",
                need=f"{orders.world} workers",
                have=f"no word of {', '.join(map(str, missing))}",
                hint="poise logs JOB",
            )
        beat()
        time.sleep(_LOOK_SECONDS)
        return True

    def _path(self, name: str) -> Path:
        """Return the path of a file of this session in the gang's folder."""
        return Path(self._folder) / f"{self.session}.{name}"

    def _watch_over(self) -> None:
        """Report when this worker waits long for others, since it is not the one that hangs. Abort its collective
        operations if they are still running long after newer orders arrived.
        """
        told = ordered = 0.0  # start of the reported wait; when newer orders were first seen
        while not self._over.wait(_WATCH_SECONDS):
            now, since = time.monotonic(), self._waits_since
            ordered = 0.0 if self.newer() is None else ordered or now
            if since and since != told and now - since > LONG_SECONDS:
                told = since
                self.waits_long()
            if since and ordered and now - max(since, ordered) > ORDERED_SECONDS:
                topology.abort()
                return


def _interface(address: str) -> str:
    """Return the name of the network interface with this address or host name; empty if there is none."""
    known = {of[4][0] for of in socket.getaddrinfo(address, None)}
    names = [name for name, found in psutil.net_if_addrs().items() if known & {of.address for of in found}]
    return names[0] if names else ""


def _joins(orders: Orders, rank: int) -> str:
    return f"joins.{orders.generation}.{rank}"


@functools.cache
def _rendezvous() -> tuple[Store, int, int]:
    """Return the store, the rank and the world size under torchrun. There is one store for all sessions, because one of
    the workers may be its server.
    """
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=TALK_SECONDS)))
    return store, rank, world


def _backend(device: torch.device) -> str:
    """Return the backend: gloo for tensors on the CPU, NCCL for tensors on GPUs."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or (
        "MASTER_ADDR" in os.environ and "POISE_GANG_DIR" not in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1
    )


__all__ = ["Gang", "Leaving", "WorkerLost", "next_session"]
