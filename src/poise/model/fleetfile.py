"""Compile a fleet file into nodes and a throughput table.

    kind: fleet
    nodes:
      big: {count: 2, cpu: 32, memory: 256GiB, devices: [{model: H100, count: 8}], links: {kind: nvlink}}
      small: {cpu: 8, memory: 32GiB}
    throughputs:
      resnet: {H100: 40.0, cpu: 0.5}

With `count`, nodes are named `big-0`, `big-1`, …; without it there is one, named as written. A device of a known model
gets the catalogue's figures, and figures in the file take precedence. `compile_fleet` takes the parsed document and
raises `SpecError` with every error: the path of the field, the expected value and a hint.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.catalogue import CATALOGUE, device_of, models_named
from poise.model.document import Findings, near, shown
from poise.model.fields import MAX_BYTES, MAX_CPU, Quantity, parse_or_raise
from poise.model.figures import with_figures, with_processor
from poise.model.resources import DECLARED, MAX_DEVICES, MAX_TEXT, WHOLE, Device, Link, Node
from poise.model.spec import check_name, check_text, label_value
from poise.units import HOUR, parse_bytes, parse_cpu, parse_duration, parse_flops, parse_rate, parse_share

MAX_NODES = 20_000
"""Twice the largest fleet with which scheduling rounds are measured."""

MAX_LOCAL = 64
"""Maximum number of nodes on one machine: each is a process, plus a keeper for each command that it runs."""

MAX_LINKS = 1_000_000
"""Maximum number of links of all nodes as written: `links` of one kind joins every pair."""

MAX_EXPORTERS = 8
"""Maximum number of exporters of one node: one for the machine and one for each kind of device are enough."""

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_MAX_RATE = 2**62
_POWER = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(m|k|)W?\s*")
_EXPORTER = re.compile(r"(https?://)?((?:[\w.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?)(/\S*)?")
_PRICE = re.compile(r"\s*\$?\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?:\$?(?:/h)?)\s*")


class DeclaredFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled fleet. `throughputs` are samples per second by `class@model`, `exporters` URLs by node."""

    name: str
    nodes: tuple[Node, ...]
    throughputs: dict[str, float] = {}
    exporters: dict[str, tuple[str, ...]] = {}


class ProcessorSpec(msgspec.Struct, forbid_unknown_fields=True):
    """Compute power of all CPUs of a node."""

    model: str = ""
    compute_power: Quantity | None = None
    rates: dict[str, Quantity] = {}
    bandwidth: Quantity | None = None


class DeviceSpec(msgspec.Struct, forbid_unknown_fields=True):
    """`count` devices of a model. `type` is another spelling of `kind`; `compute_power` is the rate in fp32."""

    model: str = ""
    count: int = 1
    kind: str | None = None
    type: str | None = None
    backend: str | None = None
    memory: Quantity | None = None
    compute_power: Quantity | None = None
    rates: dict[str, Quantity] = {}
    bandwidth: Quantity | None = None
    supported_ops: list[str] | None = None
    power: Quantity | None = None
    price: Quantity | None = None
    share_cap: Quantity | None = None
    socket: int | None = None


class LinkSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A connection of the devices `a` and `b`; without them, of every pair."""

    a: int | None = None
    b: int | None = None
    kind: str = "nvlink"
    bandwidth: Quantity = 0
    latency: Quantity = 0


class NodeSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One node, or `count` equal nodes."""

    cpu: Quantity
    memory: Quantity
    count: int | None = None
    network: Quantity = 0
    latency: Quantity = 0
    zone: str = ""
    rack: str = ""
    labels: dict[str, Any] = {}
    processor: ProcessorSpec | None = None
    devices: list[DeviceSpec] = []
    links: LinkSpec | list[LinkSpec] | None = None
    exporters: list[str] = []


class FleetSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str = ""
    name: str = "fleet"
    nodes: dict[str, NodeSpec] = {}
    throughputs: dict[str, dict[str, float]] = {}


def compile_fleet(document: Any) -> DeclaredFleet:
    """Compile a parsed file."""
    found = Findings()
    top = found.convert(document, FleetSpec)
    made = None if top is None else _compile(top, found)
    found.check(example)
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def check_local(fleet: DeclaredFleet) -> None:
    """Raise `SpecError` for a fleet that is too large to be started on one machine."""
    if len(fleet.nodes) > MAX_LOCAL:
        raise SpecError(
            "the fleet has too many nodes for one machine",
            code="E103",
            field="nodes",
            need=f"at most {MAX_LOCAL}",
            have=str(len(fleet.nodes)),
            hint="`poise nodes --fleet FILE` shows it without starting it",
        )


