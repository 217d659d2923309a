"""`poise up` and `poise down`."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise.cli.moments import asks_now, at_moment
from poise.cli.nodes import declared_fleet, read_fleet
from poise.cli.numbers import Whole
from poise.cli.output import TEXT, forms
from poise.cli.policy import set_policy
from poise.cli.render import print_json, say
from poise.client import Client, current_home, failure_of
from poise.config import DEFAULT_POLICY, LISTEN_PORT, Cluster, Endpoint, Home, parse_place
from poise.control.kept import KEPT, LATE, kept_policy, options_of, read_flags, typed, write_flags
from poise.control.start import START_SECONDS, SUPERVISOR, await_end, ensure_up, running_here, supervised
from poise.decoding import json_decoder
from poise.drivers.clusters import (
    answer_of,
    forget_answer,
    hint_of_name,
    keep_clusters,
    kept_clusters,
    lock_of,
    parse_cluster,
    take_left,
)
from poise.drivers.dashboards import found
from poise.drivers.gateways import running_gateways
from poise.drivers.lock import holder, is_ending, is_held
from poise.drivers.security import ensure_home
from poise.drivers.sockets import check_shareable
from poise.drivers.whole import write_whole
from poise.errors import Conflict, Fault, InputError, PoiseError, StoreAway, Unreachable, located
from poise.model.reports.status import PhaseTimes, StatusReport
from poise.model.times import Times
from poise.units import MILLISECOND

if TYPE_CHECKING:
    from poise.model.fleetfile import DeclaredFleet

STOP_SECONDS = 15.0
CLUSTER_STOP_SECONDS = 75.0

LED_SECONDS = 2.0
"""Time limit for a standby to take over after the leader has exited in order."""


def own_home() -> Home:
    """Return the user's own home. Raises `Conflict` if the environment selects another control plane."""
    home = current_home()
    if home.elsewhere is not None:
        raise Conflict(
            "cannot start or stop the control plane of another user",
            field=home.elsewhere_by,
            have=str(home.elsewhere),
            hint=f"`unset {home.elsewhere_by}` for one of your own",
        )
    return home


RESTART = "`poise down --leave`, then `poise up`"


