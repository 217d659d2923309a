"""`poise serve`."""

import ipaddress
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from poise.cli.asking import needed, needing
from poise.cli.numbers import Number, Whole, WholeRange
from poise.cli.render import print_json, say, show_error, tell
from poise.cli.secrets import absolute, with_values
from poise.client import Client, current_home
from poise.config import Home
from poise.control.kept import read_flags
from poise.control.start import kept_environment, lasting, user_name
from poise.drivers.security import ensure_home, own_account
from poise.drivers.yamlfile import load_kind
from poise.errors import Conflict, InputError, PoiseError, SpecError, extra
from poise.model.keys import compile_keys
from poise.model.servicefile import DeclaredService, check_processes, compile_service
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.policy.replicas import SCALERS
from poise_serve.cli.documents import all_of, at_its_place, models_in, readers
from poise_serve.files import check_files
from poise_serve.policy.route import ROUTERS

if TYPE_CHECKING:
    from poise_serve.serve import Entrance
    from poise_serve.tracing import Tracing

DEFAULT_PORT = 8080

GRPC_PORT = "POISE_GATEWAY_GRPC_PORT"
"""Variable with the gRPC port of a gateway. A gateway that takes over listens there too."""


@click.command()
@needing
@click.option("--name", metavar="NAME", help="Name of the service. [default: the name of the file with the class]")
@click.option("--replicas", metavar="N|A..B", help="Number of replicas, or a range that follows the load. [default: 1]")
@click.option(
    "--objective", metavar="TIME", help="Latency that one answer in a hundred may exceed, e.g. 200ms. 0: none."
)
@click.option("--batch", type=Whole(), metavar="N", help="Maximum number of requests in one batch. [default: 64]")
@click.option(
    "--batch-wait",
    metavar="TIME",
    help="Maximum time that an idle replica waits for a fuller batch, to save CPU and device time. [default: 0]",
)
@click.option("--timeout", metavar="TIME", help="Time limit of a request. [default: 30s]")
@click.option("--python", metavar="PROGRAM", help="The interpreter of the replicas. [default: this one]")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=WholeRange(0, 65535), default=DEFAULT_PORT, show_default=True, metavar="N", help="0: a free port."
)
@click.option(
    "--keys",
    metavar="home|FILE",
    help="Accept only requests with a key: a token from `poise token add`, or a key of a file.",
)
@click.option("--insecure", is_flag=True, help="Listen for other machines without keys and TLS, e.g. behind a proxy.")
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="Accept requests from pages of this site; `*`: of all sites."
)
@click.option("--host-name", multiple=True, metavar="NAME", help="Another name by which clients reach the gateway.")
@click.option(
    "--trace-share",
    type=Number(),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Share of the requests without a `traceparent` that get a trace, if `poise up --traces` exports them.",
)
@click.option(
    "--gateways",
    type=WholeRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of gateways at this address, to use several CPU cores for TLS, compression and connections.",
)
@click.option(
    "--grpc-port",
    type=WholeRange(0, 65535),
    metavar="N",
    help="Port for KServe's protocol over gRPC. 0: a free port. [default: no gRPC]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value once it listens: the address.")
