"""Pods that claim devices of drivers (`resource.k8s.io/v1`), on recorded objects and the small API server: no cluster
here serves these kinds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivers.kubernetes_api import Object, kubernetes_api, node
from drivers.kubernetes_scheduled import Scheduled
from drivers.kubernetes_world import World, waits
from poise_kubernetes.claims import FINALIZER
from poise_kubernetes.selecting import Described, Unsupported, predicate

GPU = "gpu.nvidia.com"
MODELS = {"a": "NVIDIA A100-SXM4-40GB", "b": "NVIDIA H100 80GB HBM3"}
MEMORY = {"a": "40Gi", "b": "80Gi"}


def _slice(where: str, devices: int, **fields: Any) -> Object:
    """A slice as the driver of NVIDIA publishes it, shortened."""
    found = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "productName": {"string": MODELS[where]},
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{where}-{number}"},
                "driverVersion": {"version": "570.86.15"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci{number // 2}"},
            },
            "capacity": {"memory": {"value": MEMORY[where]}},
        }
        for number in range(devices)
    ]
    pool = {"name": where, "generation": 1, "resourceSliceCount": 1, **fields}
    return {"driver": GPU, "pool": pool, "nodeName": where, "devices": found}


@pytest.fixture
def world() -> Iterator[Scheduled]:
    made = Scheduled(nodes={"a": node(cpu="16"), "b": node(cpu="16")})
    for name in "ab":
        made.api.put("resourceslices", f"{name}-{GPU}", spec=_slice(name, 4))
    selector = {"cel": {"expression": f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'gpu'"}}
    config = [{"opaque": {"driver": GPU, "parameters": {"sharing": "none"}}}]
    made.api.put("deviceclasses", GPU, spec={"selectors": [selector], "config": config})
    yield made
    made.close()


def _spec(count: int = 1, *expressions: str, **more: Any) -> Object:
    exactly = {"deviceClassName": GPU, "allocationMode": "ExactCount", "count": count}
    exactly["selectors"] = [{"cel": {"expression": one}} for one in expressions]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], **more}}


def _pod(world: Scheduled, name: str, spec: Object, **fields: Any) -> None:
    """A Pod with a claim from a template: the controller of claims creates it, and says so in the Pod."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    made = world.pod(name, resourceClaims=claims, **fields)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["metadata"]["uid"], "controller": True}
    world.api.put("resourceclaims", f"{name}-gpu", "ml", spec=spec)
    world.api.patch("resourceclaims", f"{name}-gpu", {"metadata": {"ownerReferences": [owner]}}, "ml")
    told = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
    world.api.patch("pods", name, {"status": {"resourceClaimStatuses": told}}, "ml")


def _devices(world: Scheduled, claim: str) -> list[str]:
    status = world.api.get("resourceclaims", claim, "ml").get("status", {})
    return [of["device"] for of in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]]


def test_a_pod_goes_where_its_devices_are_and_its_claim_says_which(world: Scheduled) -> None:
    _pod(world, "large", _spec(2, f'device.capacity["{GPU}"].memory.compareTo(quantity("64Gi")) >= 0'))
    world.run(5)
    assert world.on() == {"large": "b"}
    claim = world.api.get("resourceclaims", "large-gpu", "ml")
    uid = world.api.get("pods", "large", "ml")["metadata"]["uid"]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "large", "uid": uid}]
    allocation = claim["status"]["allocation"]
    result = {"request": "gpu", "driver": GPU, "pool": "b"}
    assert allocation["devices"]["results"] == [{**result, "device": f"gpu-{number}"} for number in (0, 1)]
    assert [of["source"] for of in allocation["devices"]["config"]] == ["FromClass"]
    [term] = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
    assert world.home.host is not None
    devices = {name: of.node.devices for name, of in world.home.host.ledger.nodes.items()}
    assert {of.model for of in devices["a"]} == {"A100-40"}
    assert {of.memory for of in devices["b"]} == {80 * 2**30}