def _compile(top: FleetSpec, found: Findings) -> DeclaredFleet:
    if top.kind != "fleet":
        found.add(SpecError("this file is not a fleet", field="kind", need="fleet", have=top.kind, hint="kind: fleet"))
    found.get(None, check_name, top.name, "name")
    if not top.nodes:
        found.add(SpecError("the fleet has no nodes", field="nodes"))
    names = _names(top.nodes, found)
    nodes: list[Node] = []
    exporters: dict[str, tuple[str, ...]] = {}
    links = 0
    for name, spec in top.nodes.items():
        first, *others = names[name]
        node = _node(first, spec, f"nodes.{name}", found)
        links += len(node.links)
        if links > MAX_LINKS:
            at = f"nodes.{name}.links"
            found.add(SpecError("the fleet has too many links", code="E103", field=at, need=f"at most {MAX_LINKS}"))
            break
        nodes += [node, *(msgspec.structs.replace(node, name=other) for other in others)]
        if spec.exporters:
            for one in names[name]:
                exporters[one] = _exporters(spec.exporters, one, f"nodes.{name}.exporters", found)
    throughputs = _throughputs(top.throughputs, nodes, found)
    return DeclaredFleet(name=top.name, nodes=tuple(nodes), throughputs=throughputs, exporters=exporters)


def _exporters(targets: list[str], node: str, at: str, found: Findings) -> tuple[str, ...]:
    """Return the URLs of a node's exporters, from targets in Prometheus form; `{node}` stands for its name."""
    urls = []
    for target in targets[:MAX_EXPORTERS]:
        named = target.replace("{node}", node)
        parts = _EXPORTER.fullmatch(named)
        if parts is None or len(named) > MAX_TEXT:
            need = "host:port, or the URL of an exporter's metrics"
            found.add(
                SpecError("this is not an exporter", field=at, need=need, have=target[:MAX_TEXT], hint=example(at))
            )
        else:
            urls.append(f"{parts[1] or 'http://'}{parts[2]}{parts[3] or '/metrics'}")
    if len(targets) > MAX_EXPORTERS:
        found.add(SpecError("too many exporters", code="E103", field=at, need=f"at most {MAX_EXPORTERS}"))
    return tuple(urls)


_EXAMPLES = {
    "nodes": "nodes: {n1: {cpu: 8, memory: 32GiB}}",
    "name": "name: lab",
    "count": "count: 4",
    "cpu": "cpu: 8",
    "memory": "memory: 64GiB",
    "network": "network: 25Gbit",
    "latency": "latency: 50us",
    "zone": "zone: z1",
    "rack": "rack: r1",
    "labels": "labels: {team: vision}",
    "processor": "processor: {compute_power: 2 TFLOPS, bandwidth: 200GB/s}",
    "devices": "devices: [{model: H100, count: 8}]",
    "kind": "kind: gpu",
    "type": "type: GPU",
    "backend": "backend: cuda",
    "compute_power": "compute_power: 20 TFLOPS",
    "rates": "rates: {fp32: 67 TFLOPS, fp16: 989 TFLOPS}",
    "bandwidth": "bandwidth: 900GB/s",
    "supported_ops": "supported_ops: [matmul, conv2d]",
    "power": "power: 700W",
    "price": "price: 4.0",
    "share_cap": "share_cap: 80%",
    "socket": "socket: 0",
    "links": "links: {kind: nvlink, bandwidth: 900GB/s, latency: 2us}",
    "a": "links: [{a: 0, b: 1, bandwidth: 900GB/s}]",
    "b": "links: [{a: 0, b: 1, bandwidth: 900GB/s}]",
    "exporters": 'exporters: ["{node}:9100", "{node}:9400"]',
    "throughputs": "throughputs: {resnet: {H100: 40.0, cpu: 0.5}}",
}


def example(field: str) -> str:
    """Return an example for a field: that of the last part of its path that is a field name and not the user's."""
    parts = re.sub(r"\[.*?\]", "", field).split(".")
    own = parts[:1] if parts[0] in ("nodes", "throughputs") else parts
    own += [part for part in parts[2:] if part in _EXAMPLES] if parts[0] == "nodes" else []
    return _EXAMPLES.get(own[-1], _EXAMPLES["nodes"])


