"""Volumes of Pods that Poise places: a Pod goes where its volumes can be mounted, and waits until they can."""

from collections.abc import Iterator

import pytest

from drivers.kubernetes_scheduled import Scheduled
from poise_kubernetes.volumes import SELECTED


@pytest.fixture
def world() -> Iterator[Scheduled]:
    made = Scheduled()
    for name in "ab":
        made.api.patch("nodes", name, {"metadata": {"labels": {"zone": f"zone-{name}"}}})
    yield made
    made.close()


def _waits(world: Scheduled) -> list[str]:
    return [of.why for of in world.placer.waiting()]


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_pod_goes_to_a_node_that_can_mount_its_volume(zone: str, world: Scheduled) -> None:
    volumes = world.claim("data")
    world.provide("data", zone=f"zone-{zone}")
    for number in range(3):
        world.pod(f"p{number}", **volumes)
    world.run(5)
    assert set(world.on().values()) == {zone}
    assert len(world.on()) == 3
    world.pod("more", "2", **volumes)
    world.run(5)
    assert "more" not in world.on()
    other = "ab".replace(zone, "")
    assert f"{other}: its volumes cannot be mounted on the node" in world.placer.refusals("j4")


def test_a_claim_that_waits_for_its_first_pod_is_provisioned_for_the_node_of_the_pod(world: Scheduled) -> None:
    world.pod("one", **world.claim("data"))
    world.run(60)
    assert world.on() == {}, "its claim is not bound yet"
    node = world.api.get("persistentvolumeclaims", "data", "ml")["metadata"]["annotations"][SELECTED]
    assert _waits(world) == [f"it cannot be bound to {node}: its claim `data` is being provisioned for the node"]
    world.provide("data", zone=f"zone-{node}")
    world.run(1)
    assert world.on() == {"one": node}, "it is bound as soon as its claim is"


def test_pods_that_share_a_claim_follow_the_first(world: Scheduled) -> None:
    volumes = world.claim("data")
    world.api.patch("nodes", "a", {"spec": {"unschedulable": True}})
    world.pod("first", **volumes)
    world.run(3)
    world.api.patch("nodes", "a", {"spec": {"unschedulable": False}})
    for number in range(3):
        world.pod(f"p{number}", **volumes)
    world.run(3)
    world.provide("data", zone="zone-b")
    world.run(40)
    assert world.on() == dict.fromkeys(("first", "p0", "p1", "p2"), "b")


def test_a_pod_whose_volume_is_bound_elsewhere_while_it_waits_follows_it(world: Scheduled) -> None:
    for name in "ab":
        world.theirs(f"theirs-{name}", name, "4")
    world.run(2)
    world.pod("one", **world.claim("data"))
    world.run(3)
    world.provide("data", zone="zone-b")
    world.api.remove("pods", "theirs-a", "team")
    world.run(5)
    assert "one" not in world.on()
    world.api.remove("pods", "theirs-b", "team")
    world.run(5)
    assert world.on()["one"] == "b"


def test_a_pod_whose_claim_is_deleted_while_it_waits_says_so(world: Scheduled) -> None:
    volumes = world.claim("data")
    world.provide("data")
    world.pod("one", "64", **volumes)
    world.run(3)
    assert _waits(world) == [""]
    world.api.remove("persistentvolumeclaims", "data", "ml")
    world.run(3)
    assert _waits(world) == ["its PersistentVolumeClaim `data` does not exist"]


def test_a_pod_without_its_volume_waits_and_says_why(world: Scheduled) -> None:
    world.pod("one", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    world.run(5)
    assert _waits(world) == ["its PersistentVolumeClaim `data` does not exist"]
    world.claim("data", "Immediate")
    world.run(5)
    assert _waits(world) == ["its PersistentVolumeClaim `data` is not bound yet"]
    world.provide("data")
    world.run(5)
    assert set(world.on()) == {"one"}


def test_a_claim_that_only_kube_scheduler_can_bind_says_so(world: Scheduled) -> None:
    world.pod("one", **world.claim("data", provisioner="kubernetes.io/no-provisioner"))
    world.run(5)
    assert world.on() == {}
    assert "leave the Pod to kube-scheduler" in _waits(world)[0]


def test_a_claim_is_provisioned_only_where_its_class_allows(world: Scheduled) -> None:
    allowed = [{"matchLabelExpressions": [{"key": "zone", "values": ["zone-b"]}]}]
    for number in range(2):
        world.pod(f"p{number}", **world.claim(f"data-{number}", allowedTopologies=allowed))
    world.run(5)
    for number in range(2):
        world.provide(f"data-{number}", zone="zone-b")
    world.run(5)
    assert world.on() == {"p0": "b", "p1": "b"}


def test_an_ephemeral_volume_is_a_claim_with_the_name_of_the_pod(world: Scheduled) -> None:
    world.pod("one", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    world.run(5)
    assert _waits(world) == ["its PersistentVolumeClaim `one-scratch` does not exist"]
    world.claim("one-scratch")
    world.run(2)
    world.provide("one-scratch")
    world.run(5)
    assert set(world.on()) == {"one"}
