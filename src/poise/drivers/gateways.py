"""Queries the gateways of a home for reports on their services.

A client connects to a gateway's socket, beside those of its replicas, sends the window in nanoseconds and a line feed,
and gets the reports as one JSON value. Only the owner can enter the folder. `poise_serve.reporting` is the server side.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers import sockets
from poise.drivers.lock import holder
from poise.model.reports import ServiceReport
from poise.units import MINUTE

ANSWER_SECONDS = 2.0
"""Seconds within which a gateway must report."""


def service_reports(folder: Path, window: int = MINUTE) -> Iterator[tuple[str, list[ServiceReport] | None]]:
    """Yield each registered gateway by its mark, with its reports; None if it does not answer: it was just killed and
    not yet replaced, hangs, or has an older version.
    """
    for record in sorted(folder.glob("*.gateway")):
        try:
            yield record.stem, _asked(socket_of(folder, record.stem), window)
        except (OSError, msgspec.DecodeError):
            if record.exists():  # otherwise it has just ended
                yield record.stem, None


def running_gateways(folder: Path) -> list[int]:
    """Return the process id of each running gateway. SIGTERM ends it."""
    found = (holder(record.with_suffix(".lock")) for record in sorted(folder.glob("*.gateway")))
    return [process for process in found if process]


def socket_of(folder: Path, mark: str) -> Path:
    """Return the reporting socket of the gateway with this mark."""
    return folder / f"{mark}.sock"


def _asked(path: Path, window: int) -> list[ServiceReport]:
    with sockets.connect(path, ANSWER_SECONDS) as channel:
        channel.sendall(b"%d\n" % window)
        told = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    return json_decoder(list[ServiceReport]).decode(told)
