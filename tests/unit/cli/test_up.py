"""`poise up` where it is refused before anything is started, and `poise down`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from poise.cli import up
from poise.cli.main import main
from poise.client import Client
from poise.config import Cluster, Home
from poise.decoding import json_decoder
from poise.drivers.clusters import keep_clusters
from poise.drivers.lock import take_lock
from poise.testing import World
from unit.control.desk import Desk


def test_another_place_to_listen_for_the_nodes_of_a_ray_cluster_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    home = Home(tmp_path)
    keep_clusters(home, Cluster(name="ray", address="head:6379", listen="0.0.0.0:7718"))
    kept = (home.root / "ray" / "cluster.json").read_bytes()
    with take_lock(home.lock, "control plane"):
        assert main(["up", "--listen", "0.0.0.0:7719", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["need"], error["have"]) == ("--listen", "0.0.0.0:7719", "0.0.0.0:7718")
    assert (home.root / "ray" / "cluster.json").read_bytes() == kept


def test_a_policy_whose_package_is_missing_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert main(["up", "--policy", "max-min", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["have"]) == ("--policy", "no highspy")
    assert error["hint"].startswith("`pip install 'poise-scheduler[lp]'`")
    assert not list(tmp_path.iterdir())


def test_down_names_gateways_that_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    services = Home(tmp_path).services
    services.mkdir()
    for mark in ("killed", "running"):
        (services / f"{mark}.gateway").write_text("{}")
    with take_lock(services / "killed.lock", "gateway"):
        pass
    with take_lock(services / "running.lock", "gateway"):
        assert main(["down"]) == 0
    assert f"a gateway (`poise serve`) continues; `kill {os.getpid()}` ends it" in capsys.readouterr().err
    assert main(["down"]) == 0
    assert "gateway" not in capsys.readouterr().err


def test_down_tells_what_it_cancelled_and_still_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else somebody whose work does not end waits for nobody knows what."""
    world = World().nodes(2, cpu=1).job("a", cpu=1).job("b", cpu=1).job("c", cpu=1).round().start("a", "b")
    away = [*world.where("a"), *world.where("b")]
    for name in away:
        world.disconnect(name)
    desk, said = Desk(world), list[str]()

    def call(_: Client, method: str, path: str, answer: Any, body: Any = None, timeout: float = 0) -> Any:
        return json_decoder(answer).decode(desk.call(method, path, body).body)

    def hear(message: str) -> None:
        said.append(message)
        world.connect(away[len(said) - 1])

    monkeypatch.setattr(Client, "_call", call)
    monkeypatch.setattr(up, "say", hear)
    monkeypatch.setattr(up, "SAY_EVERY", 0.0)
    up._cancel_all(Client(Home(desk.home.root)))
    assert said == [
        "2 jobs have not ended yet (j1, j2); `poise down --leave` stops Poise without waiting for them",
        "job j2 has not ended yet; `poise down --leave` stops Poise without waiting for them",
    ]
    assert [world.status(name) for name in "abc"] == ["cancelled"] * 3
