"""Debian's own etcd: members of a cluster on loopback, started for a test, and killed, stopped and restarted by it."""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from system.living import free_port, until

from drivers.wire import Wire
from poise_ha.etcd.keys import Keys
from poise_ha.etcd.words import end_of

PROGRAMS = (Path(sys.prefix) / "debian/usr/bin/etcd", Path("/usr/bin/etcd"))


class Seat(NamedTuple):
    """Where a member is: how peers reach it, how clients do, and what its command begins with there."""

    peers: str = "127.0.0.1"
    clients: str = "127.0.0.1"
    inside: tuple[str, ...] = ()


class EtcdServer:
    """Members that sync as they do in earnest. With `tls` (options of etcd) clients speak it."""

    def __init__(self, program: Path, seats: Sequence[Seat], *options: str, tls: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="poise-etcd-"))
        self.members = range(len(seats))
        self.places = [(seat.clients, free_port()) for seat in seats]
        self._scheme = "https" if tls else "http"
        peers = [f"http://{seat.peers}:{free_port()}" for seat in seats]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        clients = [f"{self._scheme}://{host}:{port}" for host, port in self.places]
        self._commands = [
            [
                *(*seat.inside, str(program), "--name", f"m{number}", "--data-dir", f"{self.folder}/m{number}"),
                *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
                *("--listen-client-urls", clients[number], "--advertise-client-urls", clients[number]),
                *("--initial-cluster", cluster, "--initial-cluster-token", str(self.folder), "--log-level", "warn"),
                *options,
                *tls,
            ]
            for number, seat in enumerate(seats)
        ]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._databases = 0

    def start(self) -> None:
        """All of them that are not there; returns when they answer."""
        for number in self.members:
            if number not in self._running:
                self._running[number] = subprocess.Popen(
                    self._commands[number],
                    stdout=subprocess.DEVNULL,
                    stderr=(self.folder / f"messages{number}").open("ab"),
                )
        until(self._answers, "etcd answers", self.story)

    def story(self) -> str:
        return "\n".join(file.read_text()[-1000:] for file in sorted(self.folder.glob("messages*")))

    def _answers(self) -> bool:
        try:
            return all(self.ask("maintenance/status", {}, member).get("leader", "0") != "0" for member in self.members)
        except OSError:
            return False

    def kill(self, *members: int) -> None:
        """As by a power cut, but for what the kernel still holds; all of them unless some are named."""
        for number in members or self.members:
            if number in self._running:
                process = self._running.pop(number)
                process.kill()
                process.wait()

    def stand_still(self, on: bool = True, *members: int) -> None:
        """They take connections and say nothing, until they go on."""
        for number in members or self.members:
            self._running[number].send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def leader(self) -> int:
        """Of the members."""
        told = [self.ask("maintenance/status", {}, number) for number in self.members]
        return [one["header"]["member_id"] for one in told].index(told[0]["leader"])

    def be_led_by(self, member: int) -> None:
        wanted = self.ask("maintenance/status", {}, member)["header"]["member_id"]
        if (leader := self.leader()) != member:
            self.ask("maintenance/transfer-leadership", {"targetID": wanted}, leader)
        until(lambda: self.leader() == member, f"member {member} leads the others", self.story)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what is in there --------------------------------------------------------------------------------------------

    def database(self) -> str:
        """The URL of an empty prefix."""
        self._databases += 1
        return self.url(f"d{self._databases}")

    def url(self, prefix: str, *members: int) -> str:
        """Of these members, or of all."""
        places = [self.places[number] for number in members or self.members]
        return f"etcd://{','.join(f'{host}:{port}' for host, port in places)}/{prefix}"

    def wire(self, url: str) -> tuple[str, Wire]:
        """The same by a way that can be cut."""
        wire = Wire()
        ports = [wire.to_port(port) for _, port in self.places]
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}/{url.rpartition('/')[2]}", wire

    def renewed(self, url: str) -> Any:
        """Another one whenever the lease was renewed."""
        return self.ask("kv/range", {"key": _text(keys_of(url).renewed)})["kvs"]

    def let_run_out(self, url: str) -> None:
        """As if somebody had waited long enough for the lease, and whoever has it does not know."""
        self.delete(keys_of(url).renewed)

    def records(self, url: str) -> dict[int, bytes]:
        """All of the log, as it lies there."""
        logs, found = keys_of(url).logs, dict[int, bytes]()
        for key, value in self.get(logs, end_of(logs)).items():
            content = _records(value)
            found.update(enumerate(content, start=int(key[-20:]) - len(content) + 1))
        return found

    def change(self, url: str, revision: int, record: bytes) -> None:
        """In a log of one commit."""
        logs = keys_of(url).logs
        ((key, value),) = self.get(logs, end_of(logs)).items()
        content = _records(value)
        content[revision - 1] = record
        self.put(key, _value(content))

    def add(self, url: str, revision: int, record: bytes) -> None:
        keys = keys_of(url)
        self.put(keys.log(revision), _value([record]))
        self.put(keys.last, str(revision).encode())

    def get(self, key: bytes, end: bytes = b"") -> dict[bytes, bytes]:
        told = self.ask("kv/range", {"key": _text(key), "range_end": _text(end)})
        return {_bytes(one["key"]): _bytes(one.get("value", "")) for one in told.get("kvs", [])}

    def put(self, key: bytes, value: bytes) -> None:
        self.ask("kv/put", {"key": _text(key), "value": _text(value)})

    def delete(self, key: bytes) -> None:
        self.ask("kv/deleterange", {"key": _text(key)})

    def make_room(self, prefix: bytes) -> None:
        """In a database that is full: remove what is below the prefix, and its history, and say that there is room."""
        for key in self.get(prefix, end_of(prefix)):
            self.delete(key)
        revision = self.ask("kv/range", {"key": "eA=="})["header"]["revision"]
        self.ask("kv/compaction", {"revision": revision, "physical": True})
        self.ask("maintenance/defragment", {})
        alarm = self.ask("maintenance/alarm", {"action": "GET"})["alarms"][0]
        self.ask("maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def ask(self, what: str, question: dict[str, Any], member: int | None = None) -> dict[str, Any]:
        """Of this member, or of one that is there."""
        place = self.places[next(iter(self._running)) if member is None else member]
        connection = (
            http.client.HTTPSConnection(*place, timeout=10, context=ssl._create_unverified_context())  # noqa: S323 - ours
            if self._scheme == "https"
            else http.client.HTTPConnection(*place, timeout=10)
        )
        try:
            connection.request("POST", f"/v3/{what}", json.dumps(question))
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise OSError(f"{answer.status} {text.decode()}")
            told: dict[str, Any] = json.loads(text)
            return told
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()


def keys_of(url: str) -> Keys:
    return Keys(url.rpartition("/")[2])


@contextmanager
def running(
    seats: Sequence[Seat] = (Seat(), Seat(), Seat()), *options: str, tls: tuple[str, ...] = ()
) -> Iterator[EtcdServer]:
    program = next((place for place in PROGRAMS if place.exists()), None)
    if program is None:
        pytest.skip("etcd is not there: `make servers` fetches it from Debian's packages")
    server = EtcdServer(program, seats, *options, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _value(records: list[bytes]) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.encode(records))


def _records(value: bytes) -> list[bytes]:
    return msgspec.msgpack.decode(msgspec.msgpack.decode(value, type=bytes), type=list[bytes])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


class Cut:
    """A member's seat of its own: clients reach it, and its peers until they are cut off."""

    def __init__(self) -> None:
        own, clients, peers = f"poise{os.getpid() % 10**5}", *(f"10.{net}.{os.getpid() % 250}" for net in (78, 79))
        self._name = f"{own}e"
        self._links = {"clients": (f"{own}ec", clients), "peers": (f"{own}ep", peers)}
        self.seat = Seat(f"{peers}.2", f"{clients}.2", ("ip", "netns", "exec", self._name))
        self.others = Seat(f"{peers}.1")
        _ip("netns", "add", self._name)
        for inside, (here, network) in self._links.items():
            _ip("link", "add", here, "type", "veth", "peer", "name", inside, "netns", self._name)
            _ip("address", "add", f"{network}.1/24", "dev", here)
            _ip("-n", self._name, "address", "add", f"{network}.2/24", "dev", inside)
            _ip("link", "set", here, "up")
            _ip("-n", self._name, "link", "set", inside, "up")
        _ip("-n", self._name, "link", "set", "lo", "up")

    def cut(self) -> None:
        _ip("-n", self._name, "link", "set", "peers", "down")

    def mend(self) -> None:
        _ip("-n", self._name, "link", "set", "peers", "up")

    def close(self) -> None:
        for here, _ in self._links.values():
            _ip("link", "del", here)
        _ip("netns", "del", self._name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
