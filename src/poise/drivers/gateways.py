"""Queries the gateways of a home for reports on their services.

A client connects to a gateway's socket, beside those of its replicas, sends the window in nanoseconds and a line feed,
and gets the reports as one JSON value. Only the owner can enter the folder. `poise_serve.reporting` is the server side.

A second socket has the admin API (`poise_serve.admin`), over HTTP.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers import sockets
from poise.drivers.http import Connection
from poise.drivers.lock import holder
from poise.errors import ErrorRecord, Unreachable, from_record
from poise.model.reports.services import ServiceReport
from poise.units import MINUTE

ADMIN = "/admin/"
"""The paths of the admin API begin with this."""

USER = b"x-poise-user"
"""The header in which a client at the socket says who its user is."""

ADMIN_SECONDS = 60.0
"""Seconds within which a gateway must answer a request of the admin API: it looks up names and probes upstreams."""

ANSWER_SECONDS = 2.0
"""Seconds within which a gateway must report."""


def service_reports(folder: Path, window: int = MINUTE) -> Iterator[tuple[str, list[ServiceReport] | None]]:
    """Yield each registered gateway by its mark, with its reports; None if it does not answer: it was just killed and
    not yet replaced, hangs, or has an older version.
    """
    for record in gateway_files(folder):
        try:
            yield record.stem, _asked(socket_of(folder, record.stem), window)
        except (OSError, msgspec.DecodeError):
            if record.exists():  # otherwise it has just ended
                yield record.stem, None


def gateway_files(folder: Path) -> list[Path]:
    """Return the record of each registered gateway that has services or upstreams, and does not only relay requests."""
    return [record for record in sorted(folder.glob("*.gateway")) if not _relays(record)]


def _relays(record: Path) -> bool:
    try:
        return json_decoder(_Record).decode(record.read_bytes()).relays
    except (OSError, msgspec.DecodeError):
        return False


class _Record(msgspec.Struct):
    relays: bool = False


def running_gateways(folder: Path) -> list[int]:
    """Return the process id of each running gateway. SIGTERM ends it."""
    found = (holder(record.with_suffix(".lock")) for record in sorted(folder.glob("*.gateway")))
    return [process for process in found if process]


def socket_of(folder: Path, mark: str) -> Path:
    """Return the reporting socket of the gateway with this mark."""
    return folder / f"{mark}.sock"


def admin_socket_of(folder: Path, mark: str) -> Path:
    """Return the socket of the admin API of the gateway with this mark."""
    return folder / f"{mark}.admin"


class _AdminError(msgspec.Struct):
    error: ErrorRecord


def ask_admin(folder: Path, mark: str, name: str, asked: object, user: str) -> bytes:
    """Send a request to the admin API of a gateway, and return its answer, as JSON. `name`: the path behind `ADMIN`;
    empty for a report, which has no request. Raises the `PoiseError` of the gateway, and `Unreachable`.
    """
    method, body = ("POST", msgspec.json.encode(asked)) if name else ("GET", None)
    headers = {"Host": "localhost", USER.decode(): user.encode("ascii", "replace").decode()}
    try:
        with Connection(sockets.connect(admin_socket_of(folder, mark), ADMIN_SECONDS)) as connection:
            answer = connection.ask(method, ADMIN + name, headers, body)
            told = answer.read()
    except OSError as error:
        hint = f"its process: `cat {folder / f'{mark}.lock'}`"
        raise Unreachable(f"the gateway {mark} does not answer: {error}", hint=hint) from None
    if answer.status != 200:
        try:
            record = json_decoder(_AdminError).decode(told).error
        except msgspec.DecodeError:
            record = ErrorRecord(code="E299", message=told.decode(errors="replace")[:200])
        raise from_record(record, answer.status)
    return told


def _asked(path: Path, window: int) -> list[ServiceReport]:
    with sockets.connect(path, ANSWER_SECONDS) as channel:
        channel.sendall(b"%d\n" % window)
        told = b"".join(iter(lambda: channel.recv(1 << 16), b""))
    return json_decoder(list[ServiceReport]).decode(told)