@click.command()
@click.option(
    "--policy",
    metavar="NAME|FILE",
    help="Scheduling policy: one that ships with Poise, one of an installed package, or a file. [default: poise]",
)
@click.option(
    "--decide-within",
    metavar="DURATION",
    help="Time limit per round for a policy that does not ship with Poise. [default: 1s]",
)
@click.option(
    "--outage-hold",
    metavar="DURATION",
    help="While most nodes are silent, keep their work in place for at most this long. 0: declare them lost at once. "
    "[default: 1m]",
)
@click.option(
    "--outage-settle",
    metavar="DURATION",
    help="Time for the remaining nodes to come back after an outage. [default: 10s with --listen, else 3s]",
)
@click.option(
    "--port", type=Whole(), default=None, metavar="N", help="Loopback port of the API. [default: 7717, or a free one]"
)
@click.option(
    "--fleet",
    "fleet_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start the nodes that FILE declares instead of this machine; kept for this home.",
)
@click.option(
    "--share",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Also listen on a socket here, for other users of this machine with their own tokens.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Also listen here for other machines, over TLS: for commands with a token, and for nodes. [e.g. 0.0.0.0:7718]",
)
@click.option(
    "--on",
    "on",
    multiple=True,
    metavar="[NAME=]SUBSTRATE[:ADDRESS]",
    help="Use the machines of a cluster as nodes instead of this machine. SUBSTRATE is `ray`, `slurm`, `kubernetes` or "
    "one of an installed package; without an address, `ray` starts one on this machine only. Repeatable: work goes "
    "where it is expected to end first. NAME tells clusters of one substrate apart. `local` is this machine. Kept for "
    "this home.",
)
@click.option("--no-fleet", is_flag=True, help="Start this machine again instead of declared nodes or a cluster.")
@click.option(
    "--store",
    metavar="URL|home",
    help="Keep the log in PostgreSQL (postgresql://…) or etcd (etcd://HOST:PORT,…/PREFIX), which other control planes "
    "share: one leads, the others stand by. Kept for this home; `home` goes back to its own log.",
)
@click.option(
    "--ssh",
    "machines",
    multiple=True,
    metavar="USER@HOST",
    help="Add a machine as a node: install the same version of Poise there by ssh, and start its agent. Repeatable; "
    "needs --listen.",
)
@click.option(
    "--dashboard",
    is_flag=True,
    help="Also keep the dashboard running, in a process of its own; the address of the control plane redirects to it. "
    "`poise dashboard` prints a link.",
)
@click.option(
    "--traces",
    metavar="URL|env|none",
    help="Send a trace of each job to an OpenTelemetry collector by OTLP over HTTP; `env` reads "
    "OTEL_EXPORTER_OTLP_ENDPOINT. [e.g. 127.0.0.1:4318]",
)
@click.option("--no-agent", is_flag=True, help="Run no work on this machine: it only schedules, or stands by.")
@click.option(
    "--reset",
    is_flag=True,
    help="Forget the flags kept from earlier starts, except --fleet, --on and --store, and the policy that was set.",
)
@click.option("--foreground", is_flag=True, help="Stay in this terminal, for a service manager.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def up(
    policy: str | None,
    decide_within: str | None,
    outage_hold: str | None,
    outage_settle: str | None,
    port: int | None,
    fleet_file: Path | None,
    share: Path | None,
    listen: str | None,
    on: tuple[str, ...],
    no_fleet: bool,
    store: str | None,
    machines: tuple[str, ...],
    dashboard: bool,
    traces: str | None,
    no_agent: bool,
    reset: bool,
    foreground: bool,
    as_json: bool,
) -> int:
    """Start the control plane and the agent of this machine, or of a declared fleet's nodes, and keep them alive.

    All flags are kept for this home: a later `poise up` uses them too, unless you give others, --no-fleet or --reset.
    While Poise is up, `--policy` changes its policy at once, and another fleet is refused with exit code 1: run
    `poise down --leave` first. Running work continues.
    """
    if sum(map(bool, (fleet_file, on, no_fleet))) > 1:
        raise click.UsageError("`--fleet`, `--on` and `--no-fleet` exclude each other")
    if foreground and machines:
        raise click.UsageError("`--ssh` and `--foreground` exclude each other")
    home = own_home()
    await_end(home)
    if home.devices.exists():
        from poise.drivers.devices import declared_devices  # slow to import

        declared_devices(home)  # the agent would ignore a bad file; report its errors here
    before = {} if reset else read_flags(home)
    flags = before | _given_flags(policy, share)
    if traces is not None:
        _settle_traces(flags, traces)
    if policy is not None or reset:  # the log records the policy that was set last
        flags["policy_asked"] = str(time.time())
    already = running_here(home) or supervised(home)
    label = "" if already and policy is None else _settle_policy(home, policy or kept_policy(home, before))
    clusters = _settle_clusters(home, on, listen, gone=no_fleet or fleet_file is not None)
    fleet = _settle_fleet(home, fleet_file, no_fleet or bool(on))
    _settle_store(home, store)
    if clusters:  # it is stored with the clusters
        flags["listen"] = clusters[0].listen
    if "share" in flags:
        check_shareable(Path(flags["share"]))
    if "listen" in flags:
        parse_place(flags["listen"], "--listen")
    options = options_of(home, flags)
    if clusters:
        del flags["listen"]
    if foreground and already:
        raise Conflict("Poise is up already", code="E204", field=str(home.root), hint="`poise down`")
    if not already and (kept := [name for name in KEPT if name in flags and not _was_given(name)]):
        say(f"poise: kept from the last start: {typed(flags, *kept)}; `poise up --reset` forgets them")
    if foreground:
        write_flags(home, flags)
        os.execv(sys.executable, [sys.executable, "-S", str(SUPERVISOR), str(home.root), *options])  # noqa: S606 — our own program
    if already and policy is not None and Client(home).status().policy != label:
        set_policy(policy)
    for cluster in () if already else clusters:
        forget_answer(home, cluster)
    late = [name for name in KEPT if name in flags and _counts_later(home, name)] if already else []
    forgotten = read_flags(home) if reset and already and home.stay.exists() else {}
    client = ensure_up(home, *options)
    write_flags(home, flags)
    client.stay()
    no_agent = "no_agent" in flags
    if fleet and not no_agent:
        _wait_for_nodes(client, fleet)
    status = _when_led(client)
    if "dashboard" in flags and not already:
        _wait_for_dashboard(home)
    if not no_agent:
        _wait_for_clusters(home, clusters, 0.0 if already else START_SECONDS)
    if late:
        counts = "counts" if len(late) == 1 else "count"
        say(f"poise: it is up already; {typed(flags, *late)} {counts} from the next start: {RESTART}")
    if gone := [name for name in KEPT if name in forgotten and name not in flags]:
        still = typed(forgotten, *gone)
        say(f"poise: it is up already, with {still}; `--reset` counts from the next start: {RESTART}")
    if machines:
        _add_machines(client, home, machines)
    if as_json:
        print_json(status)
    else:
        nodes = f", fleet {fleet.name} of {len(fleet.nodes)} declared nodes" if fleet else ""
        nodes = f", on {' and '.join(map(_place, clusters))}" if clusters else nodes
        stands_by = f", stands by for {status.leader}" if status.leader else ""
        say(f"poise is {'up already' if already else 'up'}: {home.root}, policy {status.policy}{nodes}{stands_by}")
        if address := address_of(home):
            say(f"other machines: export POISE_ADDRESS={address}, and a token in POISE_TOKEN_FILE (`poise token add`)")
        if os.geteuid() != 0 and not no_agent and ("share" in flags or "listen" in flags):
            say("poise: commands of all users run as you here: only an agent that runs as root changes users")
    return 0