def test_no_device_is_given_twice_and_a_gang_gets_all_or_nothing(world: Scheduled) -> None:
    label = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "4"}
    for number in range(4):
        _pod(world, f"g-{number}", _spec(2), labels=label)
    world.run(5)
    _pod(world, "more", _spec(1))
    world.run(5)
    assert set(world.on()) == {"g-0", "g-1", "g-2", "g-3"}
    given = [(world.on()[f"g-{number}"], of) for number in range(4) for of in _devices(world, f"g-{number}-gpu")]
    assert len(set(given)) == 8
    for number in range(4):
        world.end(f"g-{number}")
        world.api.remove("resourceclaims", f"g-{number}-gpu", "ml")
    world.run(5)
    assert "more" in world.on()


def test_devices_that_another_scheduler_has_given_away_are_not_offered(world: Scheduled) -> None:
    results = [{"request": "x", "driver": GPU, "pool": "b", "device": f"gpu-{number}"} for number in range(3)]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "uid": "x"}]}
    world.api.put("resourceclaims", "theirs", "team", spec=_spec(3), status=status)
    only = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H100')"
    _pod(world, "two", _spec(2, only))
    world.run(5)
    assert world.on() == {}
    assert world.placer.refusals("j1") == [
        "a: devices for request `gpu`: 2 requested, 0 free",
        "b: devices for request `gpu`: 2 requested, 1 free",
    ]
    _pod(world, "one", _spec(1, only))
    world.run(5)
    assert _devices(world, "one-gpu") == ["gpu-3"]
    world.api.remove("resourceclaims", "theirs", "team")
    world.run(5)
    assert len(_devices(world, "two-gpu")) == 2


def test_pods_share_a_claim_that_they_name(world: Scheduled) -> None:
    world.api.put("resourceclaims", "shared", "ml", spec=_spec(4))
    for number in range(3):
        world.pod(f"p{number}", resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}])
    world.run(10)
    assert len(world.on()) == 3
    assert len(set(world.on().values())) == 1, "they are where its devices are"
    assert len(world.api.get("resourceclaims", "shared", "ml")["status"]["reservedFor"]) == 3


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (_spec(9), ""),
        (_spec(1, "device.attributes['gpu.nvidia.com'].productName == 'X'"), "no device in the cluster matches"),
        (_spec(1, "device.frobnicate()"), "`frobnicate` is not supported"),
        ({"devices": {"requests": [{"name": "gpu", "firstAvailable": []}]}}, "only a number of whole devices"),
        (_spec(1, constraints=[{"distinctAttribute": "x/y"}]), "only constraints with `matchAttribute`"),
    ],
)
def test_a_claim_that_cannot_be_met_waits_with_a_reason(spec: Object, why: str, world: Scheduled) -> None:
    _pod(world, "one", spec)
    world.run(5)
    assert world.on() == {}
    [waiting] = world.placer.waiting()
    assert why in waiting.why
    assert world.api.get("resourceclaims", "one-gpu", "ml").get("status") is None


def test_a_claim_with_very_many_combinations_does_not_stop_the_scheduler(world: Scheduled) -> None:
    world.api.patch("resourceslices", f"b-{GPU}", {"spec": _slice("b", 64)})
    exactly = {"deviceClassName": GPU, "allocationMode": "ExactCount", "selectors": []}
    requests = [{"name": name, "exactly": {**exactly, "count": count}} for name, count in (("many", 16), ("one", 1))]
    constraint = {"requests": ["one"], "matchAttribute": f"{GPU}/none"}
    _pod(world, "hard", {"devices": {"requests": requests, "constraints": [constraint]}})
    _pod(world, "huge", _spec(33))
    _pod(world, "easy", _spec(1))
    world.run(5)
    assert set(world.on()) == {"easy"}
    assert any("33 devices, but a claim can have at most 32" in of.why for of in world.placer.waiting())


def test_a_pod_waits_for_its_claim(world: Scheduled) -> None:
    world.pod("one", resourceClaims=[{"name": "gpu", "resourceClaimName": "later"}])
    world.run(3)
    assert [of.why for of in world.placer.waiting()] == ["its ResourceClaim `later` does not exist yet"]
    world.api.put("resourceclaims", "later", "ml", spec=_spec(1))
    world.run(5)
    assert "one" in world.on()


