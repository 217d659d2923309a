"""`poise serve`."""

import ipaddress
import os
import re
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from poise.cli.asking import merged, needed, needing
from poise.cli.numbers import Number, Whole, WholeRange
from poise.cli.render import print_json, say, tell
from poise.cli.secrets import absolute, with_values
from poise.cli.submit import fill_in
from poise.client import current_home
from poise.config import Home
from poise.control.kept import read_flags
from poise.control.start import kept_environment, lasting, user_name
from poise.drivers.security import ensure_home
from poise.drivers.yamlfile import is_kind, load_kind, place_in_file
from poise.errors import InputError, SpecError, extra, located
from poise.model.keys import compile_keys
from poise.model.servicefile import DeclaredService, compile_service
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.policy.replicas import SCALERS
from poise_serve.policy.route import ROUTERS

if TYPE_CHECKING:
    from poise_serve.serve import Entrance
    from poise_serve.tracing import Tracing

DEFAULT_PORT = 8080

IN_FOLDER = "config.yaml"
"""Service file of a model that has a folder of its own, with `model.py`."""


@click.command()
@needing
@click.option("--name", metavar="NAME", help="Name of the service. [default: the name of the file with the class]")
@click.option("--replicas", metavar="N|A..B", help="Number of replicas, or a range that follows the load. [default: 1]")
@click.option("--objective", metavar="TIME", help="Latency that one answer in a hundred may exceed, e.g. 200ms.")
@click.option("--batch", type=Whole(), metavar="N", help="Maximum number of requests in one batch. [default: 64]")
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
    help="Number of gateways at this address, before upstreams only: one core is no limit.",
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
    paths = [one for named in target for one in _files(named)]
    documents = [_document(one, flags) for one in paths]
    given = [_at(one, document) for one, document in zip(paths, documents, strict=True)]
    services = [one for one in given if isinstance(one, DeclaredService)]
    fronts = [one for one in given if isinstance(one, Front)]
    names = [one.name for one in services]
    versions = names + [one.canary.name for one in services if one.canary is not None]
    if len(set(versions)) < len(versions):
        raise InputError(
            "two services have the same name", field="--name", have=", ".join(versions), hint="name: another"
        )
    if len(fronts) > 1:
        raise InputError("one file of upstreams at a time", have=str(len(fronts)), hint="list all in one `upstreams:`")
    if find_spec("aiohttp") is None:
        raise InputError("serving needs aiohttp, which is not installed", hint=extra("serve"))
    if gateways > 1 and names:
        raise InputError(
            "only upstreams can have several gateways",
            field="--gateways",
            have=", ".join(names),
            hint="serve them with one gateway of their own, and list it as an upstream",
        )
    import uvloop

    from poise_serve.beyond import beyond_of
    from poise_serve.group import GROUP, member_of, run_all
    from poise_serve.parent import Watched, hold_signals, inherited, registered, stand_by
    from poise_serve.peers import Peers
    from poise_serve.serve import bind, serve

    home = current_home()
    hold_signals()
    taken_over, group = inherited(), member_of()
    if gateways > 1 and group is None:
        with bind(host, port, shared=True, listen=False) as listening:
            ensure_home(home)
            entrance = _entrance(home, listening.getsockname()[0], host, keys, insecure, cors, host_name)
            _tell_addresses(listening, services, fronts, entrance, as_json)
            home.services.mkdir(parents=True, exist_ok=True, mode=0o700)
            return run_all(home.services, gateways, listening.getsockname()[1], tell)
    port = group.port if group is not None else port
    with taken_over.listening if taken_over else bind(host, port, shared=group is not None) as listening:
        ensure_home(home)
        entrance = _entrance(home, listening.getsockname()[0], host, keys, insecure, cors, host_name)
        if taken_over is None and group is None:
            _tell_addresses(listening, services, fronts, entrance, as_json)
        kept = kept_environment()
        base = {"folder": str(Path.cwd()), "env": kept}
        home.services.mkdir(parents=True, exist_ok=True, mode=0o700)
        connect = lasting(home, "--until-idle")
        mark = taken_over.mark if taken_over else secrets.token_hex(4)
        beyond = beyond_of(home)
        environment, user = kept | {"POISE_HOME": str(home.root)}, user_name()
        environment |= {GROUP: group.text} if group is not None else {}
        name, number = (group.name, group.number) if group is not None else ("", 0)
        peers = Peers(home.services, name, number, tell)
        with registered(home.services, mark, listening, environment, taken_over) as lock:
            watched = stand_by(tell)
            if not isinstance(watched, Watched):
                return watched
            uvloop.run(
                serve(
                    documents,
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
                )
            )
    return 0


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
) -> None:
    """Print the addresses of the services and the upstreams."""
    from poise_serve.serve import url_of

    url = url_of(listening, entrance.tls is not None)
    names = [one.name for one in services]
    if as_json:
        print_json({"url": url, "services": names, "upstreams": bool(fronts)})
    if names:
        say(f"poise: {', '.join(names)} at {url}/predict{'/NAME' if len(names) > 1 else ''}")
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
    known, tls = (socket.gethostname(), *names), None
    if not is_here:
        from poise.drivers.authority import names_here, server_context  # slow to import, and seldom needed

        known = (*names_here(address), *names)
        tls = server_context(home, known, "serve") if not insecure else None
    return Entrance(known, cors, file, home if asks_home else None, tls)