def _add_machines(client: Client, home: Home, machines: Sequence[str]) -> None:
    from poise.cli.join import add_machines

    address = address_of(home)
    if not address:
        hint = "`poise down --leave`, then `poise up --listen 0.0.0.0:7718 --ssh …`"
        raise InputError(
            "the control plane does not listen for other machines", field="--ssh", need="--listen", hint=hint
        )
    add_machines(client, address, machines)


def _given_flags(policy: str | None, share: Path | None) -> dict[str, str]:
    """Return the typed flags to keep, as text."""
    parameters = click.get_current_context().params
    given = {name: str(parameters[name]) for name in KEPT if _was_given(name)}
    if policy is not None and policy != DEFAULT_POLICY:
        from poise.drivers.plugins import is_file  # slow to import

        if is_file(policy):
            given["policy"] = str(Path(policy).absolute())
    if share is not None:
        given["share"] = str(share.absolute())
    return given


def _counts_later(home: Home, name: str) -> bool:
    """Return whether the running control plane ignores this flag; one started by `poise run` has no kept flags."""
    return name in LATE if _was_given(name) else not home.stay.exists()


def _when_led(client: Client) -> StatusReport:
    """Return the status once it leads, or another leader is known."""
    deadline = time.monotonic() + START_SECONDS
    while (status := client.status()).stands_by and not status.leader and time.monotonic() < deadline:
        time.sleep(0.05)
    return status


def address_of(home: Home) -> str:
    """Return the value of POISE_ADDRESS for other machines; empty if the control plane does not listen to them."""
    import msgspec

    try:
        return json_decoder(Endpoint).decode(home.endpoint.read_bytes()).address
    except (OSError, msgspec.MsgspecError):
        return ""


def _wait_for_nodes(client: Client, fleet: "DeclaredFleet") -> None:
    """Wait until all declared nodes have joined: before that, work that needs one of them would be refused."""
    missing = {node.name for node in fleet.nodes}
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        missing -= {node.name for node in client.nodes() if node.status != "lost"}
        if not missing:
            return
        time.sleep(0.05)
    say(f"poise: {len(missing)} of {len(fleet.nodes)} nodes have not joined yet: {', '.join(sorted(missing)[:8])}")


