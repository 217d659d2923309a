"""`poise up` where it is refused before anything is started, and `poise down`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from drivers.test_plugins import install

from poise.cli import up
from poise.cli.main import main
from poise.client import Client
from poise.client.link import Link
from poise.config import Cluster, Home
from poise.decoding import json_decoder
from poise.drivers import substrates
from poise.drivers.clusters import keep_clusters, kept_clusters
from poise.drivers.lock import take_lock
from poise.drivers.security import ensure_home
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

    def call(_: Link, method: str, path: str, answer: Any, body: Any = None, timeout: float = 0) -> Any:
        return json_decoder(answer).decode(desk.call(method, path, body).body)

    def hear(message: str) -> None:
        said.append(message)
        world.connect(away[len(said) - 1])

    monkeypatch.setattr(Link, "call", call)
    monkeypatch.setattr(up, "say", hear)
    monkeypatch.setattr(up, "SAY_EVERY", 0.0)
    up._cancel_all(Client(Home(desk.home.root)))
    assert said == [
        "2 jobs have not ended yet (j1, j2); `poise down --leave` stops Poise without waiting for them",
        "job j2 has not ended yet; `poise down --leave` stops Poise without waiting for them",
    ]
    assert [world.status(name) for name in "abc"] == ["cancelled"] * 3


@pytest.mark.parametrize(
    ("on", "have"),
    [
        (("processes:1", "local", "processes:2"), "processes:1, processes:2"),
        (("local:here",), "local:here"),
        (("alone:a", "local"), "alone:a"),
    ],
)
def test_clusters_that_cannot_be_combined_are_refused_before_anything_is_kept(
    on: tuple[str, ...],
    have: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    yes, no = "def {0}(argument): return True\n", "def {0}(argument): return False\n"
    offer(tmp_path, monkeypatch, processes=no.format("is_alone"), alone=yes.format("is_alone"))
    assert main(["up", "--json", *(part for one in on for part in ("--on", one))]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["have"]) == ("--on", have)
    assert not (tmp_path / "home").exists()


def test_the_clusters_of_a_home_replace_the_former_ones_and_listen_at_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    grows = "def grows(argument): return True\n"
    offer(tmp_path, monkeypatch, far="", near=grows, other="")
    ensure_home(home)

    def settled(*on: str, listen: str | None = None, gone: bool = False) -> list[tuple[str, str, bool]]:
        up._settle_clusters(home, on, listen, gone=gone)
        return [(one.on, one.listen, one.grows) for one in kept_clusters(home)]

    first = [("far:1", "127.0.0.1:7718", False), ("local", "127.0.0.1:7718", False), ("near", "127.0.0.1:7718", True)]
    assert settled("near", "far:1", "local") == first
    assert settled() == first
    assert [one[1] for one in settled(listen="10.0.0.1:7718")] == ["10.0.0.1:7718"] * 3
    assert settled("local", "near", "far:1")[0][1] == "10.0.0.1:7718", "the same ones keep it"
    assert settled("other") == [("other", "127.0.0.1:7718", False)]
    assert settled(gone=True) == []


def offer(folder: Path, monkeypatch: pytest.MonkeyPatch, **codes: str) -> None:
    """Substrates of installed packages, each with this code beside what all have."""
    monkeypatch.syspath_prepend(folder)
    install(folder, {substrates.GROUP: {name: f"their_{name}" for name in codes}})
    for name, code in codes.items():
        monkeypatch.delitem(sys.modules, f"their_{name}", raising=False)
        (folder / f"their_{name}.py").write_text(
            "def check(argument): pass\ndef is_local(argument): return True\n"
            f"def connect(argument, home, folder): raise NotImplementedError\n{code}"
        )
