"""Images that nodes should fetch before the work that waits for them starts there."""

from poise.kernel.ledger import Ledger
from poise.model.images import parsed
from poise.model.messages import Fetch
from poise.model.resources import Node, Shape

MOST_UNITS = 64
"""Maximum number of waiting units to check, in the order of class and arrival."""


def to_fetch(ledger: Ledger) -> dict[str, Fetch]:
    """Return one image for each of some nodes: that of the first waiting unit that could run there, and that no such
    node has. The node with the least running work is expected to run it. Images for accounts are not fetched ahead,
    because accounts have their own storage.
    """
    made: dict[str, Fetch] = {}
    coming: set[str] = set()
    up = [state.node for state in ledger.nodes.values() if state.status == "up"]
    for unit in ledger.queues.first(MOST_UNITS):
        image, shape = unit.spec.image, unit.spec.shape
        mark = shape.where.image
        if not mark or mark in coming or not parsed(image).is_remote:
            continue
        able = [node for node in up if _could_run(node, shape)]
        free = [node for node in able if node.name not in made]
        if not free or any(mark in node.images for node in able):
            continue
        best = min(free, key=lambda node: (len(ledger.active.on(node.name)), node.name))
        made[best.name] = Fetch(image=image, tenant=ledger.jobs[unit.job].tenant)
        coming.add(mark)
    return made


def _could_run(node: Node, shape: Shape) -> bool:
    """Return whether a shape may use the node, and fits on it when it is empty."""
    size = node.cpu >= shape.cpu and node.memory >= shape.memory and len(node.devices) >= shape.gpus
    return size and shape.where.allows(node)
