"""`python -m poise.control`: one control plane for one home.

It holds the home's lock, reads the log, and serves the API on the home's socket and a loopback port. It exits on
SIGTERM and leaves running work to the agent and its keepers. If it shares its log with others, it serves at once as a
standby until it leads.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # until `settle_memory`: imports are long-lived, and scanning them takes a fifth of the start


import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import uvloop

from poise import __version__
from poise.config import DEFAULT_PORT, Address, Endpoint, Home, parse_place
from poise.control.anomalies import Anomalies
from poise.control.api import make_app
from poise.control.deciders import Deciders
from poise.control.entrance import Entrance
from poise.control.images import Images
from poise.control.incidents import Incidents
from poise.control.intensity import Intensities
from poise.control.judging import Judging
from poise.control.lifetime import Lifetime
from poise.control.loglines import Loglines
from poise.control.notices import Notifier, Targets
from poise.control.objectives import Objectives
from poise.control.plane import Plane, clock_of
from poise.control.storehouse import Storehouse
from poise.decoding import json_decoder
from poise.drivers import calendar
from poise.drivers.accounts import door_of, make_root
from poise.drivers.clusters import kept_clusters
from poise.drivers.lock import take_lock
from poise.drivers.logs import keep_pruned
from poise.drivers.messages import Seldom, turn_over
from poise.drivers.plugins import choice_of, choose, policy_settings, with_latest_policy_here
from poise.drivers.reach import fingerprint
from poise.drivers.security import ensure_token
from poise.drivers.series import Series
from poise.drivers.sockets import listen, notice_loss, share
from poise.drivers.spans import settle_traces
from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import boot_id, boottime, making_records, open_many_files, settle_memory
from poise.drivers.tidy import remove_abandoned
from poise.drivers.whole import write_whole
from poise.drivers.worlds import read_asked
from poise.engine.host import load_ledger
from poise.errors import Conflict, InputError, PoiseError, SpecError, StoreAway
from poise.kernel.ahead import to_fetch
from poise.kernel.controller import Controller, Settings
from poise.model.events import decode_event, encode_event
from poise.model.fleetfile import DeclaredFleet
from poise.model.times import Times
from poise.ports import Store
from poise.units import HOUR, SECOND

if TYPE_CHECKING:
    from poise.control.shared import Shared

CANNOT_START = 3
"""Exit code when a person must act: the log is damaged, or newer than this version."""

WANTED_AGAIN = 4
"""Exit code of an idle exit during which new work arrived: the supervisor restarts it."""

KEEP_VALUES = 1 * HOUR
"""How long to keep the values of an ended job: its caller may still read them."""

KEEP_CHECKPOINTS = 24 * HOUR
"""How long to keep the checkpoints of an ended job whose script names no folder for them."""

TIDY_SECONDS, TIDY_MESSAGES_SECONDS = 600.0, 30.0

FETCH_SECONDS = 2.0
"""Interval between checks of the images of waiting work."""

_log = logging.getLogger("poise.control")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.control", description="the control plane of one home")
    parser.add_argument("home", type=Path)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="loopback port; another is taken if it is busy")
    parser.add_argument("--policy", default="poise", help="name of a policy, or a policy file")
    parser.add_argument(
        "--policy-asked", type=float, default=0.0, help="when somebody asked for it, in seconds since 1970; 0: nobody"
    )
    parser.add_argument(
        "--decide-within", type=int, default=Times().decide, help="nanoseconds that a policy of others has for a round"
    )
    parser.add_argument(
        "--outage-hold", type=int, default=Times().outage_hold, help="nanoseconds that an outage is waited for at most"
    )
    parser.add_argument(
        "--outage-settle", type=int, default=0, help="nanoseconds to wait for the last nodes after it [as for any node]"
    )
    parser.add_argument("--history", type=int, default=10_000, help="finished jobs kept in the ledger")
    parser.add_argument("--until-idle", action="store_true", help="end once no job is left")
    parser.add_argument("--fleet", type=Path, help="compiled fleet that is declared here [HOME/fleet.json]")
    parser.add_argument("--log-limit", type=int, default=0, help="bytes that the log may take; 0: the disk's room")
    parser.add_argument("--listen", help="HOST:PORT at which other machines are listened to, by TLS")
    parser.add_argument("--share", type=Path, help="another socket, for every user of this machine")
    parser.add_argument("--traces", metavar="URL", help="traces are exported: each attempt gets a trace context")
    options = parser.parse_args()
    faulthandler.enable()  # a crash in native code writes its stack to the messages
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Seldom())
    home = Home(options.home.resolve())
    os.umask(0o077)
    open_many_files()
    try:
        token = ensure_token(home)
        with take_lock(home.lock, "control plane") as holds:
            return _hold(home, token, options, holds)
    except PoiseError as error:  # the lock is not ours, so write no failure file for its holder
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code


def _hold(home: Home, token: str, options: argparse.Namespace, holds: Callable[[], bool]) -> int:
    """Serve while the lock is held. Write an error that needs a person to a file, which the command line shows."""
    home.failure.unlink(missing_ok=True)
    home.left.unlink(missing_ok=True)
    try:
        return uvloop.run(_serve(home, token, options, holds))
    except StoreAway as error:
        _log.error("%s", error)
        return error.exit_code
    except PoiseError as error:
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        home.failure.write_bytes(msgspec.json.encode(error.record))
        return CANNOT_START


async def _serve(home: Home, token: str, options: argparse.Namespace, holds: Callable[[], bool]) -> int:
    """Serve until told to stop. Return the exit code."""
    loop = asyncio.get_running_loop()
    beyond = await asyncio.to_thread(_beyond, home, options.listen) if options.listen else None
    shared = await _shared(home, token, beyond.address.text if beyond else str(home.socket))
    store: Store = (
        shared.store
        if shared is not None
        else SqliteStore(
            home.log,
            encode_event,
            decode_event,
            call_soon=loop.call_soon_threadsafe,
            warn=_log.warning,
            max_bytes=options.log_limit,
            written_by=__version__,
        )
    )
    with making_records():
        ledger = shared.ledger if shared is not None else load_ledger(store)
    Series(home.series).forget(ledger.nodes)
    settle_memory()
    fleet = _declared(options.fleet or home.fleet)
    choice = choose(options.policy)
    settings = Settings(
        history=options.history,
        version=__version__,
        throughputs=fleet.throughputs if fleet else {},
        fleet=fleet.name if fleet else "",
        declared=tuple(node.name for node in fleet.nodes) if fleet else (),
        dead_after=Times().dead_remote if options.listen else Times().dead_local,
        outage_hold=options.outage_hold,
        outage_settle=options.outage_settle,
        forget_after=Times().forget,
        traced=options.traces is not None,
        grows=any(cluster.grows for cluster in kept_clusters(home)),
        **policy_settings(choice, options.policy_asked),
    )
    settings = with_latest_policy_here(settings, ledger.leader.began)
    deciders = Deciders(lambda: plane.ledger.leader.began, Times(decide=options.decide_within))
    with contextlib.suppress(SpecError):  # each round logs a logged policy that is missing here
        await deciders.prepare(choice_of(settings))
    controller, intensities = Controller(ledger, settings, calendar.around), Intensities(home.intensity)
    images = Images(home.registries)
    plane = Plane(controller, store, clock_of(ledger), deciders, intensities=intensities, images=images, holds=holds)
    settle_traces(home, ledger.revision, traced=options.traces is not None)
    if shared is None:
        plane.begin(boot=boot_id(), boottime=boottime())
        await plane.settled()  # take the socket only after the log was acquired
    else:
        plane.behind = ""
    lifetime = Lifetime(plane, home, until_idle=options.until_idle)
    incidents, anomalies, files = Incidents(plane, home), Anomalies(plane), Storehouse(home.files)
    names, authority = (beyond.names, beyond.authority) if beyond else ((), b"")
    app = make_app(
        plane,
        home,
        token,
        lifetime,
        deciders,
        known_as=names,
        authority=authority,
        log_limit=options.log_limit,
        incidents=incidents,
        anomalies=anomalies,
        files=files,
    )
    tcp, port = _loopback(options.port)
    doors = [Entrance(app, [listen(home.socket), tcp, *([share(options.share)] if options.share else [])])]
    if beyond is not None:
        doors.append(Entrance(app, [beyond.listening], beyond.context, plane.crowded))
    _write_endpoint(home, port, beyond.address.text if beyond else "")  # before any client that reads it is served
    serving = asyncio.gather(*(door.open(partial(_close, doors, plane)) for door in doors))
    while not all(door.started for door in doors) and not serving.done():  # noqa: ASYNC110 — there is no event for it
        await asyncio.sleep(0.005)
    _log.info(
        "ready: process %d, port %d, revision %d, term %d", os.getpid(), port, ledger.revision, ledger.leader.term
    )
    standing_by = None if shared is None else asyncio.create_task(_stand_by(shared, plane, lifetime))
    leaving = asyncio.create_task(lifetime.leave_when_idle())
    tidying = [asyncio.create_task(_tidy_folders(plane, home, files)), asyncio.create_task(_tidy_messages(home))]
    tidying.append(asyncio.create_task(Notifier(plane, Targets(home)).run()))
    tidying += [asyncio.create_task(incidents.run()), asyncio.create_task(incidents.tell(Targets(home)))]
    tidying.append(asyncio.create_task(deciders.resume(read_asked(home))))
    tidying += [asyncio.create_task(anomalies.run()), asyncio.create_task(Objectives(plane, home, incidents).run())]
    tidying.append(asyncio.create_task(Judging(plane, home, deciders).run()))
    tidying.append(asyncio.create_task(Loglines(plane, home.logs).run()))
    tidying.append(asyncio.create_task(_fetch_ahead(plane)))
    if os.geteuid() == 0:
        tidying.append(asyncio.create_task(_let_accounts_in(plane, home, doors[0])))
    if beyond is not None:  # output from nodes of other homes is kept here, where there may be no agent
        tidying.append(asyncio.create_task(keep_pruned(home.logs)))
    await serving
    leaving.cancel()
    for task in tidying:
        task.cancel()
    deciders.close()
    await files.close()
    plane.end()
    for told in [
        home.endpoint,
        door_of(home),
        *([options.share] if options.share else []),
    ]:  # clients must not wait at it
        with contextlib.suppress(OSError):
            told.unlink()
    if shared is not None and standing_by is not None:
        standing_by.cancel()
        shared.lease.release()
        with contextlib.suppress(asyncio.CancelledError):
            await standing_by  # raises the error that keeps it from leading, if there is one
        shared.lease.close()
    return WANTED_AGAIN if lifetime.wanted_again else 0


async def _shared(home: Home, token: str, address: str) -> "Shared | None":
    """Return the log that this home shares with others, if any; `address` is where the others reach us."""
    try:
        url = home.store.read_text().strip()
    except FileNotFoundError:
        return None
    from poise.control.shared import open_shared  # imported late: its library is an extra

    return await open_shared(url, home, token, address)


async def _stand_by(shared: "Shared", plane: Plane, lifetime: Lifetime) -> None:
    """Stand by, then lead. On an error, end the process."""
    try:
        await shared.lead(plane)
    except Exception:
        lifetime.end()
        raise


async def _fetch_ahead(plane: Plane) -> None:
    """Tell nodes which images they will probably need."""
    while True:
        await asyncio.sleep(FETCH_SECONDS)
        if plane.behind is None:
            for node, fetch in to_fetch(plane.ledger).items():
                plane.tell(node, fetch)


async def _let_accounts_in(plane: Plane, home: Home, entrance: Entrance) -> None:
    """Listen to processes of Unix accounts, once a token has named one, because they cannot enter the home. As at the
    other sockets, every request needs a token or the key of an attempt.
    """
    news = plane.follow()
    try:
        while not plane.ledger.tokens.name_accounts():
            await news.wait()
            news.clear()
    finally:
        plane.unfollow(news)
    try:
        await asyncio.to_thread(make_root, home)
        entrance.listen_too(share(door_of(home)))
    except (OSError, PoiseError) as error:
        _log.error("work of accounts cannot reach the control plane: %s", error)


async def _tidy_messages(home: Home) -> None:
    """Rotate the file of messages while the processes that write to it run."""
    while True:
        try:
            await asyncio.to_thread(turn_over, home.messages)
        except OSError as error:
            _log.warning("%s cannot be begun anew: %s", home.messages, error.strerror)
        await asyncio.sleep(TIDY_MESSAGES_SECONDS)


async def _tidy_folders(plane: Plane, home: Home, files: Storehouse) -> None:
    """Remove what ended jobs left: checkpoints, and values whose caller was killed before it removed them."""
    while True:
        now, jobs = plane.clock.now(), plane.ledger.jobs
        for folder, keep in (
            (home.values, KEEP_VALUES),
            (home.meetings, KEEP_VALUES),
            (home.checkpoints, KEEP_CHECKPOINTS),
        ):
            kept = {job.id for job in jobs.values() if not job.ended or now - job.ended < keep}
            await asyncio.to_thread(remove_abandoned, folder, kept, keep / SECOND)
        try:
            await files.tidy(plane.ledger)
        except PoiseError as error:
            _log.warning("files that no job needs are not removed: %s", error)
        await asyncio.sleep(TIDY_SECONDS)


def _declared(path: Path) -> DeclaredFleet | None:
    """Return the declared fleet, if there is one."""
    try:
        return json_decoder(DeclaredFleet).decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise SpecError(
            f"the declared fleet cannot be read: {error}", code="E101", field=str(path), hint="`poise up --fleet FILE`"
        ) from None


def _close(doors: list[Entrance], plane: Plane) -> None:
    plane.leaves()
    for door in doors:
        door.handle_exit(signal.SIGTERM, None)


class _Beyond(NamedTuple):
    """The listening socket for other machines, with its address, names and certificates."""

    listening: socket.socket
    address: Address
    names: list[str]
    authority: bytes
    context: ssl.SSLContext


def _beyond(home: Home, place: str) -> _Beyond:
    """Listen to other machines. Raises InputError."""
    from poise.drivers.authority import ensure_authority, names_here, server_context  # slow to import, seldom needed

    host, port = parse_place(place, "--listen")
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        hint = "another port, or `ip address`"
        raise InputError(f"it cannot listen there: {error.strerror}", field="--listen", have=place, hint=hint) from None
    notice_loss(listening)
    names, authority = names_here(host), ensure_authority(home)
    address = Address(names[0], listening.getsockname()[1], fingerprint(authority))
    return _Beyond(listening, address, names, authority, server_context(home, names))


def _loopback(port: int) -> tuple[socket.socket, int]:
    """Bind the requested loopback port, or a free one if it is taken."""
    for wanted in (port, 0):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", wanted))
        except OSError:
            sock.close()
            continue
        sock.listen(1024)
        return sock, sock.getsockname()[1]
    raise Conflict("no loopback port is free", code="E204", field="--port")


def _write_endpoint(home: Home, port: int, address: str) -> None:
    """Write the endpoint file atomically: readers see all of it or none. A full disk does not stop the process."""
    endpoint = Endpoint(pid=os.getpid(), port=port, version=__version__, address=address)
    try:
        write_whole(home.endpoint, msgspec.json.encode(endpoint))
    except OSError as error:
        _log.warning("%s cannot be written: %s", home.endpoint, error.strerror)


if __name__ == "__main__":
    sys.exit(main())