def _wait_for_dashboard(home: Home) -> None:
    """Wait until the dashboard reports its address. Poise is up without it, and the supervisor restarts it."""
    deadline = time.monotonic() + START_SECONDS
    while found(home) is None:
        if time.monotonic() > deadline:
            say(f"poise: the dashboard has not started yet: `tail {home.messages}`")
            return
        time.sleep(0.05)


def _place(cluster: Cluster) -> str:
    """Format a cluster: `Slurm at gpu`."""
    if cluster.is_here:
        return "this machine"
    return f"{cluster.title}{f' at {cluster.address}' if cluster.address else ''}"


def _wait_for_clusters(home: Home, clusters: Sequence[Cluster], seconds: float) -> None:
    """Wait until all clusters answer. Raises Fault with the reason if none can be used; Poise stays up and retries."""
    deadline = time.monotonic() + seconds
    waited = [cluster for cluster in clusters if not cluster.is_here]
    faults = [fault for cluster in waited if (fault := _wait_for_cluster(home, cluster, deadline)) is not None]
    if faults and len(faults) == len(clusters):
        raise faults[0]
    for fault in faults:
        say(f"poise: {fault}: {fault.record.have}; {fault.record.hint}")


def _wait_for_cluster(home: Home, cluster: Cluster, deadline: float) -> Fault | None:
    """Wait until the cluster answers. Return why it cannot be used, or None."""
    while True:
        try:
            return answer_of(home, cluster)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                say(f"poise: {cluster.title} has not answered yet: see `poise doctor`")
                return None
            time.sleep(0.05)


