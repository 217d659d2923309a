"""`poise forward JOB PORT[:LOCAL]`."""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

from poise.cli.numbers import WholeRange
from poise.cli.render import print_json, say
from poise.client import Client, current_home
from poise.config import Home
from poise.control.start import connected
from poise.decoding import json_decoder
from poise.drivers.giving import Giving
from poise.errors import InputError, PoiseError, SpecError
from poise.model.reports.streams import ExecEnd, ExecLine, ExecOutput, ExecStarted

OWN_FAILURE = 125
MOST_AT_ONCE = 12
"""Maximum number of connections at once; others wait. A task has room for a few commands beside them."""


@click.command()
@click.option("--rank", type=WholeRange(min=0), metavar="N", help="The member of a gang. [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value once the ports are open.")
@click.argument("job")
@click.argument("ports", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
def forward(job: str, ports: tuple[str, ...], rank: int | None, as_json: bool) -> int:
    """Open ports of this machine that lead to ports on the node of the running JOB (id, name, or JOB.TASK).

    They stay open until Ctrl-C or the end of the job.

    PORT is the port that the job listens on. LOCAL is the port of this machine, by default the same one; 0 means any.
    Only programs on this machine can connect to it.
    """
    home = current_home()
    wanted = [_ports(text) for text in ports]
    report = connected(home).job(job)
    if report.exit_code is not None:
        raise SpecError(f"job {report.id} is over", field="job", have=report.status, hint=f"`poise show {report.id}`")
    listeners = [(port, listener_on(local)) for port, local in wanted]
    if as_json:
        print_json([{"port": port, "local": listener.getsockname()[1]} for port, listener in listeners])
        sys.stdout.flush()
    room = threading.BoundedSemaphore(MOST_AT_ONCE)
    for port, listener in listeners:
        if not as_json:
            say(f"poise: localhost:{listener.getsockname()[1]} is port {port} of {job}; Ctrl-C ends it")
        serve_port(home, job, port, rank, listener, room)
    with contextlib.suppress(KeyboardInterrupt):
        report = connected(home).wait(job)
        say(f"poise: {report.id} is over")
    return 0


def _ports(text: str) -> tuple[int, int]:
    port, _, local = text.partition(":")
    try:
        numbers = int(port), int(local or port)
    except ValueError:
        numbers = 0, 0
    if not (0 < numbers[0] < 65536 and 0 <= numbers[1] < 65536):
        need, hint = "PORT or PORT:LOCAL, from 1 to 65535", "poise forward JOB 8888"
        raise SpecError("this is not a port", field="PORT", need=need, have=text, hint=hint)
    return numbers


def listener_on(local: int) -> socket.socket:
    """Return a listener on a port of this machine, which only programs on this machine reach; 0 is any port."""
    try:
        return socket.create_server(("127.0.0.1", local))
    except OSError as error:
        what = f"port {local} of this machine cannot be used: {error.strerror}"
        raise InputError(what, field="LOCAL", have=str(local), hint="another one: `PORT:0`") from None


def serve_port(
    home: Home, job: str, port: int, rank: int | None, listener: socket.socket, room: threading.BoundedSemaphore
) -> None:
    """Pass connections to a listener on to a port of a job, in the background. `room` limits their number."""
    threading.Thread(target=_accept, args=(home, job, port, rank, listener, room), daemon=True).start()


def _accept(home: Home, job: str, port: int, rank: int | None, listener: socket.socket, room: Any) -> None:
    while True:
        room.acquire()
        mine, _ = listener.accept()
        mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(home, job, port, rank, mine, room), daemon=True).start()


def _serve(home: Home, job: str, port: int, rank: int | None, mine: socket.socket, room: Any) -> None:
    try:
        with mine, contextlib.closing(Client(home).connect(job, port=port, rank=rank)) as lines:
            passed_on(home, lines, mine.fileno(), mine.sendall, lambda: mine.shutdown(socket.SHUT_WR))
    except (PoiseError, OSError) as error:
        say(f"poise: a connection to port {port} of {job} failed: {error}")
    finally:
        room.release()


def passed_on(
    home: Home, lines: Iterable[ExecLine], fd: int, write: Callable[[bytes], object], shut: Callable[[], None]
) -> int:
    """Send what comes from `fd` to the other end of a connection, and `write` what comes from there; `shut` that
    direction at its end. Return the exit code of the other end once both directions have ended.
    """
    got, end = 0, -1
    for line in lines:
        if isinstance(line, ExecStarted):
            threading.Thread(target=_give, args=(Client(home), line.name, fd), daemon=True).start()
        elif isinstance(line, ExecOutput) and line.stream == "out":
            write(line.data)
            got += len(line.data)
        elif isinstance(line, ExecOutput):
            end = max(end, _told(line.data))
        elif isinstance(line, ExecEnd):
            if line.note:
                say(f"poise: {line.note}")
            return line.exit_code
        if got == end:
            with contextlib.suppress(OSError):
                shut()
            end = -1
    return OWN_FAILURE


def _told(data: bytes) -> int:
    """Return the number of bytes after which the service has ended its direction; -1 if it is not told."""
    for text in data.splitlines():
        try:
            said = json_decoder(dict[str, Any]).decode(text)
        except msgspec.DecodeError:
            say(text.decode("utf-8", "replace"))
            continue
        if "sent" in said:
            return int(said["sent"])
        say(f"poise: {said.get('message', '')}; {said.get('hint', '')}")
    return -1


def _give(client: Client, name: str, fd: int) -> None:
    with contextlib.suppress(PoiseError, OSError, ValueError):
        client.feed_exec(name, Giving(fd, kept=0))
