"""Measure the nodes' reports: bytes and CPU for each node and second, in several encodings of the same reports.

    python benchmarks/telemetry.py [--nodes 12] [--seconds 40] [--json]

A real control plane records the messages of a declared fleet's agents (`heard.py`): a third of the nodes train and
report it each second, a third is alternately busy and idle, a third holds sleeping jobs. A second fleet is idle. The
messages (heartbeats with signals and windows, reports of starts, ends and training) are then encoded and decoded again,
whole connections at once, in each of these ways:

*JSON, all of it each second*: the floor, a reporter that sends all signals each second, whatever has changed, and the
current state of each training. *JSON*, *msgpack* (the real protocol), *msgpack without names* and *Protobuf* have the
same messages at the same instants. *deflated*: compressed as by permessage-deflate, one stream for each connection, as
between machines. Network frames and headers add the same to all. *CPU of an agent*: its total use, of a core: sampling
signals and devices, heartbeats, reports.

Protobuf is a peer: `python benchmarks/peers.py install protobuf`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import heard
import msgspec
import peers
import psutil
from harness import Figure, program, say

from poise.decoding import msgpack_decoder
from poise.drivers.system import boottime
from poise.model.load import Load
from poise.model.messages import Beat, FromAgent, Report, Told
from poise.model.usage import Window
from poise.units import SECOND

sys.path.append(str(peers.SCRIPTS))
from deflated import deflated

REPEATS = 5
LESS = 60.0
TRAINS = """
import json, os, time
path, step = os.environ["POISE_REPORT"], 0
while True:
    step += 7
    said = {"step": step, "samples": step * 256, "progress": min(step * 50, 10**6), "world": 2, "batch": 32}
    said |= {"accumulation": 4, "effective": 256, "rate": 0.1, "loss": 2.3 / (1 + step / 100), "precision": "bf16"}
    said |= {"step_time": 141_000_000 + step % 13 * 10**5, "goodput": 1_790_000 + step, "throughput": 1_811_000 - step}
    said |= {"sent": 47_185_920, "memory": 3_221_225_472 + step * 4096, "phase": "convergence"}
    with open(path + ".new", "w") as file:
        json.dump(said, file)
    os.rename(path + ".new", path)
    time.sleep(1)
"""
CHANGES = """
import time
while True:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        sum(range(1000))
        time.sleep(0.004)
    time.sleep(5)
"""

Connection = list[tuple[int, FromAgent]]
"""The messages of one node, and their instants in nanoseconds."""


class Cost(NamedTuple):
    """Cost per node and second: bytes, and microseconds of encoding and decoding."""

    size: float
    cpu: float


class Recorded(NamedTuple):
    """`used`: CPU seconds of all agents, including the monitoring of their commands."""

    name: str
    connections: list[Connection]
    seconds: float
    used: float

    def messages(self) -> list[list[FromAgent]]:
        return [[message for _, message in connection] for connection in self.connections]

    def cost(self, size: int, seconds: float) -> Cost:
        each = len(self.connections) * self.seconds
        return Cost(size / each, 1e6 * seconds / each)


def record(name: str, nodes: int, seconds: float, commands: Sequence[list[str]]) -> Recorded:
    """Record the nodes' heartbeats and reports, from when all of the commands run."""
    decode = msgpack_decoder(tuple[int, FromAgent]).decode
    with heard.fleet(nodes) as fleet:
        for number in range(nodes if commands else 0):
            fleet.client.submit({"run": commands[number % len(commands)], "resources": {"cpu": 1.5}})
        time.sleep(10)  # by then the idle fleet has reported, and all commands run
        begun, used = boottime(), cpu_of(fleet.agents())
        time.sleep(seconds)
        used = cpu_of(fleet.agents()) - used
        notes = fleet.end()
    say(f"{name}: recorded")
    told: dict[str, Connection] = {node: [] for node in fleet.names}
    for note in notes:
        if note.kind == "word" and begun <= note.at <= begun + seconds * SECOND:
            told[note.node].append((note.at, decode(note.frame)[1]))
    return Recorded(name, list(told.values()), seconds, used)