def _was_given(option: str) -> bool:
    """Return whether the flag was typed on the command line."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


@click.command()
@at_moment
@forms(*TEXT)
def status(at: str | None, form: str) -> int:
    """Show control-plane status: whether it is up, its policy, its fleet, and the amount of work."""
    import msgspec

    home = current_home()
    if asks_now(home, at):
        client = Client(home)
        report = client.status()
        if client.door != home.doors[0]:
            leader = report.leader if report.stands_by else str(client.door)
            report = msgspec.structs.replace(report, up=False, stands_by=False, leader=leader)
    else:
        from poise.cli import offline

        report = offline.status(home, at)
    if form == "json":
        print_json(report)
        return 0
    lost = f", {report.lost} of them lost" if report.lost else ""
    lost += f", {report.held} silent, which are not given up yet" if report.held else ""
    writes = report.accepting or report.stands_by or not report.up
    refused = "" if writes else ", which cannot be written: nothing new is accepted"
    elsewhere = f"; {report.leader} leads" if report.leader else ""
    up = f"stands by for {report.leader or 'nobody yet'}" if report.stands_by else "up" if report.up else "not up"
    up = up if at is None else "as it was"
    for name, text in (
        ("home", f"{home.elsewhere or home.root}, {up}{elsewhere if not report.up else ''}"),
        ("policy", report.policy or "-"),
        ("fleet", f"{report.fleet}, declared" if report.fleet else _undeclared(home) if at is None else ""),
        ("nodes", f"{report.nodes}{lost}"),
        ("jobs", f"{report.unfinished} unfinished; {report.active} units placed, {report.pending} pending"),
        ("log", f"revision {report.revision}, term {report.term}{refused}"),
        ("rounds", _phases(report.phases, "view", "decide", "wait", "apply")),
        ("commits", _phases(report.phases, "append", "sync")),
        ("address", address_of(home) if report.up and home.elsewhere is None else ""),
        ("traces", _traces(home) if report.up and home.elsewhere is None else ""),
    ):
        if text:
            click.echo(f"{name:<8}{text}")
    return 0


def _traces(home: Home) -> str:
    """Return the progress of the exporter of traces; empty without one."""
    from poise.drivers.spans import read_exported

    if not is_held(home.traces / "lock") or (known := read_exported(home)) is None:
        return ""
    lost = f", {known.refused + known.lost} refused or lost" if known.refused + known.lost else ""
    waits = f"; waits: {known.error}" if known.error else ""
    return f"{known.sent} spans sent{lost}, up to revision {known.revision}{waits}"


def _phases(phases: dict[str, PhaseTimes], *names: str) -> str:
    """Format the median duration of each of these phases."""
    return ", ".join(f"{name} {phases[name].p50 / MILLISECOND:.1f} ms" for name in names if name in phases)


def _undeclared(home: Home) -> str:
    clusters = kept_clusters(home) if home.elsewhere is None else ()
    here = "this machine"
    return " and ".join(here if one.is_here else f"the machines of a {one.title} cluster" for one in clusters) or here


def _settle_policy(home: Home, policy: str) -> str:
    """Return the control plane's label of the policy. A file is copied into the home; third-party code is tried here,
    to show its errors.
    """
    if policy == DEFAULT_POLICY:  # ships with Poise; importing policies is slow
        return policy
    import msgspec

    from poise.drivers.plugins import check_needs, choose, choose_document, is_file
    from poise.drivers.weights import with_weights
    from poise.drivers.yamlfile import load_kind, place_in_file

    document = load_kind(Path(policy), "policy") if is_file(policy) else None
    with located(place_in_file(Path(policy))):
        document = with_weights(document, Path(policy).parent)
        choice = choose_document(document) if is_file(policy) else choose(policy)
    check_needs(choice)
    if choice.foreign:
        from poise.control.decider import try_out

        try_out(choice, Times())
    if document is not None and not (running_here(home) or supervised(home)):
        ensure_home(home)
        write_whole(home.policy, msgspec.json.encode(document))
    return choice.label


def _settle_clusters(home: Home, on: Sequence[str], listen: str | None, *, gone: bool) -> tuple[Cluster, ...]:
    """Return the home's clusters from now on: the given ones, or the kept ones. They change only while nothing runs."""
    import msgspec

    kept = kept_clusters(home)
    wanted = () if gone else kept
    if on:
        wanted, is_local = _clusters_of(on)
        there = f"{'127.0.0.1' if is_local else '0.0.0.0'}:{LISTEN_PORT}"  # noqa: S104 — TLS, and tokens
        same = [one.on for one in kept] == [one.on for one in wanted]
        listen = listen or (kept[0].listen if same else there)
    if listen is not None:
        wanted = tuple(msgspec.structs.replace(one, listen=listen) for one in wanted)
    if wanted == kept:
        return wanted
    if running_here(home) or supervised(home):
        ons = ", ".join(one.on for one in kept)
        if wanted and ons == ", ".join(one.on for one in wanted):
            raise Conflict(
                "Poise is up, and listens for its nodes at another address",
                field="--listen",
                need=wanted[0].listen,
                have=kept[0].listen,
                hint=f"`poise down --leave`, then `poise up --listen {wanted[0].listen}`; running work keeps running",
            )
        raise Conflict(
            "Poise is up with other nodes",
            field="--on",
            have=ons or "no cluster",
            hint="`poise down --leave`, then again; work of removed nodes starts again on others",
        )
    ensure_home(home)
    keep_clusters(home, *wanted)
    return wanted


def _clusters_of(on: Sequence[str]) -> tuple[tuple[Cluster, ...], bool]:
    """Check the values of `--on`. Return their clusters by name, and whether all machines are this machine."""
    import msgspec

    from poise.drivers.substrates import driver_of, grows, is_alone  # slow to import

    clusters: list[Cluster] = []
    is_local = True
    wanted = sorted(map(parse_cluster, on), key=lambda one: one.name)
    for first, second in itertools.pairwise(wanted):
        if first.name == second.name:
            hint = f"name each cluster: {hint_of_name(second)}; `slurm:gpu,short` names several partitions of one"
            have = f"{first.on}, {second.on}"
            raise InputError(f"`{first.name}` is given twice", field="--on", have=have, hint=hint)
    for one in wanted:
        if one.is_here:
            if one.address:
                raise InputError("`local` takes no address", field="--on", have=one.on, hint="`poise up --on local`")
            clusters.append(one)
            continue
        driver = driver_of(one.driver)
        driver.check(one.address)
        if is_alone(driver, one.address) and len(on) > 1:
            hint = "`POISE_HOME=DIR poise up --on …` keeps the others in another home"
            raise InputError("no other nodes can be beside this cluster", field="--on", have=one.on, hint=hint)
        clusters.append(msgspec.structs.replace(one, grows=grows(driver, one.address)))
        is_local = is_local and driver.is_local(one.address)
    return tuple(clusters), is_local


