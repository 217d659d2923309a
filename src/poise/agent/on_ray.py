"""`python -m poise.agent.on_ray`: keeps an agent on every machine of a Ray cluster that this machine belongs to.

It stands where the agents of a local fleet stand: the supervisor keeps it alive, and it ends on SIGTERM, with the
agents whose nodes run nothing. When it is killed, the agents go on, as actors of Ray's; the next one finds them.

Where the home says no address, it starts a cluster of this machine alone, which outlives it in the same way.

Of several control planes, only that which leads has its agents kept; those find whichever does by themselves.
"""

import argparse
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from poise.client import Client
from poise.config import Address, Endpoint, Home, OnRay
from poise.decoding import json_decoder
from poise.drivers.lock import take_lock
from poise.drivers.reach import home_at
from poise.drivers.whole import write_whole
from poise.errors import ErrorRecord, Fault, InputError, NotFound, PoiseError, Unreachable, extra

if TYPE_CHECKING:
    from poise.drivers.ray import Cluster

LOOK_SECONDS = 1.0
START_SECONDS = 60.0
END_SECONDS = 20.0
STOPS = (signal.SIGTERM, signal.SIGINT)
LOOPBACK = ("127.0.0.1", "localhost", "::1")

CLOSED = ("drained", "emptying")
"""Status of the nodes that are drained. The keeper of the agents opens those again that it has drained itself."""

_log = logging.getLogger("poise.ray")


class Started(msgspec.Struct, frozen=True):
    """A cluster that was started here: its process, and the folder in which it lives."""

    pid: int
    folder: str