def cpu_of(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(of.user + of.system for of in times)


# --- encodings -------------------------------------------------------------------------------------------------------


def measured(recorded: Recorded, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> tuple[Cost, Cost]:
    """Measure an encoding as it is, and deflated."""
    best: tuple[Cost, Cost] | None = None
    for _ in range(REPEATS):
        framed, taken = [], 0.0
        for messages in recorded.messages():
            begun = time.perf_counter()
            frames = [encode((number, message)) for number, message in enumerate(messages, 1)]
            for frame in frames:
                decode(frame)
            taken += time.perf_counter() - begun
            framed.append(frames)
        size, compress, decompress = deflated(framed)
        plain = recorded.cost(sum(len(frame) for frames in framed for frame in frames), taken)
        packed = recorded.cost(size, taken + compress + decompress)
        if best is None or packed.cpu < best[1].cpu:
            best = plain, packed
    assert best is not None
    return best


def every_second(recorded: Recorded) -> Cost:
    """Encode the whole state of a node each second, as JSON."""
    encode, size, taken = msgspec.json.Encoder().encode, 0, 0.0
    decode = msgspec.json.Decoder(tuple[int, dict[str, Any]]).decode
    for connection in recorded.connections:
        load, place = Load(), 0
        windows: tuple[Window, ...] = ()
        told: dict[str, Told] = {}
        start = connection[0][0] if connection else 0
        for second in range(int(recorded.seconds)):
            until = start + second * SECOND
            while place < len(connection) and connection[place][0] <= until:
                message = connection[place][1]
                if isinstance(message, Beat):
                    load, windows = message.load or load, message.windows or windows
                elif isinstance(message, Report):
                    told |= {str(one.attempt): one for one in message.told}
                place += 1
            full = {"number": second, "told": list(told.values()), "load": _whole(load), "windows": windows}
            begun = time.perf_counter()
            frame = encode((second, full))
            decode(frame)
            taken += time.perf_counter() - begun
            size += len(frame)
    return recorded.cost(size, taken)


def _whole(load: Load) -> dict[str, int]:
    return {name: getattr(load, name) for name in Load.__struct_fields__}


def positional(value: Any) -> Any:
    """Encode records without field names: the values in order, up to the last that is not the default."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        items = [positional(getattr(value, name)) for name in value.__struct_fields__]
        defaults = [*value.__struct_defaults__]
        while items and defaults and not config.array_like and items[-1] == positional(defaults.pop()):
            items.pop()
        return [config.tag, *items] if config.tag else items
    return [positional(one) for one in value] if isinstance(value, tuple | list) else value


def by_names(message: FromAgent) -> dict[str, Any]:
    """Encode with the names of the Protobuf schema."""
    found: dict[str, Any] = msgspec.to_builtins(message)
    kind = found.pop("type")
    for window in (windows := [dict(zip(("at", "mean", "most"), of, strict=True)) for of in found.pop("windows", ())]):
        window["at"] = int(window["at"])
    for one in [*found.get("running", ()), *found.get("ended", ()), *found.get("told", ())]:
        one["attempt"] = {"task": one["attempt"][0], "epoch": one["attempt"][1]}
    return {kind: found | ({"windows": windows} if windows else {})}


def by_protobuf(recorded: Recorded) -> tuple[Cost, Cost]:
    """Encode with Protobuf. Raises `peers.Absent`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told"
        lines = [
            msgspec.json.encode([{"number": number} | by_names(of) for number, of in enumerate(messages, 1)])
            for messages in recorded.messages()
        ]
        file.write_bytes(b"\n".join(lines))
        found = [peers.ask(peers.FOLDER, "protobuf", "protobuf_telemetry.py", str(file)) for _ in range(REPEATS)]
    best = min(found, key=lambda one: one["encode"] + one["decode"] + one["compress"] + one["decompress"])
    taken = best["encode"] + best["decode"]
    plain = recorded.cost(best["size"], taken)
    return plain, recorded.cost(best["compressed"], taken + best["compress"] + best["decompress"])


# --- figures ---------------------------------------------------------------------------------------------------------


def measure(nodes: int, seconds: float) -> list[Figure]:
    trains, changes, sleeps = (
        [sys.executable, "-S", "-c", TRAINS],
        [sys.executable, "-S", "-c", CHANGES],
        ["sleep", "600"],
    )
    figures: list[Figure] = []
    for name, commands, lasts in (("busy", [trains, changes, sleeps], seconds), ("idle", [], seconds)):
        figures += _compared(record(name, nodes, lasts, commands))
    return figures


def _compared(recorded: Recorded) -> list[Figure]:
    packed, text = msgspec.msgpack.Encoder().encode, msgspec.json.Encoder().encode
    as_names = msgpack_decoder(tuple[int, FromAgent]).decode
    costs = {"JSON, all of it each second": every_second(recorded)}
    costs["JSON"], costs["JSON, deflated"] = measured(
        recorded, text, msgspec.json.Decoder(tuple[int, FromAgent]).decode
    )
    costs["msgpack"], costs["msgpack, deflated"] = measured(recorded, packed, as_names)
    values = recorded._replace(connections=[[(at, positional(of)) for at, of in one] for one in recorded.connections])
    costs["msgpack without names"], costs["msgpack without names, deflated"] = measured(
        values, packed, msgspec.msgpack.Decoder().decode
    )
    missing = ""
    try:
        costs["Protobuf"], costs["Protobuf, deflated"] = by_protobuf(recorded)
    except peers.Absent as absent:
        missing = str(absent)
    words = sum(len(connection) for connection in recorded.connections) / len(recorded.connections) / recorded.seconds
    share = 100 * recorded.used / len(recorded.connections) / recorded.seconds
    figures = [
        Figure(name=f"{recorded.name}: words of a node", unit="/s", values=[words]),
        Figure(name=f"{recorded.name}: CPU of an agent", unit="%", values=[share]),
    ]
    for way, cost in costs.items():
        less = 100 * (1 - cost.size / costs["JSON"].size)
        name = f"{recorded.name}: {way}"
        figures.append(
            Figure(
                name=f"{name}: bytes a node and second",
                unit="",
                values=[cost.size],
                note=f"{less:.0f} % less than JSON",
            )
        )
        figures.append(Figure(name=f"{name}: µs a node and second", unit="", values=[cost.cpu], note="both ends"))
    between = 100 * (1 - costs["msgpack, deflated"].size / costs["JSON"].size)
    name = f"{recorded.name}: what machines send each other is less than JSON by"
    figures.append(Figure(name=name, unit="%", values=[between], limit=LESS, larger=True))
    if missing:
        figures.append(Figure(name=f"{recorded.name}: Protobuf", unit="", values=[], note=f"absent: {missing}"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    raise SystemExit(program(lambda: measure(given.nodes, given.seconds), as_json=given.json))


if __name__ == "__main__":
    main()