def _settle_fleet(home: Home, file: Path | None, no_fleet: bool) -> "DeclaredFleet | None":
    """Return the home's fleet from now on: the given one, or the kept one. It changes only while nothing runs."""
    kept = declared_fleet(home)
    if file is None and not no_fleet:
        return kept
    wanted = read_fleet(file) if file else None
    if wanted == kept and (wanted is not None or not home.fleet.exists()):
        return wanted
    if running_here(home) or supervised(home):
        raise Conflict(
            "Poise is up with other nodes",
            field="--fleet" if file else "--no-fleet",
            have=f"fleet {kept.name}" if kept else "this machine",
            hint=f"`poise down --leave`, then `poise up {f'--fleet {file}' if file else '--no-fleet'}`; "
            "work of removed nodes starts again on others",
        )
    _stop(home.node / "lock", *sorted(home.nodes.glob("*/lock")))  # agents whose supervisor was killed
    if wanted is None:
        home.fleet.unlink()
        return None
    import msgspec

    from poise.model.fleetfile import check_local

    check_local(wanted)
    ensure_home(home)
    write_whole(home.fleet, msgspec.json.encode(wanted))
    return wanted


def _settle_traces(flags: dict[str, str], traces: str) -> None:
    """Keep the URL of the trace collector, or none. Raises `InputError`."""
    if traces == "none":
        del flags["traces"]
        return
    from poise.drivers.otlp import Collector, endpoint, endpoint_in

    url = endpoint_in(os.environ) if traces == "env" else endpoint(traces, "--traces")
    if not url:
        hint = "`poise up --traces 127.0.0.1:4318`"
        raise InputError("the environment names no collector", field="OTEL_EXPORTER_OTLP_ENDPOINT", hint=hint)
    Collector(url, os.environ)  # checks the other variables of the environment now
    flags["traces"] = url


def _settle_store(home: Home, store: str | None) -> None:
    """Set where the home's log is stored: as given, or unchanged. It changes only while nothing runs."""
    kept = home.store.read_text().strip() if home.store.exists() else "home"
    if store is None or store == kept:
        return
    if running_here(home) or supervised(home):
        raise Conflict(
            "it is up with another log",
            field="--store",
            have="its own" if kept == "home" else "a shared one",
            hint="`poise down --leave`, then `poise up --store …`; running work keeps running",
        )
    if store == "home":
        home.store.unlink()
        return
    import msgspec

    from poise.drivers.led import check_store

    try:
        check_store(store)  # shows the store's errors now
    except StoreAway as error:  # and do not wait for the store
        error.record = msgspec.structs.replace(error.record, hint="make sure that it runs, then `poise up` again")
        raise
    ensure_home(home)
    write_whole(home.store, f"{store}\n".encode(), mode=0o600)  # it may contain a password