def _names(specs: Mapping[str, NodeSpec], found: Findings) -> dict[str, list[str]]:
    """Return the node names of each entry; the total is checked before they are built."""
    total = 0
    for name, spec in specs.items():
        found.get(None, check_name, name, f"nodes.{name}")
        if spec.count is not None:
            found.get(None, check_range, spec.count, 1, MAX_NODES, f"nodes.{name}.count")
        total += 1 if spec.count is None else spec.count
    if total > MAX_NODES:
        need, have = f"at most {MAX_NODES}", str(total)
        found.add(SpecError("the fleet has too many nodes", code="E103", field="nodes", need=need, have=have))
    if found:
        return {name: [name] for name in specs}
    names = {
        name: [name] if spec.count is None else [f"{name}-{place}" for place in range(spec.count)]
        for name, spec in specs.items()
    }
    for name, made in names.items():
        found.get(None, check_name, made[-1], f"nodes.{name}")
    twice = next(
        (one for one, times in Counter(one for made in names.values() for one in made).items() if times > 1), ""
    )
    if twice:
        what = "two nodes have the same name"
        found.add(SpecError(what, code="E107", field="nodes", have=twice, hint="rename one of them, or its prefix"))
    return names


def _node(name: str, spec: NodeSpec, at: str, found: Findings) -> Node:
    devices = _devices(spec.devices, f"{at}.devices", found)
    check_place(spec.zone, spec.rack, f"{at}.", found)
    node = Node(
        name=name,
        incarnation="declared",
        cpu=found.get(0, _some, parse_cpu, spec.cpu, f"{at}.cpu", MAX_CPU),
        memory=found.get(0, _some, parse_bytes, spec.memory, f"{at}.memory", MAX_BYTES),
        devices=devices,
        labels=labels_from(spec.labels, f"{at}.labels", found) | DECLARED,
        zone=spec.zone,
        rack=spec.rack,
        network=found.get(0, parse_or_raise, parse_rate, spec.network, f"{at}.network", _MAX_RATE),
        latency=found.get(0, parse_or_raise, parse_duration, spec.latency, f"{at}.latency", HOUR),
        links=_links(spec.links, len(devices), f"{at}.links", found),
    )
    return with_processor(node, processor_figures(spec.processor, f"{at}.processor", found), "declared")


def check_place(zone: str, rack: str, at: str, found: Findings) -> None:
    """Check zone and rack: text that is valid in a path, a line and a command."""
    for what, text in (("zone", zone), ("rack", rack)):
        found.get(None, check_text, text, f"{at}{what}", most=MAX_TEXT)


def labels_from(given: Mapping[str, Any], at: str, found: Findings) -> dict[str, str]:
    """Return a node's labels from a file."""
    return {name: found.get("", _value_of_label, name, of, f"{at}.{name}") for name, of in given.items()}


def _value_of_label(name: str, value: Any, at: str) -> str:
    """Return a label value that a job can request. Raises SpecError."""
    text = label_value(name, value, at)
    if text.startswith("!") or "," in text:
        what, need = "no job could ask for this label", "a value without `,` that does not begin with `!`"
        hint = f"{name}: {text.lstrip('!').replace(',', '-') or 'yes'}"
        raise SpecError(what, field=at, need=need, have=text[:80], hint=hint)
    return text


def _devices(specs: Iterable[DeviceSpec], at: str, found: Findings) -> tuple[Device, ...]:
    made: list[Device] = []
    for place, spec in enumerate(specs):
        field = f"{at}[{place}]"
        found.get(None, check_range, spec.count, 1, MAX_DEVICES, f"{field}.count")
        device = _device(spec, field, found)
        count = spec.count if 1 <= spec.count <= MAX_DEVICES else 1
        made += [msgspec.structs.replace(device, index=len(made) + more) for more in range(count)]
    if len(made) > MAX_DEVICES:
        need, have = f"at most {MAX_DEVICES}", str(len(made))
        found.add(SpecError("the node has too many devices", code="E103", field=at, need=need, have=have))
    return tuple(made)


def _device(spec: DeviceSpec, at: str, found: Findings) -> Device:
    known = figures_of(spec, at, found)
    models = models_named(spec.model, known.get("memory", 0))
    if len(models) > 1:
        names = [entry.name for entry in models]
        need, hint = " or ".join(names), f"model: {names[-1]}"
        what = "several models have this name"
        found.add(SpecError(what, field=f"{at}.model", have=spec.model, need=need, hint=hint))
    device = with_figures(device_of(spec.model, 0), {"rates": {}} | known, "declared")
    if not device.memory and device.kind != "cpu":
        error = SpecError(
            "the catalogue does not know the memory of this device",
            field=f"{at}.memory",
            have=spec.model or "no model",
            hint=near(spec.model, [entry.name for entry in CATALOGUE if entry.memory]) or "memory: 80GB",
        )
        found.add(error, f"{at}.model", f"{at}.kind", f"{at}.type")
    return device


