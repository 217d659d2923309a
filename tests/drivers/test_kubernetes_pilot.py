"""The pilot in a Pod: when it ends its agent."""

import queue
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivers.kubernetes_world import CONTACT
from poise.drivers.devices import Part
from poise_kubernetes import pilot
from poise_kubernetes.manifests import Orders, digest
from poise_kubernetes.pilot import Pilot


class Agent:
    """An agent whose commands run on."""

    def __init__(self, *told: Any) -> None:
        self.left: list[tuple[float, float]] = []

    def end(self) -> bool:
        return False

    def leave(self, why: str, within: float) -> None:
        self.left.append((time.monotonic(), within))


def test_a_pilot_stops_its_commands_within_the_grace_period_of_its_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    monkeypatch.setattr(pilot, "AgentKeeper", lambda *told: agent)
    monkeypatch.setattr(pilot, "LOOK_SECONDS", 0.01)
    orders = Orders(node="a", contact=digest(CONTACT), grace=1)
    for name, what in (("orders", orders), ("contact", CONTACT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(msgspec.json.encode(what))
    (tmp_path / "node").mkdir()
    part = msgspec.json.encode(Part(cpu=1000, memory=2**30)).decode()
    one, signals = Pilot(tmp_path, {"POISE_PART": part}), queue.SimpleQueue[int]()
    one._look()
    begun = time.monotonic()
    signals.put(signal.SIGTERM)
    one.run(signals)
    [(at, within)] = agent.left
    assert at - begun >= 0.5, "work has half of the period to move"
    assert within <= 0.5, "the Pod is killed after it"
