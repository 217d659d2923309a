"""The cluster whose machines are the nodes of a home. Each substrate has a folder in the home, of its name:

    cluster.json   which cluster it is; where this is, its machines are the nodes
    answer.json    why it cannot be used, or `null` if it can; written by `poise.agent.on_substrate`
    requests.json  the machines that work waits for; written by that process
    lock           held by that process

Other files there are those of that process, and of the driver.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from poise.config import Cluster, Home
from poise.decoding import json_decoder
from poise.drivers.lock import is_held
from poise.drivers.whole import write_whole
from poise.errors import ErrorRecord, Fault
from poise.model.reports import Request


def kept_cluster(home: Home) -> Cluster | None:
    """The cluster of this home, if it has one."""
    for file in sorted(home.root.glob("*/cluster.json")):
        return msgspec.structs.replace(json_decoder(Cluster).decode(file.read_bytes()), name=file.parent.name)
    return None


def keep_cluster(home: Home, cluster: Cluster | None) -> None:
    """Make this the cluster of a home, or none."""
    for file in home.root.glob("*/cluster.json"):
        file.unlink()
    if cluster is not None:
        home.substrate(cluster.name).mkdir(mode=0o700, exist_ok=True)
        write_whole(home.substrate(cluster.name) / "cluster.json", msgspec.json.encode(cluster))


def lock_of(home: Home, cluster: Cluster) -> Path:
    """Held by the process that keeps the agents of a cluster."""
    return home.substrate(cluster.name) / "lock"


def write_answer(home: Home, cluster: Cluster, record: ErrorRecord | None) -> None:
    write_whole(_answer(home, cluster), msgspec.json.encode(record))


def forget_answer(home: Home, cluster: Cluster) -> None:
    _answer(home, cluster).unlink(missing_ok=True)


def answer_of(home: Home, cluster: Cluster) -> Fault | None:
    """Why a cluster cannot be used, if it cannot. Raises FileNotFoundError until that is known."""
    record = json_decoder(ErrorRecord | None).decode(_answer(home, cluster).read_bytes())
    if record is None:
        return None
    fault = Fault(record.message)
    fault.record = record
    return fault


def write_requests(home: Home, cluster: Cluster, requests: Sequence[Request]) -> None:
    write_whole(home.substrate(cluster.name) / "requests.json", msgspec.json.encode(requests))


def requests_of(home: Home, cluster: Cluster) -> tuple[Request, ...]:
    """The requests for machines that are not met; none where nobody keeps the agents of the cluster."""
    if is_held(lock_of(home, cluster)):
        with contextlib.suppress(FileNotFoundError):
            content = (home.substrate(cluster.name) / "requests.json").read_bytes()
            return json_decoder(tuple[Request, ...]).decode(content)
    return ()


def _answer(home: Home, cluster: Cluster) -> Path:
    return home.substrate(cluster.name) / "answer.json"
