"""`poise doctor`."""

import contextlib
import ipaddress
import time
from collections.abc import Iterator

import click
import msgspec

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.client import current_home, failure_of
from poise.config import Address, Cluster, Endpoint, Home
from poise.control.start import connected, may_be_asked, running_here, supervised
from poise.decoding import json_decoder
from poise.drivers.checkup import examine
from poise.drivers.clusters import answer_of, kept_clusters, lock_of, parse_cluster, requests_of
from poise.drivers.lock import is_held
from poise.drivers.logfile import has_log
from poise.errors import PoiseError
from poise.model.reports.nodes import Check, CheckReport

STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}

TAIL = 64 * 2**10
"""Maximum bytes to read from the end of Poise's log messages."""

MOST_REQUESTS = 20
"""Most requests to one cluster that are listed."""


@click.command()
@click.option(
    "--on",
    "on",
    multiple=True,
    metavar="[NAME=]SUBSTRATE[:ADDRESS]",
    help="Check only whether Poise could run on this cluster, as `poise up --on` would use it. Repeatable. [e.g. "
    "slurm]",
)
@output.forms(*output.ROWS)
def doctor(on: tuple[str, ...], form: str) -> int:
    """Check this installation and suggest fixes: versions, home and disk, open ports, cgroups, limits, devices, extras,
    the control plane and its last failure. Each finding has a command that you can type.

    The exit code is 1 if a line says `fail`, else 0. A `warn` needs no action.
    """
    home = current_home()
    checks = [check for one in on for check in _substrate(home, one)] if on else [*examine(home), *_control(home)]
    well = not any(check.status == "fail" for check in checks)
    columns = [
        Column("", [click.style(check.status, fg=STYLE[check.status]) for check in checks]),
        Column("WHAT", [check.name for check in checks]),
        Column("FOUND", [check.text + (f"  →  {check.hint}" if check.hint else "") for check in checks]),
    ]
    shown = Shown(CheckReport(well=well, checks=tuple(checks)), [check.name for check in checks], columns)
    output.show(lambda: shown, form, False)
    return 0 if well else 1


def _control(home: Home) -> Iterator[Check]:
    """Check the control plane: its answer, its ports, its leftovers, its last error. Of another user's control plane
    check only whether it answers, and nothing that belongs to its owner.
    """
    if home.elsewhere is not None:
        if isinstance(home.elsewhere, Address):
            yield Check("address", "ok", f"{home.elsewhere}, by the authority {home.elsewhere.authority[:12]}…")
        elif home.elsewhere.exists():
            yield Check("socket", "ok", f"{home.elsewhere}, shared by its owner")
        else:
            yield Check("socket", "fail", f"{home.elsewhere} is not there", "set POISE_SOCKET to the whole path")
        yield from _running(home)
        return
    up, kept = may_be_asked(home), supervised(home)
    failure = failure_of(home)
    if failure is not None:
        yield Check("last failure", "fail", str(failure), failure.record.hint or f"tail {home.messages}")
    if up:
        yield from _running(home)
        yield from _bound(home)
        yield from _clusters(home)
        if running_here(home) and not kept:
            yield Check("supervisor", "warn", "nobody keeps the control plane alive", "poise up")
    else:
        yield Check("control plane", "ok", "not running", "poise up")
        yield from _left(home)
    yield from _said(home)


def _substrate(home: Home, on: str) -> Iterator[Check]:
    """Check whether Poise could run on a cluster that it does not use yet."""
    from poise.drivers.substrates import driver_of, examined  # slow to import

    one = parse_cluster(on)
    if one.is_here:
        yield Check(on, "ok", "this machine; `poise doctor` checks it")
        return
    yield from examined(driver_of(one.driver), on, one.address, home.substrate(one.name))