class Nodes:
    """What the control plane knows of its nodes, and is told of them. Those that were open until their machines were
    drained are kept in a file, with Ray's names for these, to be opened again by whoever keeps them then.
    """

    def __init__(self, client: Client, file: Path) -> None:
        self._client = client
        self._file = file
        self.emptied: dict[str, str] = json_decoder(dict[str, str]).decode(file.read_bytes()) if file.exists() else {}

    def idle(self) -> set[str]:
        return {node.name for node in self._client.nodes() if not node.running and not node.queued}

    def lost(self) -> set[str]:
        return {node.name for node in self._client.nodes() if node.status == "lost"}

    def gone(self, *names: str) -> None:
        with contextlib.suppress(NotFound):  # none of them has ever joined
            self._client.give_up(*names)

    def lend(self, machines: Mapping[str, str]) -> str:
        before = self.emptied
        by_people = {node.name for node in self._client.nodes() if node.status in CLOSED}
        open_ones = {name: machine for name, machine in machines.items() if name not in by_people}
        with self._kept_unless_refused({**before, **open_ones}):
            lent = self._client.lend(*machines)
        self._keep({**before, **{name: machine for name, machine in machines.items() if name == lent}})
        return lent

    def empty(self, leaving: Mapping[str, str]) -> None:
        for node in self._client.nodes():
            if node.name in leaving and node.status in ("up", "suspect", "unfit", "drained"):
                opened = {} if node.status in CLOSED else {node.name: leaving[node.name]}
                with self._kept_unless_refused({**self.emptied, **opened}):
                    self._client.drain(node.name, moves=True)

    def open_but(self, leaving: Mapping[str, str]) -> None:
        """Open what was emptied, unless its machine is still the one that leaves."""
        back = {name for name, machine in self.emptied.items() if leaving.get(name) != machine}
        if not back:
            return
        for node in self._client.nodes():
            if node.name in back:
                self._client.drain(node.name, on=False)
        self._keep({name: machine for name, machine in self.emptied.items() if name not in back})

    @contextlib.contextmanager
    def _kept_unless_refused(self, emptied: dict[str, str]) -> Iterator[None]:
        """Keep this before nodes are drained: if this process is killed then, the next one opens them again. Keep it
        also where nobody answers, since the nodes may be drained; a refusal has drained none.
        """
        before = self.emptied
        self._keep(emptied)
        try:
            yield
        except Unreachable:
            raise
        except PoiseError:
            self._keep(before)
            raise

    def _keep(self, emptied: dict[str, str]) -> None:
        write_whole(self._file, msgspec.json.encode(emptied))
        self.emptied = emptied


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.agent.on_ray", description="the agents of a Ray cluster")
    parser.add_argument("home", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    home = home_at(options.home)
    os.umask(0o077)
    for number in STOPS:
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with take_lock(home.ray / "lock", "keeper of a Ray cluster's agents"):
            _keep(home, json_decoder(OnRay).decode((home.ray / "cluster.json").read_bytes()))
    except PoiseError as error:
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code
    return 0


def _keep(home: Home, on: OnRay) -> None:
    token = _node_token(home)
    address = _listening(home)
    cluster = _cluster(home, on)
    from poise.drivers.ray import Told, own_address

    told = Told(_told_address(home, address, own_address()), token, address.authority[:12])
    _log.info("on Ray at %s", on.address or "this machine alone")
    nodes, leads = Nodes(Client(home, patience=0), home.ray / "emptied.json"), not home.store.exists()
    while signal.sigtimedwait(STOPS, LOOK_SECONDS) is None:
        answer = _leads(home)
        leads = leads if answer is None else answer  # it ends before this process does, in `poise down`
        with contextlib.suppress(Fault):  # it is away, or its disk is full: it is told and asked again
            if answer:
                cluster.keep(told, nodes)
            if nodes.emptied:  # whoever leads: nobody else knows which were open
                nodes.open_but(cluster.leaving(told.home))
    if leads and cluster.end(told.home) and not on.address:
        _end_own_cluster(home)


def _cluster(home: Home, on: OnRay) -> "Cluster":
    """The cluster of this home. Who waits for it is told that it is there, or why not."""
    try:
        where = on.address or _own_cluster(home)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # Ray has handlers of its own, and threads: they are waited for
        file = Path("~/.ray/auth_token").expanduser()
        if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or file.exists():
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # as the head of a cluster does, and nobody who joins it
        from poise.drivers.ray import Cluster  # dear: after what may fail without it

        cluster = Cluster(where)
    except PoiseError as error:
        _answer(home, error.record)
        raise
    _answer(home, None)
    return cluster


def _answer(home: Home, record: ErrorRecord | None) -> None:
    """What `poise up` and `poise doctor` read."""
    write_whole(home.ray_answer, msgspec.json.encode(record))


def _leads(home: Home) -> bool | None:
    """Whether the control plane of this home is the one whose nodes these are; none if it does not answer."""
    if not home.store.exists():
        return True
    with contextlib.suppress(PoiseError):
        return not Client(Home(home.root), patience=0).status().stands_by
    return None


def _told_address(home: Home, own: Address, here: str) -> str:
    """The address for the agents: of this control plane, as the machines of the cluster know it; of several, all."""
    known = [door for door in home.others if isinstance(door, Address)]
    host = own.host if own.host in LOOPBACK else here
    return ",".join(door.text for door in known or [Address(host, own.port, own.authority)])


def _node_token(home: Home) -> str:
    """A token for nodes, made at the first start."""
    file = home.ray / "token"
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    secret = Client(home).add_token("default", "node", name="ray")[1]
    file.write_text(secret)
    return secret


def _listening(home: Home) -> Address:
    """Where the control plane listens to its nodes, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if text := json_decoder(Endpoint).decode(home.endpoint.read_bytes()).address:
                return Address.parse(text)
        time.sleep(LOOK_SECONDS / 10)
    raise Fault("the control plane does not listen for other machines", hint="`poise down`, then `poise up --on ray`")


def _own_cluster(home: Home) -> str:
    """The address of the cluster of this machine alone, started now if it does not run."""
    kept = home.ray / "started.json"
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", str(home.ray / "auth")
    if not (home.ray / "auth").exists():
        (home.ray / "auth").write_text(secrets.token_hex(32))
    with contextlib.suppress(FileNotFoundError):
        started = json_decoder(Started).decode(kept.read_bytes())
        if _is_ray(started.pid):
            return _address_in(Path(started.folder))
    folder = tempfile.mkdtemp(prefix="poise-ray-")  # its sockets have long names, and a home may too
    program = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", "0"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats", "--node-name", os.uname().nodename]
    try:
        with (home.ray / "ray.log").open("ab") as messages:
            head = subprocess.Popen(  # noqa: S603 — the program beside our Python
                [*program, *quiet, "--temp-dir", folder],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            )
    except OSError as error:
        raise InputError(f"Ray cannot be started: {error}", hint=extra("ray")) from None
    kept.write_bytes(msgspec.json.encode(Started(head.pid, folder)))
    try:
        return _address_in(Path(folder))
    except SystemExit:  # told to end while it was still starting
        _end_own_cluster(home)
        raise


def _address_in(folder: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if address := (folder / "ray_current_cluster").read_text().strip():
                return address
        time.sleep(LOOK_SECONDS / 10)
    raise Fault("Ray does not start", field=str(folder), hint="`tail ray/ray.log` in the home")


def _end_own_cluster(home: Home) -> None:
    kept = home.ray / "started.json"
    started = json_decoder(Started).decode(kept.read_bytes())
    if _is_ray(started.pid):
        os.kill(started.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while _is_ray(started.pid) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
    shutil.rmtree(started.folder, ignore_errors=True)
    kept.unlink()


def _is_ray(pid: int) -> bool:
    """Whether this process is the one that was started: numbers are given out again."""
    with contextlib.suppress(ChildProcessError):  # another one of this kind has started it
        os.waitpid(pid, os.WNOHANG)
    try:
        return b"--head" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
