"""Packages, entry points and former names: what users and other packages rely on."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module, metadata
from pathlib import Path

import pytest

from poise.drivers.wheel import PACKAGES, pack

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
FORMER = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "poise").rglob("*.py"))
    if path.read_text().startswith('"""Former name of')
}


def test_every_package_is_named() -> None:
    assert sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")) == sorted(PACKAGES)


def test_every_entry_point_can_be_loaded() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {*groups} == {"poise.stores", "poise.substrates"}
    for group, points in groups.items():
        for name, value in points.items():
            assert metadata.EntryPoint(name, value, group).load() is not None


def test_the_wheel_for_another_machine_has_all_packages_and_entry_points(tmp_path: Path) -> None:
    with zipfile.ZipFile(pack(tmp_path)) as wheel:
        names = wheel.namelist()
        [points] = [name for name in names if name.endswith("/entry_points.txt")]
        assert b"kubernetes = poise_kubernetes" in wheel.read(points)
        assert b"ray = poise_ray" in wheel.read(points)
        assert b"slurm = poise_slurm" in wheel.read(points)
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} == {*PACKAGES}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_stands_for_the_module_that_it_names(name: str) -> None:
    tree = ast.parse(FORMER[name].read_text())
    new = (ast.get_docstring(tree) or "").split("`")[1]
    path = SOURCE / new.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert imported <= {new}
    if imported and "train" not in name:  # which needs PyTorch
        there, here = vars(import_module(new)), vars(import_module(name))
        public = there.get("__all__", [key for key in there if key[0] != "_"])
        assert all(here[key] is there[key] for key in public)


def test_a_replica_in_an_older_log_starts() -> None:
    program = [sys.executable, "-m", "poise.gateway.replica"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert "usage: python -m poise_serve.replica" in done.stderr