def test_devices_of_one_claim_share_what_its_constraint_names(world: Scheduled) -> None:
    _pod(world, "first", _spec(1))
    world.run(3)
    constraints = [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["gpu"]}]
    where = world.on()["first"]
    select = {"nodeSelector": {"kubernetes.io/hostname": where}}
    world.api.patch("nodes", where, {"metadata": {"labels": {"kubernetes.io/hostname": where}}})
    _pod(world, "pair", _spec(2, constraints=constraints), **select)
    world.run(5)
    assert _devices(world, "pair-gpu") == ["gpu-2", "gpu-3"]


def test_writes_that_fail_are_repeated_and_give_no_device_twice(world: Scheduled) -> None:
    lost = iter(["lost", "refused", "lost"] * 5)
    world.fault = lambda what: next(lost, "")
    for number in range(8):
        _pod(world, f"p{number}", _spec(1))
    world.run(10)
    world.kill_placer()
    world.run(30)
    given = [(world.on()[f"p{number}"], of) for number in range(8) for of in _devices(world, f"p{number}-gpu")]
    assert len(set(given)) == 8
    assert max(world.bindings.values()) == 1


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("device.driver == 'd' && !(device.driver in ['x', 'y'])", True),
        ("device.attributes['d'].cores > 4 || false", True),
        ("device.attributes['d'].none == 1", False),
        ("'d' in device.attributes && device.capacity['d'].memory.isLessThan(quantity('1Gi'))", False),
        ("device.attributes['d'].version.compareTo(semver('1.10.0')) > 0", True),
        ("device.attributes['d'].name.contains('A\\'1')", True),
        ("device.driver", False),
    ],
)
def test_expressions_select_devices(expression: str, holds: bool) -> None:
    values = {"d": {"cores": 8, "version": (1, 11, 0), "name": "A'100"}}
    assert predicate(expression)(Described("d", values, {"d": {"memory": 2**31}})) is holds


@pytest.mark.parametrize(
    "expression",
    [
        "||".join(["false"] * 2000),
        "&&".join(["true"] * 2000) + "&& false",
        "device.driver" + ".compareTo('a')" * 2000,
        f"semver('{'9' * 5000}') == 1",
        "quantity('1e999999') == 1",
        "quantity('1e9999999') == 1",
    ],
    ids=["or", "and", "methods", "version", "quantity", "larger quantity"],
)
def test_an_expression_made_to_break_the_scheduler_selects_nothing(expression: str) -> None:
    assert predicate(expression)(Described("d", {}, {})) is False


@pytest.mark.parametrize(
    "expression", ["", "device.", "x && y", "device.driver ==", "(" * 5000, "a?b:c", "device.driver 1", "9" * 5000]
)
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(Unsupported):
        predicate(expression)


@pytest.mark.parametrize("held", [0, 3])
def test_a_pilot_gets_devices_that_a_driver_publishes_as_an_extended_resource(held: int, tmp_path: Path) -> None:
    """Where a class of devices stands for an extended resource (1.37), a Pod requests it as always."""
    results = [{"request": "x", "driver": GPU, "pool": "b", "device": f"gpu-{number}"} for number in range(held)]
    with kubernetes_api() as api:
        for name in "ab":
            api.put("nodes", name, **node(cpu="16"))
        api.put("resourceslices", "b", spec=_slice("b", 4))
        api.put("deviceclasses", GPU, spec={"extendedResourceName": "nvidia.com/gpu"})
        status = {"allocation": {"devices": {"results": results}}}
        api.put("resourceclaims", "theirs", "team", spec=_spec(max(1, held)), status=status)
        world = World(api, tmp_path)
        try:
            world.want(waits(gpus=2))
            pods = world.pods()
        finally:
            world.close()
    if held:
        assert not pods, "one of four is free"
    else:
        [pod] = pods
        assert "'values': ['b']" in str(pod["spec"]["affinity"])
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
