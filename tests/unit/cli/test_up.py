"""`poise up` as typed, where it is refused before anything is started."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from poise.cli.main import main
from poise.config import Home, OnRay
from poise.drivers.lock import take_lock


def test_another_place_to_listen_for_the_nodes_of_a_ray_cluster_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    home = Home(tmp_path)
    home.ray.mkdir()
    kept = msgspec.json.encode(OnRay(address="head:6379", listen="0.0.0.0:7718"))
    (home.ray / "cluster.json").write_bytes(kept)
    with take_lock(home.lock, "control plane"):
        assert main(["up", "--listen", "0.0.0.0:7719", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["need"], error["have"]) == ("--listen", "0.0.0.0:7719", "0.0.0.0:7718")
    assert (home.ray / "cluster.json").read_bytes() == kept


def test_a_policy_whose_package_is_missing_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert main(["up", "--policy", "max-min", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["have"]) == ("--policy", "no highspy")
    assert error["hint"].startswith("`pip install 'poise[lp]'`")
    assert not list(tmp_path.iterdir())
