"""`python -m poise.agent.on_substrate HOME NAME`: keeps an agent on every machine of one of the home's clusters.

The supervisor keeps it alive, in place of the agents of a local fleet. On SIGTERM it ends the agents whose nodes run
nothing, and then itself. If it is killed, the agents continue in their pilots; the next keeper finds them.

If there are several control planes, only the leader keeps its agents alive. The agents find the leader by themselves.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from poise.agent.pilots import Nodes, Pilots
from poise.client import Client
from poise.config import Address, Cluster, Endpoint, Home
from poise.decoding import json_decoder
from poise.drivers.clusters import kept_clusters, lock_of, take_left, write_answer, write_left, write_requests
from poise.drivers.lock import take_lock
from poise.drivers.reach import home_at
from poise.drivers.substrates import driver_of
from poise.drivers.whole import write_whole
from poise.errors import Fault, NotFound, PoiseError
from poise.model.reports.status import Request
from poise.ports import Contact, PlacingSubstrate, Substrate

LOOK_SECONDS = 1.0
START_SECONDS = 60.0
STOPS = (signal.SIGTERM, signal.SIGINT)
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_log = logging.getLogger("poise.substrate")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.agent.on_substrate", description="the agents of a cluster")
    parser.add_argument("home", type=Path)
    parser.add_argument("name", help="substrate of the cluster")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    home = home_at(options.home)
    os.umask(0o077)
    for number in STOPS:
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        clusters = kept_clusters(home)
        cluster = next((one for one in clusters if one.name == options.name), None)
        if cluster is None:
            hint = f"`poise up --on {options.name}`"
            raise NotFound(f"this home has no cluster `{options.name}`", field=str(home.root), hint=hint)
        with take_lock(lock_of(home, cluster), "keeper of a cluster's agents"):
            _keep(home, cluster, f"{cluster.name}-" if len(clusters) > 1 else "")
    except PoiseError as error:
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code
    return 0


def _keep(home: Home, cluster: Cluster, prefix: str) -> None:
    folder = home.substrate(cluster.name)
    address = _listening(home, cluster)
    substrate = _connect(home, cluster, address.authority[:12])
    if isinstance(substrate, PlacingSubstrate):
        _place(home, cluster, substrate)
        return
    token = _node_token(home, cluster)
    contact = Contact(_addresses(home, address, substrate.address()), token)
    _log.info("on %s", cluster.on)
    nodes = Nodes(Client(home, patience=0), cluster.name, cluster.driver, folder / "emptied.json")
    leads = not home.store.exists()
    take_left(home, cluster)
    pilots = Pilots(substrate, nodes, contact, prefix=prefix)
    stopping = _stopping()
    told: Sequence[Request] | None = None
    while not (stopping.wait(LOOK_SECONDS) or stopping.is_set()):  # the signal may come as the wait ends
        answer = _leads(home)
        leads = leads if answer is None else answer  # it ends before this process does, on `poise down`
        with contextlib.suppress(Fault):  # control plane unreachable, or its disk full: the next round repeats this
            unmet = pilots.keep() if answer else ()
            if unmet != told:
                write_requests(home, cluster, unmet)
                told = unmet
            pilots.open_again()  # whoever leads
    try:
        if leads and pilots.end():
            substrate.stop()
    except Fault as fault:
        _log.error("%s: %s", fault, fault.record.have)
        write_left(home, cluster, fault.record)


def _place(home: Home, cluster: Cluster, substrate: PlacingSubstrate) -> None:
    """Let a substrate place work on its own machines while this home's control plane leads."""
    stopping = _stopping()
    looked = time.monotonic()

    def over() -> bool:
        nonlocal looked
        if not stopping.is_set() and home.store.exists() and time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            return _leads(home) is False
        return stopping.is_set()

    _log.info("on %s", cluster.on)
    while not stopping.is_set():
        if _leads(home):
            substrate.work(str(home.root), over, lambda requests: write_requests(home, cluster, requests))
        stopping.wait(LOOK_SECONDS)


def _connect(home: Home, cluster: Cluster, own: str) -> Substrate | PlacingSubstrate:
    """Connect to the substrate of this home, and record the outcome for commands that wait for it."""
    try:
        substrate = driver_of(cluster.driver).connect(cluster.address, own, str(home.substrate(cluster.name)))
    except PoiseError as error:
        write_answer(home, cluster, error.record)
        raise
    write_answer(home, cluster, None)
    return substrate


def _stopping() -> threading.Event:
    """An event that is set when a signal tells this process to end, even if a library has changed the signal handlers.
    Processes that are started from here receive the signals as usual.
    """
    stopping = threading.Event()
    for number in STOPS:
        signal.signal(number, lambda *_: stopping.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return stopping


def _leads(home: Home) -> bool | None:
    """Return whether the control plane of this home leads, and so owns these nodes; None if it does not answer."""
    if not home.store.exists():
        return True
    with contextlib.suppress(PoiseError):
        return not Client(Home(home.root), patience=0).status().stands_by
    return None


def _addresses(home: Home, own: Address, here: str) -> str:
    """Return the address for the agents, as the substrate's machines know it; with several control planes, all
    addresses."""
    known = [door for door in home.others if isinstance(door, Address)]
    host = own.host if own.host in LOOPBACK else here
    return ",".join(door.text for door in known or [Address(host, own.port, own.authority)])


def _node_token(home: Home, cluster: Cluster) -> str:
    """Return the token for nodes, which is created at the first start."""
    file = home.substrate(cluster.name) / "token"
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    secret = Client(home).add_token("default", "node", name=cluster.name)[1]
    write_whole(file, secret.encode(), 0o600)
    return secret


def _listening(home: Home, cluster: Cluster) -> Address:
    """Wait until the control plane listens for nodes, and return its address."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if text := json_decoder(Endpoint).decode(home.endpoint.read_bytes()).address:
                return Address.parse(text)
        time.sleep(LOOK_SECONDS / 10)
    hint = f"`poise down`, then `poise up --on {cluster.on}`"
    raise Fault("the control plane does not listen for other machines", hint=hint)


if __name__ == "__main__":
    sys.exit(main())
