"""`python -m poise_kubernetes.pilot FOLDER`: the pilot in a Pod. It keeps the agent of its node alive.

Its orders are in files that Kubernetes keeps up to date: an annotation of the Pod, and the Secret of its home. It has
no rights in the cluster, and neither have the commands that run beside it. Nothing of it outlives the Pod.

When the Pod is evicted, the control plane has the grace period to move its work; the pilot ends once nothing runs. If
the control plane does not answer for a long time and nothing runs, the pilot ends too and frees the Pod's resources.
"""

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from poise.config import Address
from poise.decoding import json_decoder
from poise.drivers.devices import Part
from poise.drivers.piloting import AgentKeeper
from poise.errors import PoiseError
from poise.ports import Contact
from poise_kubernetes.manifests import Orders, digest

T = TypeVar("T")

LOOK_SECONDS = 0.5
KNOCK_SECONDS = 30.0
ALONE_SECONDS = 600.0
"""A pilot whose control plane does not answer for this long ends, unless commands run."""

SPARE_SECONDS = 10.0
"""Time before the Pod is killed at which the pilot ends its agent itself; half of a grace period that is shorter than
twice this.
"""

HIDDEN = ("KUBERNETES_", "POISE_PART")
"""Variables of the Pod that commands must not see."""

_log = logging.getLogger("poise.pilot")


class Pilot:
    """The pilot whose folder is `base`."""

    def __init__(self, base: Path, environ: Mapping[str, str]) -> None:
        self._base, self.root = base, base / "node"
        self._part = json_decoder(Part).decode(environ["POISE_PART"])
        self._agent: AgentKeeper | None = None
        self._followed: Orders | None = None
        self._contact: Contact | None = None

    def run(self, signals: "queue.SimpleQueue[int]") -> None:
        """Run until the pilot is told to end or is alone, and nothing runs; or until its Pod is about to be killed."""
        self._share_checkpoints()
        heard = knocked = time.monotonic()
        killed_at: float | None = None
        spare = SPARE_SECONDS
        while True:
            self._beat()
            with contextlib.suppress(queue.Empty):
                signals.get(timeout=LOOK_SECONDS)
                if killed_at is None:
                    grace = self._followed.grace if self._followed is not None else 0
                    killed_at = time.monotonic() + grace
                    spare = min(SPARE_SECONDS, grace / 2)
                    if self._end():
                        return
            now = time.monotonic()
            if killed_at is not None and now > killed_at - spare:
                break
            if self._look():
                return
            if now - knocked > KNOCK_SECONDS:
                knocked = now
                if self._contact is not None and _answers(self._contact):
                    heard = now
                elif now - heard > ALONE_SECONDS and self._end():
                    _log.info("no control plane answers, and nothing runs: the pod ends")
                    return
        if self._agent is not None:
            self._agent.leave("its pod is being removed", 0.9 * spare)

    def _look(self) -> bool:
        """Follow changed orders; return whether the pilot must end."""
        orders, contact = self._orders(), _read(self._base / "contact" / "contact", Contact)
        if orders is None or contact is None or digest(contact) != orders.contact or orders == self._followed:
            return False  # one of the files is older than the other
        before, self._followed, self._contact = self._followed, orders, contact
        if self._agent is None:
            part = msgspec.structs.replace(self._part, labels=orders.labels)
            self._agent = AgentKeeper(self.root / "agent", orders.node, part, contact, HIDDEN)
        elif before is not None:
            if before.contact != orders.contact:
                self._agent.tell(contact)
            if orders.restarts > before.restarts:
                self._agent.begin_anew()
        return orders.released > (before.released if before is not None else 0) and self._end()

    def _end(self) -> bool:
        """End the agent unless commands run; return whether no agent is left."""
        return self._agent is None or self._agent.end()

    def _orders(self) -> Orders | None:
        return _read(self._base / "orders" / "orders", Orders)

    def _beat(self) -> None:
        """Update the heartbeat file for the Pod's readiness probe."""
        with contextlib.suppress(OSError):
            (self.root / "alive").touch()

    def _share_checkpoints(self) -> None:
        """Link checkpoints to the volume, if there is one: the node's folder is deleted with the Pod."""
        shared, own = self._base / "checkpoints", self.root / "agent" / "checkpoints"
        if shared.is_dir() and not own.exists():
            own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own.symlink_to(shared)


def _answers(contact: Contact) -> bool:
    """Whether any of the control planes accepts a connection."""
    for text in contact.address.split(","):
        with contextlib.suppress(OSError, PoiseError):
            address = Address.parse(text)
            socket.create_connection((address.host, address.port), LOOK_SECONDS * 4).close()
            return True
    return False


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return json_decoder(kind).decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def main(base: Path) -> None:
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    Pilot(base, os.environ).run(signals)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