def figures_of(spec: DeviceSpec, at: str, found: Findings) -> dict[str, Any]:
    """Return the declared fields of `Device`; a rate of 0 means that the device lacks the precision."""
    if spec.kind is not None and spec.type is not None:
        what = "`kind` and `type` are two spellings of one field"
        found.add(SpecError(what, field=f"{at}.type", hint="drop `type`"))
    texts = {"model": spec.model, "kind": spec.kind or spec.type or "", "backend": spec.backend or ""}
    for name, text in texts.items():
        found.get(None, check_text, text, f"{at}.{name}", most=MAX_TEXT)
        if "@" in text:
            found.add(SpecError("the text may not contain an `@`", code="E107", field=f"{at}.{name}", have=text[:80]))
    for place, op in enumerate(spec.supported_ops or ()):
        found.get(None, check_text, op, f"{at}.supported_ops[{place}]", most=MAX_TEXT)
    known: dict[str, Any] = {}
    if spec.socket is not None:
        found.get(None, check_range, spec.socket, 0, MAX_DEVICES, f"{at}.socket")
        known["socket"] = spec.socket
    if spec.memory is not None:
        known["memory"] = found.get(0, parse_or_raise, parse_bytes, spec.memory, f"{at}.memory", MAX_BYTES)
    known |= {name: texts[name].lower() for name in ("kind", "backend") if texts[name]}
    if spec.bandwidth is not None:
        known["bandwidth"] = found.get(0, _bytes_rate, spec.bandwidth, f"{at}.bandwidth")
    if spec.supported_ops is not None:
        known["ops"] = tuple(dict.fromkeys(spec.supported_ops))
    if spec.power is not None:
        known["power"] = found.get(0, parse_or_raise, _parse_power, spec.power, f"{at}.power", _MAX_RATE)
    if spec.price is not None:
        known["price"] = found.get(0, parse_or_raise, parse_price, spec.price, f"{at}.price", _MAX_RATE)
    if spec.share_cap is not None:
        known["share_cap"] = found.get(0, parse_or_raise, parse_share, spec.share_cap, f"{at}.share_cap", WHOLE)
    rates = _declared_rates(spec.compute_power, spec.rates, at, found)
    return known | {"rates": rates} if rates else known


def processor_figures(spec: ProcessorSpec | None, at: str, found: Findings) -> dict[str, Any]:
    """Return the declared fields of `Node` for its CPUs."""
    if spec is None:
        return {}
    found.get(None, check_text, spec.model, f"{at}.model", most=MAX_TEXT)
    known: dict[str, Any] = {"model": spec.model} if spec.model else {}
    if rates := _declared_rates(spec.compute_power, spec.rates, at, found):
        known["rates"] = rates
    if spec.bandwidth is not None:
        known["bandwidth"] = found.get(0, _bytes_rate, spec.bandwidth, f"{at}.bandwidth")
    return known


def _declared_rates(
    compute_power: Quantity | None, rates: Mapping[str, Quantity], at: str, found: Findings
) -> dict[str, int]:
    """Return rates by precision; `compute_power` is the fp32 rate."""
    made: dict[str, int] = {}
    if compute_power is not None:
        field = f"{at}.compute_power"
        if "fp32" in rates:
            found.add(SpecError("`compute_power` is the rate in fp32", field=field, hint="drop one of them"))
        made["fp32"] = found.get(0, parse_or_raise, parse_flops, compute_power, field, _MAX_RATE)
    for name, value in rates.items():
        field = f"{at}.rates.{name}"
        if name not in PRECISIONS:
            need, hint = ", ".join(PRECISIONS), near(name, PRECISIONS)
            found.add(SpecError(f"`{name}` is not a precision", field=field, have=name, need=need, hint=hint))
        made[name] = found.get(0, parse_or_raise, parse_flops, value, field, _MAX_RATE)
    return made