@click.argument("target", nargs=-1, required=True, metavar="app.py:Model | FILE.yaml | FOLDER...")
def serve(
    target: tuple[str, ...],
    host: str,
    port: int,
    as_json: bool,
    keys: str | None,
    insecure: bool,
    cors: tuple[str, ...],
    host_name: tuple[str, ...],
    trace_share: float,
    gateways: int,
    grpc_port: int | None,
    **flags: Any,
) -> int:
    """Serve a model over HTTP: a class with `predict(self, batch)`, or services from files. A folder is a model with
    `model.py` and `config.yaml`, or holds several such folders. A file with `upstreams:` adds servers that speak
    OpenAI's API. Replicas are ordinary jobs, on devices if they request some. Batch sizes follow measured durations;
    requests that would miss the objective get 503 at once. Send requests with POST /predict. Ctrl-C answers accepted
    requests, and exits. `poise services` shows latencies against the objective.
    """
    if not 0 <= trace_share <= 1:
        raise InputError(
            "this is not a share", field="--trace-share", need="0 to 1", have=f"{trace_share:g}", hint="0.1"
        )
    own = _own(flags)
    sources = [one for found in all_of(readers(target, own)) for one in found]
    given = all_of([partial(at_its_place, one, declared_of) for one in sources])
    services = [one for one in given if isinstance(one, DeclaredService)]
    fronts = [one for one in given if isinstance(one, Front)]
    names = [one.name for one in services]
    versions = names + [one.canary.name for one in services if one.canary is not None]
    if len(set(versions)) < len(versions):
        raise InputError(
            "two services have the same name", field="--name", have=", ".join(versions), hint="name: another"
        )
    check_processes(services)
    for service in services:
        check_files(service, str(Path.cwd()))
    if len(fronts) > 1:
        raise InputError("one file of upstreams at a time", have=str(len(fronts)), hint="list all in one `upstreams:`")
    if find_spec("aiohttp") is None:
        raise InputError("serving needs aiohttp, which is not installed", hint=extra("serve"))
    if grpc_port is not None and find_spec("grpc") is None:
        raise InputError("gRPC needs grpcio, which is not installed", field="--grpc-port", hint=extra("grpc"))
    if gateways > 1 and grpc_port is not None and not names:
        what = "gRPC is for own models, and several gateways of upstreams cannot share its port"
        raise InputError(what, field="--grpc-port", hint="leave out --gateways, or --grpc-port")
    from poise_serve.parent import Watched, hold_signals, inherited, registered, stand_by

    hold_signals()  # before an import starts threads, which would otherwise receive them
    import uvloop

    from poise_serve.beyond import beyond_of
    from poise_serve.group import CORE, GROUP, member_of, run_all
    from poise_serve.peers import Peers
    from poise_serve.serve import bind, serve

    home = current_home()
    taken_over, group = inherited(), member_of()
    if gateways > 1 and group is None:
        with bind(host, port, shared=True, listen=False) as listening:
            ensure_home(home)
            entrance = _entrance(home, listening.getsockname()[0], host, keys, insecure, cors, host_name)
            if grpc_port is not None:
                grpc_port = _grpc_port(listening.getsockname()[0], grpc_port)
            _tell_addresses(listening, services, fronts, entrance, as_json, grpc_port or 0)
            home.services.mkdir(parents=True, exist_ok=True, mode=0o700)
            return run_all(home.services, gateways, listening.getsockname()[1], tell, core=bool(names))
    port = group.port if group is not None else port
    core = group.core_in(home.services) if group is not None and group.has_core else None
    is_core = core is not None and group is not None and group.number == CORE
    relays = core is not None and not is_core
    held = partial(bind, host, port, shared=group is not None, listen=not is_core)
    with taken_over.listening if taken_over else held() as listening:
        ensure_home(home)
        entrance = _entrance(home, listening.getsockname()[0], host, keys, insecure, cors, host_name)
        if grpc_port is not None and not relays:
            grpc_port = _grpc_port(listening.getsockname()[0], grpc_port)
        if taken_over is None and group is None:
            _tell_addresses(listening, services, fronts, entrance, as_json, grpc_port or 0)
        kept = kept_environment()
        base = {"folder": str(Path.cwd()), "env": kept}
        home.services.mkdir(parents=True, exist_ok=True, mode=0o700)
        connect = lasting(home, "--until-idle")
        mark = taken_over.mark if taken_over else secrets.token_hex(4)
        beyond = beyond_of(home)
        environment, user = kept | {"POISE_HOME": str(home.root)}, user_name()
        environment |= {GROUP: group.text} if group is not None else {}
        environment |= {GRPC_PORT: str(grpc_port)} if grpc_port else {}
        name, number = (group.name, group.number) if group is not None and not is_core else ("", 0)
        peers = Peers(home.services, name, number, tell)
        record = home.services / f"{mark}.gateway"
        with (
            _errors_as_text(as_json),
            registered(home.services, mark, listening, environment, taken_over, relays=relays) as lock,
        ):
            watched = stand_by(tell, record)
            if not isinstance(watched, Watched):
                return watched
            if relays and core is not None:
                from poise_serve.relay import relay

                uvloop.run(relay(listening, core, record, watched, lock, tell, entrance.tls))
                return 0
            if services and taken_over is None:
                _check_account(connect)  # may start a control plane, which a watcher would not reap
            uvloop.run(
                serve(
                    [one.document for one in sources],
                    declared_of,
                    connect,
                    home.services,
                    mark,
                    listening,
                    watched,
                    lock,
                    taken_over is not None,
                    base,
                    user,
                    tell,
                    beyond,
                    entrance,
                    _tracing(home, trace_share),
                    peers,
                    grpc_port or 0,
                    partial(models_in, target, own),
                    core if is_core else None,
                )
            )
    return 0


@contextmanager
def _errors_as_text(as_json: bool) -> Iterator[None]:
    """Print errors as text: with `--json`, the one value has been printed when the gateway listens."""
    try:
        yield
    except PoiseError as error:
        if not as_json:
            raise
        show_error(error, as_json=False)
        raise click.exceptions.Exit(error.exit_code) from None


def _check_account(connect: Callable[[], Client]) -> None:
    """Raise `Conflict` if the replicas would run as another user than this gateway, because they could not reach its
    socket.
    """
    with connect() as client:
        account = client.whoami().account
    if account and account != own_account():
        raise Conflict(
            "the replicas would run as another user than the gateway, and could not reach its socket",
            need=f"a gateway that runs as {account}, the account of the token",
            have=own_account(),
            hint=f"run `poise serve` as {account}",
        )