@click.command()
@click.option(
    "--cancel", "cancel_jobs", is_flag=True, help="Cancel unfinished jobs first; starts Poise for that if it is down."
)
@click.option("--leave", is_flag=True, help="Let running commands continue; the next `poise up` adopts them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def down(cancel_jobs: bool, leave: bool, as_json: bool) -> int:
    """Stop the control plane and the agents. Refuses while jobs are unfinished, unless --cancel or --leave is given."""
    home = own_home()
    was_up, is_settled = _is_up(home), leave
    if was_up:
        cannot_start = failure_of(home) is not None and not home.others  # unknown state: a stop loses nothing
        is_settled = leave or cannot_start or _see_to_work(home, cancel_jobs)
        _stop_all(home)
    left = [] if is_settled else _left_unfinished(home, certain=cancel_jobs)
    jobs = f"{'one job is' if len(left) == 1 else f'{len(left)} jobs are'} unfinished ({', '.join(left[:8])})"
    if left and cancel_jobs:
        say(f"poise was not up; {jobs}: it starts to cancel {'it' if len(left) == 1 else 'them'}")
        try:
            ensure_up(home, *options_of(home, read_flags(home))).close()
            _see_to_work(home, cancel_jobs)
        finally:
            _stop_all(home)
        was_up = True
    home.stay.unlink(missing_ok=True)  # also after a crash: nothing may restart by itself
    if as_json:
        print_json({"stopped": was_up})
    else:
        say("poise is down" if was_up else "poise was not up")
    for cluster in kept_clusters(home):
        if (record := take_left(home, cluster)) is not None:
            say(f"poise: {record.message}: {record.have}; {record.hint}")
    if left and not cancel_jobs:
        say(f"poise: {jobs}, and running commands continue; `poise down --cancel` ends them")
    if gateways := running_gateways(home.services):
        which = "a gateway (`poise serve`) continues" if len(gateways) == 1 else f"{len(gateways)} gateways continue"
        say(f"poise: {which}; `kill {' '.join(map(str, gateways))}` ends {'it' if len(gateways) == 1 else 'them'}")
    return 0


def _node_locks(home: Home) -> list[Path]:
    return [home.node / "lock", *sorted(home.nodes.glob("*/lock"))]


def _cluster_locks(home: Home) -> list[Path]:
    return [lock_of(home, cluster) for cluster in kept_clusters(home) if not cluster.is_here]


def _is_up(home: Home) -> bool:
    """Return whether any process of the home runs."""
    return running_here(home) or supervised(home) or any(map(is_held, _other_locks(home)))


def _other_locks(home: Home) -> Iterator[Path]:
    """Yield the locks of the supervisor's other children, which outlive a killed supervisor."""
    yield from (*_cluster_locks(home), *_node_locks(home), home.traces / "lock", home.shadow / "lock")
    dashboard = found(home)
    if dashboard is not None and dashboard.kept:
        yield home.dashboard


def _left_unfinished(home: Home, *, certain: bool) -> list[str]:
    """Return the unfinished jobs in the log of a home that is not up. In a shared log they may be another home's, so it
    is read only if the answer must be `certain`; then an unreadable log raises PoiseError.
    """
    if home.store.exists() and not certain:
        return []
    from poise.cli import offline

    try:
        return [job.id for job in offline.load(home).jobs.values() if not job.ended]
    except PoiseError:
        if certain:
            raise
        return []


def _stop_all(home: Home) -> None:
    """Stop all processes of the home, and let none restart by itself."""
    home.stay.unlink(missing_ok=True)
    seconds = CLUSTER_STOP_SECONDS if _cluster_locks(home) else STOP_SECONDS
    _stop(home.supervisor, home.lock, *_other_locks(home), seconds=seconds)


LOOK_EVERY = 0.05
"""Seconds between two checks for the end of cancelled jobs."""

SAY_EVERY = 10.0
"""Seconds between two notes about jobs that have not ended."""


def _see_to_work(home: Home, cancel_jobs: bool) -> bool:
    """Cancel unfinished jobs, or raise `Conflict`. Return whether that is done: not if the control plane has ended
    meanwhile, because it was idle or another `poise down` stops it.
    """
    try:
        _cancel_or_refuse(home, cancel_jobs)
    except Unreachable:
        if _is_up(home) and not is_ending(home.supervisor) and not home.left.exists():
            raise
        return False
    return True


def _cancel_or_refuse(home: Home, cancel_jobs: bool) -> None:
    """Cancel unfinished jobs, or raise `Conflict`. If another control plane leads, the jobs are its own: this home is
    only responsible for running work on its own nodes.
    """
    with Client(home) as client:
        unfinished = _count_unfinished(client, home)
        leader = _leader_elsewhere(home, LED_SECONDS if cancel_jobs else 0.0) if unfinished else None
        if unfinished and leader is None:
            if not cancel_jobs:
                raise Conflict(
                    "one job is unfinished" if unfinished == 1 else f"{unfinished} jobs are unfinished",
                    have=", ".join(_unfinished(client)[:8]),
                    hint="`poise down --cancel` ends them, `poise down --leave` lets running commands continue",
                )
            _cancel_all(client)
        elif unfinished and cancel_jobs:
            raise Conflict(
                "this home stands by: the jobs are those of the control plane that leads",
                field=str(home.root),
                have=f"{leader} leads" if leader else "nobody leads yet",
                hint="`poise down` stops this one only; `poise cancel JOB`, or `poise down --cancel` where the other "
                "one runs, ends jobs",
            )
        elif unfinished and (busy := _busy(client, home)):
            raise Conflict(
                "running work on this machine would start again elsewhere",
                field=", ".join(busy[:8]),
                hint=f"`poise down --leave` lets it continue, `poise drain {busy[0]} --move` moves it first",
            )


def _leader_elsewhere(home: Home, within: float) -> str | None:
    """Return the address of another leading control plane, empty if none is known; None if this one leads, or takes
    over `within` seconds after another has exited in order.
    """
    deadline = time.monotonic() + within
    with Client(home) as client:
        while True:
            status = client.status()
            if client.door != home.doors[0]:
                return status.leader if status.stands_by else str(client.door)
            if not status.stands_by or time.monotonic() >= deadline:
                return status.leader if status.stands_by else None
            time.sleep(0.05)


def _busy(client: Client, home: Home) -> list[str]:
    """Return the nodes of this home's agents that run work."""
    own = {lock.parent.name for lock in home.nodes.glob("*/lock") if is_held(lock)}
    if is_held(home.node / "lock"):
        own.add(os.uname().nodename)
    return [node.name for node in client.nodes() if node.name in own and node.running]


def _count_unfinished(client: Client, home: Home) -> int:
    try:
        return client.status().unfinished
    except Unreachable as error:
        raise Unreachable(
            "no control plane answers, so the unfinished jobs are unknown",
            have=error.record.have,
            hint="`poise down --leave` stops its remaining processes, `poise up` restarts it",
        ) from None


def _cancel_all(client: Client) -> None:
    """Cancel unfinished jobs, including new ones, until none is left. Print a note periodically about those that have
    not ended yet.
    """
    say_at = time.monotonic() + SAY_EVERY
    while True:
        client.cancel_all_tenants()
        if not client.status().unfinished:
            return
        if time.monotonic() >= say_at:
            left = _unfinished(client)
            jobs = f"job {left[0]} has" if len(left) == 1 else f"{len(left)} jobs have"
            named = f" ({', '.join(left[:8])})" if len(left) > 1 else ""
            say(f"{jobs} not ended yet{named}; `poise down --leave` stops Poise without waiting for them")
            say_at = time.monotonic() + SAY_EVERY
        time.sleep(LOOK_EVERY)


def _unfinished(client: Client) -> list[str]:
    return [job.id for job in client.jobs() if job.exit_code is None]


def _stop(*locks: Path, seconds: float = STOP_SECONDS) -> None:
    """Stop the current holders of these locks, the supervisor first so that it restarts nothing. A later holder was
    started by another command and is left alone.
    """
    deadline = time.monotonic() + seconds
    for lock, pid in [(lock, holder(lock)) for lock in locks]:
        asked = False
        while pid and holder(lock) == pid:
            if not asked:
                try:
                    os.kill(pid, signal.SIGTERM)
                    asked = True
                except ProcessLookupError:
                    pass  # it has just exited and its lock will be released
                except PermissionError:
                    raise Conflict(f"process {pid} belongs to somebody else", field=str(lock)) from None
            if time.monotonic() > deadline:
                raise Fault(f"process {pid} does not end", field=str(lock), hint=f"kill -9 {pid}")
            time.sleep(0.02)