def _links(given: LinkSpec | list[LinkSpec] | None, devices: int, at: str, found: Findings) -> tuple[Link, ...]:
    if given is None:
        return ()
    if isinstance(given, LinkSpec):
        if given.a is not None or given.b is not None:
            found.add(SpecError("put a single link into a list", field=at, hint="links: [{a: 0, b: 1}]"))
        link = _link(given, at, found)
        return tuple(msgspec.structs.replace(link, a=a, b=b) for a, b in combinations(range(devices), 2))
    made: dict[tuple[int, int], Link] = {}
    for place, spec in enumerate(given):
        field = f"{at}[{place}]"
        link = _link(spec, field, found)
        for name, end in (("a", spec.a), ("b", spec.b)):
            if end is None or not 0 <= end < devices:
                need = f"0 to {devices - 1}" if devices else "a node with devices"
                have = "nothing" if end is None else shown(end)
                what = "a link joins two devices of its node"
                error = SpecError(what, field=f"{field}.{name}", need=need, have=have)
                found.add(error, f"{at.removesuffix('.links')}.devices")
        if spec.a is None or spec.b is None:
            continue
        pair = (min(spec.a, spec.b), max(spec.a, spec.b))
        if pair[0] == pair[1] or pair in made:
            what = "a device has no link to itself" if pair[0] == pair[1] else "the two devices have a link already"
            found.add(SpecError(what, code="E107", field=field, have=f"{shown(pair[0])} and {shown(pair[1])}"))
        made[pair] = msgspec.structs.replace(link, a=pair[0], b=pair[1])
    return tuple(made.values())


def _link(spec: LinkSpec, at: str, found: Findings) -> Link:
    found.get(None, check_text, spec.kind, f"{at}.kind", most=MAX_TEXT)
    return Link(
        a=0,
        b=0,
        kind=spec.kind,
        bandwidth=found.get(0, parse_or_raise, parse_rate, spec.bandwidth, f"{at}.bandwidth", _MAX_RATE),
        latency=found.get(0, parse_or_raise, parse_duration, spec.latency, f"{at}.latency", HOUR),
    )


def _throughputs(table: Mapping[str, Mapping[str, float]], nodes: Iterable[Node], found: Findings) -> dict[str, float]:
    """Return throughputs by `class@model`. A name that matches several models (`A100`) applies to those that are not
    listed themselves.
    """
    own = {device.model for node in nodes for device in node.devices} | {node.model for node in nodes if node.model}
    made: dict[str, float] = {}
    for kind, row in table.items():
        found.get(None, check_text, kind, f"throughputs.{kind}", most=MAX_TEXT)
        exact: dict[str, float] = {}
        family: dict[str, float] = {}
        for model, value in row.items():
            at = f"throughputs.{kind}.{model}"
            rate = found.get(1.0, _throughput, value, at)
            names = [model] if model in own else [entry.name for entry in models_named(model)]
            if not names:
                known = sorted(own - {""} | {entry.name for entry in CATALOGUE})
                hint = near(model, known) or f"known: {', '.join(known)}"
                what = "no device of this model is declared, and the catalogue has none"
                found.add(SpecError(what, code="E105", field=at, have=model, hint=hint))
            if len(names) == 1 and names[0] in exact:
                found.add(SpecError("a model is named twice", code="E107", field=at, have=names[0]))
            (exact if len(names) == 1 else family).update(dict.fromkeys(names, rate))
        made |= {f"{kind}@{name}": rate for name, rate in (family | exact).items()}
    return made


def _throughput(value: float, field: str) -> float:
    if not (0 < value < _MAX_RATE and math.isfinite(value)):
        raise SpecError("the number is out of range", code="E103", field=field, need="more than 0", have=shown(value))
    return value


def _some(parse: Callable[[Any], int], value: Quantity, field: str, limit: int) -> int:
    """Parse a quantity that must not be 0."""
    amount = parse_or_raise(parse, value, field, limit)
    if not amount:
        raise SpecError("the value must be above 0", code="E103", field=field, need="more than 0", have=shown(value))
    return amount


def _bytes_rate(value: Quantity, field: str) -> int:
    """Parse bytes per second; a bare number is bytes per second too."""
    bits = parse_or_raise(parse_rate, value, field, _MAX_RATE)
    return bits // 8 if isinstance(value, str) else bits


def check_range(value: int, least: int, most: int, field: str) -> None:
    if not least <= value <= most:
        raise SpecError(
            "the number is out of range", code="E103", field=field, need=f"{least} to {most}", have=shown(value)
        )


def _parse_power(value: Quantity) -> int:
    """Parse milliwatts from `700W`, `0.7kW`; a bare number is watts."""
    match = _POWER.fullmatch(str(value))
    if match is None:
        raise ValueError("a power such as `700W`")
    return int(Decimal(match[1]) * {"m": 1, "": 1000, "k": 1_000_000}[match[2]])


def parse_price(value: Quantity) -> int:
    """Parse micro-dollars per hour from `4.0` or `$4.0/h`."""
    match = _PRICE.fullmatch(str(value))
    if match is None:
        raise ValueError("dollars per hour, such as `4.0`")
    return int(Decimal(match[1]) * 1_000_000)