def _grpc_port(host: str, asked: int) -> int:
    """Return the port for gRPC. A gateway that takes over gets that of the one before. Raises `Conflict`."""
    from poise_serve.serve import bind

    if told := os.environ.get(GRPC_PORT):
        return int(told)
    with bind(host, asked, listen=False, flag="--grpc-port") as held:
        number = int(held.getsockname()[1])
    os.environ[GRPC_PORT] = str(number)
    return number


def _tracing(home: Home, share: float) -> "Tracing | None":
    """Return the tracer of requests, or None without an exporter."""
    if "traces" not in read_flags(home):
        return None
    from poise.drivers.spans import Telling
    from poise_serve.tracing import Tracing

    return Tracing(share, Telling(home).tell)


def _tell_addresses(
    listening: socket.socket,
    services: list[DeclaredService],
    fronts: list[Front],
    entrance: "Entrance",
    as_json: bool,
    grpc_port: int,
) -> None:
    """Print the addresses of the services and the upstreams."""
    from poise_serve.serve import address_of, url_of

    url = url_of(listening, entrance.tls is not None)
    names = [one.name for one in services]
    grpc = address_of(listening.getsockname()[0], grpc_port) if grpc_port else None
    if as_json:
        print_json({"url": url, "services": names, "upstreams": bool(fronts), "grpc": grpc})
        sys.stdout.flush()  # or a pipe gets it at the end, from each process that is forked until then
    if names:
        say(f"poise: {', '.join(names)} at {url}/predict{'/NAME' if len(names) > 1 else ''}")
    if grpc:
        say(f"poise: {', '.join(names) or 'own models'} over gRPC at {grpc}")
    if embedding := [one.name for one in services if one.openai]:
        say(f"poise: {', '.join(embedding)} at {url}/v1/embeddings")
    for front in fronts:
        counts = {"upstreams": len(front.upstreams), "sources of upstreams": len(front.discover)}
        known = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        say(f"poise: {known} at {url}/v1")


def _entrance(
    home: Home, address: str, host: str, keys: str | None, insecure: bool, cors: tuple[str, ...], names: tuple[str, ...]
) -> "Entrance":
    """Return the access rules. Raises `InputError` if anyone in the network could use the gateway."""
    from poise_serve.serve import Entrance

    for origin in cors:
        if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise InputError(
                "this is not an origin", field="--cors", have=origin[:80], hint="--cors https://app.example"
            )
    is_here = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if not is_here and not insecure and keys is None:
        raise InputError(
            "any client in the network could use these models",
            field="--host",
            need="--keys, so that a request needs a key",
            have=host,
            hint="--keys home (tokens of `poise token add`), or --insecure",
        )
    file = Path(keys) if keys not in (None, "home") else None
    declared = compile_keys(load_kind(file, "keys")) if file is not None else ()
    asks_home = keys == "home" or any(key.token for key in declared)
    known, tls, certificate = (socket.gethostname(), *names), None, b""
    if not is_here:
        from poise.drivers.authority import names_here, server_context  # slow to import, and seldom needed

        known = (*names_here(address), *names)
        if not insecure:
            tls, certificate = server_context(home, known, "serve"), (home.authority / "serve.pem").read_bytes()
    return Entrance(known, cors, file, home if asks_home else None, tls, certificate)


def _own(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a service that the flags set."""
    named = ("name", "replicas", "batch", "batch_wait", "timeout", "python")
    own = {name: flags[name] for name in named if flags[name] is not None}
    if flags["objective"] is not None:
        own["objective"] = {"latency_p99": flags["objective"]}
    return own | absolute(needed(flags, dict(os.environ)), Path.cwd())


def declared_of(document: dict[str, Any]) -> DeclaredService | Front:
    """Compile a document, with the values of secrets from this process's environment. Raises `SpecError`."""
    made = compiled(document)
    return _with_values(made) if isinstance(made, DeclaredService) else made


def compiled(document: dict[str, Any]) -> DeclaredService | Front:
    """Compile a document, without the values of secrets. Raises `SpecError`."""
    return _front(document) if document.get("kind") == "upstreams" else _checked(compile_service(document))


def _with_values(service: DeclaredService) -> DeclaredService:
    """Return the service with the values of its replicas' secrets, which its canary shares."""
    job, canary = with_values(service.job, os.environ), service.canary
    if canary is not None and "secrets" in job:
        canary = msgspec.structs.replace(canary, job=canary.job | {"secrets": job["secrets"]})
    return msgspec.structs.replace(service, job=job, canary=canary)


def _checked(service: DeclaredService) -> DeclaredService:
    if service.scaler and service.scaler not in SCALERS:
        need = f"one of {', '.join(SCALERS)}"
        raise SpecError("there is no such scaler", code="E105", field="scaling.policy", need=need, have=service.scaler)
    return service


def _front(document: Any) -> Front:
    front = compile_upstreams(document)
    if front.router and front.router not in ROUTERS:
        need = f"one of {', '.join(ROUTERS)}"
        raise SpecError("there is no such router", code="E105", field="router", need=need, have=front.router)
    return front
