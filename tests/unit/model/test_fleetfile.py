"""Fleets as people write them: what they become, and what an error says."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.drivers.yamlfile import load_yaml, parse_yaml
from poise.errors import ErrorRecord, SpecError
from poise.model.fleetfile import MAX_LOCAL, MAX_NODES, DeclaredFleet, check_local, compile_fleet
from poise.model.resources import Link, Node

EXAMPLE = Path(__file__).parents[3] / "examples" / "fleet.yaml"
PLAIN = {"cpu": 8, "memory": "32GiB"}


def fleet(text: str) -> DeclaredFleet:
    return compile_fleet(parse_yaml(text, "fleet.yaml"))


def node(**fields: Any) -> Node:
    return compile_fleet({"kind": "fleet", "nodes": {"n": {**PLAIN, **fields}}}).nodes[0]


def refused(document: Any) -> ErrorRecord:
    with pytest.raises(SpecError) as caught:
        compile_fleet(document)
    assert caught.value.record.hint, "an error says what to do"
    return caught.value.record


def refused_node(**fields: Any) -> ErrorRecord:
    return refused({"kind": "fleet", "nodes": {"n": {**PLAIN, **fields}}})


def refused_device(**fields: Any) -> ErrorRecord:
    return refused_node(devices=[{"model": "H100"}, fields])


def test_a_fleet_of_a_few_lines() -> None:
    made = fleet("""
        kind: fleet
        name: lab
        nodes:
          big: {count: 2, cpu: 32, memory: 256GiB, devices: [{model: H100, count: 8}], links: {bandwidth: 900GB/s}}
          small: {cpu: 0.5, memory: 32GB, network: 25Gbit, latency: 50us, zone: z1, rack: r1, labels: {team: 7}}
        throughputs:
          resnet: {H100: 40, cpu: 0.5}
    """)
    assert made.name == "lab"
    assert [one.name for one in made.nodes] == ["big-0", "big-1", "small"]
    big, other, small = made.nodes
    assert (big.cpu, big.memory) == (32_000, 256 * 2**30)
    assert [device.index for device in big.devices] == list(range(8))
    assert {device.model for device in big.devices} == {"H100"}
    assert len(big.links) == 28
    assert big.links[0] == Link(a=0, b=1, kind="nvlink", bandwidth=7_200_000_000_000)
    assert other.devices == big.devices
    assert (small.cpu, small.memory, small.network, small.latency) == (500, 32 * 10**9, 25 * 10**9, 50_000)
    assert (small.zone, small.rack) == ("z1", "r1")
    assert small.labels == {"team": "7", "declared": "true"}
    assert made.throughputs == {"resnet@H100": 40.0, "resnet@cpu": 0.5}


def test_the_example_is_a_fleet_that_can_be_started() -> None:
    made = compile_fleet(load_yaml(EXAMPLE))
    check_local(made)
    assert [one.name for one in made.nodes] == ["hopper-0", "hopper-1", "ampere", "npu", "edge", "cpu"]
    assert made.throughputs["resnet@A100-80"] == 22.0


def test_exporters_are_named_as_prometheus_names_them() -> None:
    made = fleet("""
        kind: fleet
        nodes:
          big: {count: 2, cpu: 4, memory: 8GB, exporters: ["{node}:9100", "https://{node}.lab/dcgm"]}
          small: {cpu: 4, memory: 8GB}
    """)
    assert made.exporters == {
        f"big-{number}": (f"http://big-{number}:9100/metrics", f"https://big-{number}.lab/dcgm") for number in (0, 1)
    }


@pytest.mark.parametrize("exporters", [["file:///etc/passwd"], [""], ["two words"], ["h:1"] * 9, ["x" * 200], "h:1"])
def test_what_is_no_exporter_is_refused(exporters: Any) -> None:
    assert refused_node(exporters=exporters).field.startswith("nodes.n.exporters")


def test_a_device_declared_by_hand() -> None:
    device = node(
        devices=[
            {
                "type": "GPU",
                "compute_power": "20 TFLOPS",
                "memory": "80 GB",
                "bandwidth": "900 GB/s",
                "supported_ops": ["matmul", "conv2d"],
                "power": "0.7kW",
                "price": "$4.5/h",
                "socket": 1,
                "backend": "rocm",
            }
        ]
    ).devices[0]
    assert (device.kind, device.backend, device.socket) == ("gpu", "rocm", 1)
    assert device.rates == {"fp32": 20 * 10**12}
    assert (device.memory, device.bandwidth) == (80 * 10**9, 900 * 10**9)
    assert device.ops == ("matmul", "conv2d")
    assert (device.power, device.price) == (700_000, 4_500_000)


def test_what_the_file_says_goes_before_the_catalogue() -> None:
    (device,) = node(devices=[{"model": "H100", "rates": {"fp16": "500 TFLOPS", "fp8": 0}, "memory": "40GB"}]).devices
    assert (device.model, device.memory) == ("H100", 40 * 10**9)
    assert device.rates["fp16"] == 500 * 10**12
    assert "fp8" not in device.rates, "a rate of 0 takes a precision away"
    assert device.rates["fp32"] == 67 * 10**12


def test_devices_of_a_node_are_numbered_through() -> None:
    devices = node(devices=[{"model": "T4", "count": 2}, {"model": "L4"}]).devices
    assert [(device.index, device.model) for device in devices] == [(0, "T4"), (1, "T4"), (2, "L4")]


def test_links_one_by_one() -> None:
    links = node(devices=[{"model": "H100", "count": 3}], links=[{"a": 2, "b": 0, "latency": "2us"}]).links
    assert links == (Link(a=0, b=2, latency=2000),)


def test_a_family_in_the_throughput_table_is_for_all_its_models() -> None:
    made = compile_fleet(
        {"kind": "fleet", "nodes": {"n": PLAIN}, "throughputs": {"bert": {"A100": 20, "A100-80": 25, "H100": 40}}}
    )
    assert made.throughputs == {"bert@A100-40": 20.0, "bert@A100-80": 25.0, "bert@H100": 40.0}


def test_processors() -> None:
    made = node(processor={"model": "EPYC", "compute_power": "2 TFLOPS", "bandwidth": "200GB/s"})
    assert (made.model, made.rates, made.bandwidth) == ("EPYC", {"fp32": 2 * 10**12}, 200 * 10**9)


def test_another_file_is_no_fleet() -> None:
    assert refused({"run": "echo"}).field == "run"
    assert refused({"kind": "job", "nodes": {}}).hint == "kind: fleet"
    assert refused({"kind": "fleet"}).field == "nodes"
    assert refused(["kind"]).code == "E102"


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"cpu": 0}, "nodes.n.cpu", "E103"),
        ({"cpu": "lots"}, "nodes.n.cpu", "E103"),
        ({"memory": "1 light year"}, "nodes.n.memory", "E103"),
        ({"memory": 10**30}, "nodes.n.memory", "E103"),
        ({"count": 0}, "nodes.n.count", "E103"),
        ({"count": MAX_NODES + 1}, "nodes.n.count", "E103"),
        ({"network": "fast"}, "nodes.n.network", "E103"),
        ({"latency": "2h"}, "nodes.n.latency", "E103"),
        ({"labels": {"a": [1]}}, "nodes.n.labels.a", "E102"),
        ({"labels": {"": 1}}, "nodes.n.labels.", "E107"),
        ({"labels": {"team": "a,b"}}, "nodes.n.labels.team", "E102"),
        ({"labels": {"team": "!a"}}, "nodes.n.labels.team", "E102"),
        ({"zone": "z" * 1000}, "nodes.n.zone", "E103"),
        ({"devices": {"model": "H100"}}, "nodes.n.devices", "E102"),
        ({"devices": [{"model": "H100", "count": 65}]}, "nodes.n.devices[0].count", "E103"),
        ({"devices": [{"model": "H100", "count": 40}, {"model": "H100", "count": 40}]}, "nodes.n.devices", "E103"),
        ({"links": {"a": 0}}, "nodes.n.links", "E102"),
        ({"links": [{"a": 0, "b": 1}]}, "nodes.n.links[0].a", "E102"),
        ({"devices": [{"model": "T4"}], "links": [{"a": 0, "b": 0}]}, "nodes.n.links[0]", "E107"),
        ({"processor": {"rates": {"fp12": 1}}}, "nodes.n.processor.rates.fp12", "E102"),
    ],
)
def test_what_is_wrong_with_a_node_is_named(fields: dict[str, Any], field: str, code: str) -> None:
    record = refused_node(**fields)
    assert (record.field, record.code) == (field, code)


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"model": "H100", "kind": "gpu", "type": "GPU"}, "type", "E102"),
        ({"model": "A100"}, "model", "E102"),
        ({"model": "Frob"}, "memory", "E102"),
        ({"memory": "8GB", "compute_power": "20 bananas"}, "compute_power", "E103"),
        ({"memory": "8GB", "compute_power": 1, "rates": {"fp32": 1}}, "compute_power", "E102"),
        ({"model": "H100", "power": "700 horses"}, "power", "E103"),
        ({"model": "H100", "price": "free"}, "price", "E103"),
        ({"model": "H100", "price": True}, "price", "E102"),
        ({"model": "H100", "socket": -1}, "socket", "E103"),
        ({"model": "a@b", "memory": "8GB"}, "model", "E107"),
    ],
)
def test_what_is_wrong_with_a_device_is_named(fields: dict[str, Any], field: str, code: str) -> None:
    record = refused_device(**fields)
    assert (record.field, record.code) == (f"nodes.n.devices[1].{field}", code)


def test_near_misses_are_shown() -> None:
    assert refused({"kind": "fleet", "node": {}}).hint == "did you mean `nodes`?"
    assert refused_node(devcies=[]).hint == "did you mean `devices`?"
    assert refused_device(model="H100", memroy="8GB").hint == "did you mean `memory`?"
    assert refused_device(model="H1000").hint == "did you mean `H100`?"
    assert refused_device(model="A100").hint == "model: A100-80"
    assert refused_device(memory="8GB", rates={"fb16": 1}).need.startswith("fp64, fp32")


def test_a_missing_field_says_what_could_stand_there() -> None:
    record = refused({"kind": "fleet", "nodes": {"n": {"cpu": 8}}})
    assert "memory" in str(record.message)
    assert record.field == "nodes.n.memory"


@pytest.mark.parametrize(
    ("table", "field", "code"),
    [
        ({"a": {"Frob": 1.0}}, "throughputs.a.Frob", "E105"),
        ({"a": {"H100": 0}}, "throughputs.a.H100", "E103"),
        ({"a": {"H100": float("nan")}}, "throughputs.a.H100", "E103"),
        ({"a": {"H100": "fast"}}, "throughputs.a.H100", "E102"),
        ({"a": {"H100": 1, "NVIDIA H100": 2}}, "throughputs.a.NVIDIA H100", "E107"),
        ({"a": 3}, "throughputs.a", "E102"),
    ],
)
def test_what_is_wrong_with_the_throughput_table_is_named(table: Any, field: str, code: str) -> None:
    record = refused({"kind": "fleet", "nodes": {"n": PLAIN}, "throughputs": table})
    assert (record.field, record.code) == (field, code)


def test_names_are_unique_and_fleets_bounded() -> None:
    two = {"n": {**PLAIN, "count": 2}, "n-1": PLAIN}
    assert refused({"kind": "fleet", "nodes": two}).have == "n-1"
    many = {"a": {**PLAIN, "count": MAX_NODES}, "b": PLAIN}
    assert refused({"kind": "fleet", "nodes": many}).have == str(MAX_NODES + 1)
    assert refused({"kind": "fleet", "nodes": {"bad name": PLAIN}}).code == "E107"


def test_a_large_fleet_compiles_but_does_not_start_here() -> None:
    made = compile_fleet({"kind": "fleet", "nodes": {"n": {**PLAIN, "count": MAX_LOCAL + 1}}})
    with pytest.raises(SpecError) as caught:
        check_local(made)
    assert caught.value.record.have == str(MAX_LOCAL + 1)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["n", "cpu", "memory", "count", "devices", "model", "links", "a", "b", "labels", "rates"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(nodes=anything, throughputs=anything)
def test_whatever_is_written_compiles_or_is_refused_with_a_hint(nodes: Any, throughputs: Any) -> None:
    try:
        compile_fleet({"kind": "fleet", "nodes": nodes, "throughputs": throughputs})
    except SpecError as error:
        assert error.record.hint
