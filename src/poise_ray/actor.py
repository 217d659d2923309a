"""An actor that keeps an agent on a machine of a Ray cluster, and a task that ends orphaned keepers."""

import os
from pathlib import Path

import ray

from poise.drivers import piloting
from poise.drivers.devices import Part
from poise.ports import Contact

HIDDEN = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables of Ray that commands must not see."""


class AgentKeeper(piloting.AgentKeeper):
    """The actor: one agent, kept alive for as long as the actor is."""

    def __init__(self, home: str, name: str, cpu: float, memory: float, contact: Contact) -> None:
        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        part = Part(cpu=round(cpu * 1000), memory=int(memory), devices=tuple(map(str, devices)))
        super().__init__(_root_of(home, name), name, part, contact, HIDDEN)


def dismiss(home: str, name: str) -> bool:
    """End the keepers of a node that has no agent; return whether none is left."""
    return piloting.dismiss(_root_of(home, name), name)


def _root_of(home: str, name: str) -> Path:
    """Return the folder of a node of this home on its machine."""
    return Path(os.environ.get("POISE_HOME") or "~/.poise").expanduser() / "on-ray" / home / name
