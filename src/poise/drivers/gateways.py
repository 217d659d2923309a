"""Ask the gateways of a home for the figures of their services.

A program connects to a gateway's socket beside those of its replicas, sends the window in nanoseconds and a line feed,
and gets the reports as one JSON value. The folder lets only its owner in. `poise_serve.reporting` is the other side.
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
"""Seconds that a gateway may take to report."""


def service_reports(folder: Path, window: int = MINUTE) -> Iterator[tuple[str, list[ServiceReport] | None]]:
    """Each gateway that is on file, by its mark, with its reports; None where it does not answer: it has just been
    killed and not been replaced yet, or it hangs, or is of an older version.
    """
    for record in sorted(folder.glob("*.gateway")):
        try:
            yield record.stem, _asked(socket_of(folder, record.stem), window)
        except (OSError, msgspec.DecodeError):
            if record.exists():  # else it has just ended
                yield record.stem, None


def running_gateways(folder: Path) -> list[int]:
    """The process of each gateway that runs: SIGTERM to it ends the gateway."""
    found = (holder(record.with_suffix(".lock")) for record in sorted(folder.glob("*.gateway")))
    return [process for process in found if process]


def socket_of(folder: Path, mark: str) -> Path:
    """Where the gateway of this mark reports."""
    return folder / f"{mark}.sock"


def _asked(path: Path, window: int) -> list[ServiceReport]:
    with sockets.connect(path, ANSWER_SECONDS) as channel:
        channel.sendall(b"%d\n" % window)
        told = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    return json_decoder(list[ServiceReport]).decode(told)
