"""Nodes fetch images of waiting work, and work goes where its image is."""

from typing import Any

import msgspec

from poise.kernel.ahead import to_fetch
from poise.model.messages import Fetch
from poise.model.resources import CONTAINERS, image_mark
from poise.testing import World, node

IMAGE = "registry.example.org/team/train:1"


def a_world(**images: tuple[str, ...]) -> World:
    """Nodes of 4 CPUs with podman, each with these images."""
    world = World()
    for name, has in images.items():
        marks = tuple(map(image_mark, has))
        world.join(msgspec.structs.replace(node(name, cpu=4), labels=CONTAINERS, images=marks))
    return world


def submit(world: World, **fields: Any) -> None:
    world.submit({"run": "true", "image": IMAGE} | fields)


def place(world: World) -> str:
    """Where one more piece of work goes."""
    submit(world, name="work", resources={"cpu": 1})
    return world.round().state("work").units[0].tasks[0].node


def test_work_prefers_a_node_that_has_its_image() -> None:
    for order in (("n1", "n2", "n3"), ("n3", "n1", "n2")):
        world = a_world(**{name: (IMAGE,) if name == "n2" else () for name in order})
        assert place(world) == "n2"
    assert place(a_world(n1=(), n2=("registry.example.org/team/train:2",))) == "n1", "another tag is another image"


def test_the_image_of_waiting_work_is_fetched_by_one_node_that_could_run_it() -> None:
    world = a_world(n1=(), n2=())
    small = node("n3", cpu=1)
    world.join(msgspec.structs.replace(small, labels=CONTAINERS))
    world.submit({"run": "true", "resources": {"cpu": 4, "node": "n1"}})
    world.submit({"run": "true", "resources": {"cpu": 4, "node": "n2"}})
    world.round()
    assert to_fetch(world.ledger) == {}
    for _ in range(2):
        submit(world, resources={"cpu": 4})
    world.round()
    assert to_fetch(world.ledger) == {"n1": Fetch(image=IMAGE, tenant="default")}
    world.join(msgspec.structs.replace(world.ledger.nodes["n2"].node, images=(image_mark(IMAGE),)))
    assert to_fetch(world.ledger) == {}, "a node that could run it has it"


def test_an_image_without_a_registry_is_not_fetched() -> None:
    world = a_world(n1=())
    world.submit({"run": "true", "resources": {"cpu": 4}})
    world.round()
    for image in ("python:3.12", "localhost/mine:1"):
        submit(world, image=image, resources={"cpu": 4})
    world.round()
    assert to_fetch(world.ledger) == {}
