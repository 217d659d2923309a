"""The clusters whose machines are the nodes of a home. Each cluster has a folder with its name in the home:

    cluster.json   the cluster; if this file exists, the cluster's machines are nodes
    answer.json    why it cannot be used, or `null` if it can; written by `poise.agent.on_substrate`
    requests.json  the machines that work waits for; written by that process
    lock           held by that process

Other files there belong to that process and to the driver.
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from poise.config import LOCAL, Cluster, Home
from poise.decoding import json_decoder
from poise.drivers.lock import is_held
from poise.drivers.whole import write_whole
from poise.errors import ErrorRecord, Fault, InputError
from poise.model.reports.status import Request

NAMES = re.compile(r"[a-z][a-z0-9]{0,19}")
"""Names of clusters. They are also the names of a folder and a token, and the beginning of the names of nodes."""


def parse_cluster(on: str) -> Cluster:
    """Return the cluster that a value of `--on` describes: `SUBSTRATE`, `SUBSTRATE:ADDRESS` or
    `NAME=SUBSTRATE:ADDRESS`. Raises `InputError` if the name is not allowed.
    """
    head, _, address = on.partition(":")
    name, named, substrate = head.partition("=")
    if named and (not NAMES.fullmatch(name) or name == LOCAL or hasattr(Home, name)):
        need = "a lowercase letter, then up to 19 lowercase letters and digits; not `local` or a file of a home"
        hint = hint_of_name(Cluster(name=substrate, address=address, listen=""))
        raise InputError(f"`{name}` cannot be the name of a cluster", field="--on", need=need, have=on, hint=hint)
    return Cluster(name=name, substrate=substrate, address=address, listen="")


def hint_of_name(cluster: Cluster) -> str:
    """Return the option `--on` that gives a cluster another name, for hints."""
    return f"`--on {msgspec.structs.replace(cluster, name='NAME', substrate=cluster.driver).on}`"


def kept_clusters(home: Home) -> tuple[Cluster, ...]:
    """Return the clusters of this home, by name."""
    return tuple(
        msgspec.structs.replace(json_decoder(Cluster).decode(file.read_bytes()), name=file.parent.name)
        for file in sorted(home.root.glob("*/cluster.json"))
    )


def keep_clusters(home: Home, *clusters: Cluster) -> None:
    """Set the clusters of a home; without any, its node is this machine."""
    kept = {home.substrate(cluster.name) / "cluster.json": cluster for cluster in clusters}
    for file in home.root.glob("*/cluster.json"):
        if file not in kept:
            file.unlink()
    for file, cluster in kept.items():
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(file, msgspec.json.encode(cluster))


def lock_of(home: Home, cluster: Cluster) -> Path:
    """Return the lock that the keeper of a cluster's agents holds."""
    return home.substrate(cluster.name) / "lock"


def write_answer(home: Home, cluster: Cluster, record: ErrorRecord | None) -> None:
    write_whole(_answer(home, cluster), msgspec.json.encode(record))


def forget_answer(home: Home, cluster: Cluster) -> None:
    _answer(home, cluster).unlink(missing_ok=True)


def answer_of(home: Home, cluster: Cluster) -> Fault | None:
    """Return why a cluster cannot be used, or None if it can. Raises FileNotFoundError until that is known."""
    record = json_decoder(ErrorRecord | None).decode(_answer(home, cluster).read_bytes())
    if record is None:
        return None
    fault = Fault(record.message)
    fault.record = record
    return fault


def write_left(home: Home, cluster: Cluster, record: ErrorRecord) -> None:
    """Record why a keeper could not end the agents of its cluster when it ended itself."""
    write_whole(home.substrate(cluster.name) / "left.json", msgspec.json.encode(record))


def take_left(home: Home, cluster: Cluster) -> ErrorRecord | None:
    """Return what the last keeper has recorded, once."""
    file = home.substrate(cluster.name) / "left.json"
    try:
        record = json_decoder(ErrorRecord).decode(file.read_bytes())
    except FileNotFoundError:
        return None
    file.unlink()
    return record


def write_requests(home: Home, cluster: Cluster, requests: Sequence[Request]) -> None:
    write_whole(home.substrate(cluster.name) / "requests.json", msgspec.json.encode(requests))


def requests_of(home: Home, cluster: Cluster) -> tuple[Request, ...]:
    """Return the unmet requests for machines; none if no process keeps the agents of the cluster."""
    if is_held(lock_of(home, cluster)):
        with contextlib.suppress(FileNotFoundError):
            content = (home.substrate(cluster.name) / "requests.json").read_bytes()
            return json_decoder(tuple[Request, ...]).decode(content)
    return ()


def _answer(home: Home, cluster: Cluster) -> Path:
    return home.substrate(cluster.name) / "answer.json"