def _running(home: Home) -> Iterator[Check]:
    try:
        with contextlib.closing(connected(home)) as client:
            status, unfit = client.status(), [node for node in client.nodes() if node.unfit]
            door = client.door
    except PoiseError as error:
        remedy = f"tail {home.messages}" if home.elsewhere is None else "ask who shares it"
        yield Check("control plane", "fail", str(error), error.record.hint or remedy)
        return
    nodes = "1 node" if status.nodes == 1 else f"{status.nodes} nodes"
    jobs = "1 job" if status.unfinished == 1 else f"{status.unfinished} jobs"
    text = f"up, policy {status.policy}, revision {status.revision}, {nodes}, {jobs}"
    if door != home.doors[0]:
        leader = status.leader if status.stands_by else str(door)
        leads = f"{leader} leads" if leader else "nobody is known to lead"
        yield Check("control plane", "warn", f"not up here; {leads}: {text.removeprefix('up, ')}", "poise up")
    elif status.stands_by:
        text = f"stands by for {status.leader or 'nobody yet'}: {text.removeprefix('up, ')}"
        yield (
            Check("control plane", "ok", text)
            if status.leader
            else Check("control plane", "warn", text, f"tail {home.messages}")
        )
    elif not status.accepting:
        yield Check("control plane", "fail", f"{text}; its log cannot be written", "df -h; poise events | tail")
    elif status.lost:
        lost = "1 node is lost" if status.lost == 1 else f"{status.lost} nodes are lost"
        yield Check("control plane", "warn", f"{text}; {lost}", "poise nodes")
    else:
        yield Check("control plane", "ok", text)
    for node in unfit:
        yield Check(f"node {node.name}", "fail", node.unfit, f"df -h; ulimit -u; tail {home.messages}")


def _bound(home: Home) -> Iterator[Check]:
    """Check the ports on which the control plane listens, as the kernel reports them."""
    import psutil

    try:
        endpoint = json_decoder(Endpoint).decode(home.endpoint.read_bytes())
        found = psutil.Process(endpoint.pid).net_connections(kind="inet")
    except (FileNotFoundError, psutil.NoSuchProcess):
        return  # not running, or still starting: another check reports that
    except (OSError, msgspec.MsgspecError, psutil.Error) as error:
        yield Check("bound to", "warn", f"it cannot be told: {error}", f"tail {home.messages}")
        return
    bound = sorted({(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN})
    open_to_all = any(not ipaddress.ip_address(host).is_loopback for host, _ in bound)
    text = ", ".join(f"{host}:{port}" for host, port in bound) or "its socket only"
    if open_to_all and endpoint.address:
        yield Check("bound to", "ok", f"{text}: other machines by TLS, with a token, at {endpoint.address}")
    elif open_to_all:
        yield Check("bound to", "warn", f"{text}: other machines can reach it", "poise down; poise up")
    else:
        yield Check("bound to", "ok", f"{text}: this machine only, with the token")


def _clusters(home: Home) -> Iterator[Check]:
    """Check the clusters whose machines are nodes."""
    for cluster in kept_clusters(home):
        if not cluster.is_here:
            yield from _cluster(home, cluster)


def _cluster(home: Home, cluster: Cluster) -> Iterator[Check]:
    name, address = cluster.title, cluster.address or "without an address"
    try:
        fault = answer_of(home, cluster)
    except FileNotFoundError:
        yield Check(name, "warn", f"{address}: nothing is known of it yet", f"tail {home.messages}")
        return
    if fault is not None:
        yield Check(name, "fail", f"{fault}, {fault.record.have}", fault.record.hint)
    elif not is_held(lock_of(home, cluster)):
        yield Check(name, "warn", f"{address}: nobody speaks with it now", f"tail {home.messages}")
    else:
        yield Check(name, "ok", f"{address}: its machines are nodes")
    requests = requests_of(home, cluster)
    for request in requests[:MOST_REQUESTS]:
        hint = f"poise doctor --on {cluster.on}" if request.refused else ""
        yield Check(f"request to {name}", "warn" if hint else "ok", request.sentence(time.time()), hint)
    if len(requests) > MOST_REQUESTS:
        yield Check(f"requests to {name}", "ok", f"{len(requests) - MOST_REQUESTS} more")


def _left(home: Home) -> Iterator[Check]:
    agents = [lock.parent.name for lock in (home.node / "lock", *sorted(home.nodes.glob("*/lock"))) if is_held(lock)]
    if agents:
        yield Check(
            "agents", "warn", f"{', '.join(agents)}: running without a control plane", "poise up, or poise down --leave"
        )
    if home.endpoint.exists():  # an orderly exit removes the file; the socket may stay
        yield Check(
            "left over", "ok", f"{home.endpoint.name} of a control plane that was killed; the next one replaces it"
        )
    if has_log(home):
        from poise.cli import offline

        try:
            ledger = offline.load(home)
        except PoiseError as error:
            yield Check("log", "fail", str(error), error.record.hint)
        else:
            yield Check("log", "ok", f"revision {ledger.revision}, readable")


def _said(home: Home) -> Iterator[Check]:
    """Check Poise's log messages for errors."""
    try:
        with home.messages.open("rb") as file:
            file.seek(max(0, home.messages.stat().st_size - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return
    errors = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
    if errors:
        yield Check("messages", "warn", f"{len(errors)} errors of late: {errors[-1][:120]}", f"tail {home.messages}")