def _files(target: str) -> list[str]:
    """Return the service files of a folder: its own, or one for each folder in it. Another target is returned as it is.
    Raises `InputError` if there is none.
    """
    folder = Path(target)
    if not folder.is_dir():
        return [target]
    own = folder / IN_FOLDER
    found = [own] if own.is_file() else sorted(folder.glob(f"*/{IN_FOLDER}"))
    if not found:
        need = f"{IN_FOLDER}, or folders with one"
        raise InputError("there is no model in this folder", field=target, need=need, hint=f"ls {folder}")
    return [str(one) for one in found]


def _document(target: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a file, or one for a class, with the flags applied."""
    own = {name: flags[name] for name in ("name", "replicas", "batch", "timeout", "python") if flags[name] is not None}
    if flags["objective"] is not None:
        own["objective"] = {"latency_p99": flags["objective"]}
    own |= absolute(needed(flags, dict(os.environ)), Path.cwd())
    if is_file(target):
        return document_of(Path(target), own)
    place, _, _ = target.partition(":")
    name = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return {"kind": "service", "name": name, "model": target} | own


def is_file(target: str) -> bool:
    """Whether a target is a file rather than a class."""
    return target.endswith((".yaml", ".yml", ".json"))


def document_of(path: Path, own: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a file, with the fields of `own` in place of its own. Its paths are absolute, and its
    variables have their values. Raises `SpecError`.
    """
    with located(place_in_file(path)):
        if is_kind(path, "upstreams"):
            document = load_kind(path, "upstreams")
            compile_upstreams(document)
            return dict(document)
        document = load_kind(path, "service")
        if document is None and path.name == IN_FOLDER:
            document = {}
        if not isinstance(document, dict):
            compile_service(document)  # raises what is wrong with it
        made = merged(_defaults(path) | document, own)
        fill_in(made.get("env"), dict(os.environ))
        _locate(made, path.resolve().parent)
        return made


def _at(target: str, document: dict[str, Any]) -> DeclaredService | Front:
    """Compile the document of a target. Errors have their places in its file."""
    if not is_file(target):
        return declared_of(document)
    with located(place_in_file(Path(target))):
        return declared_of(document)


def declared_of(document: dict[str, Any]) -> DeclaredService | Front:
    """Compile a document, with the values of secrets from this process's environment. Raises `SpecError`."""
    made = compiled(document)
    return _with_values(made) if isinstance(made, DeclaredService) else made


def compiled(document: dict[str, Any]) -> DeclaredService | Front:
    """Compile a document, without the values of secrets. Raises `SpecError`."""
    return _front(document) if document.get("kind") == "upstreams" else _checked(compile_service(document))


def _defaults(path: Path) -> dict[str, Any]:
    """Return what a service file says by its place: a model's folder has its name."""
    if path.name != IN_FOLDER:
        return {}
    return {"kind": "service", "name": path.resolve().parent.name, "model": "model.py:Model"}


def _with_values(service: DeclaredService) -> DeclaredService:
    """Return the service with the values of its replicas' secrets, which its canary shares."""
    job, canary = with_values(service.job, os.environ), service.canary
    if canary is not None and "secrets" in job:
        canary = msgspec.structs.replace(canary, job=canary.job | {"secrets": job["secrets"]})
    return msgspec.structs.replace(service, job=job, canary=canary)


def _locate(document: dict[str, Any], folder: Path) -> None:
    """Make the relative paths of a file absolute, and fill in its canary's environment."""
    document |= absolute(document, folder)
    document["folder"] = str((folder / str(document.get("folder") or ".")).resolve())
    for block, field in (("canary", "folder"), ("canary", "replay"), ("record", "file")):
        told = document.get(block)
        if isinstance(told, dict) and isinstance(told.get(field), str) and told[field]:
            told[field] = str((folder / told[field]).resolve())
    if isinstance(document.get("canary"), dict):
        fill_in(document["canary"].get("env"), dict(os.environ))


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
