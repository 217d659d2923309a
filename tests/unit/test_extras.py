"""Libraries that are not there: the error names the extra that brings them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.errors import PoiseError


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("poise.drivers.authority", "cryptography", "listen"),
        ("poise.drivers.oidc", "cryptography", "oidc"),
        ("poise_ha.etcd.link", "aiohttp", "etcd"),
        ("poise_ha.postgres.link", "asyncpg", "postgres"),
    ],
)
def test_what_needs_a_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name == module or name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PoiseError) as raised:
        importlib.import_module(module)
    assert raised.value.record.hint == f"pip install 'poise-scheduler[{extra}]'"


@pytest.mark.parametrize(
    ("library", "extra", "flags"), [("aiohttp", "serve", []), ("grpc", "grpc", ["--grpc-port", "0"])]
)
def test_serving_without_its_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    library: str,
    extra: str,
    flags: list[str],
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "app.py").write_text("class Model: ...\n")
    assert main(["serve", f"{tmp_path}/app.py:Model", "--json", *flags]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == f"pip install 'poise-scheduler[{extra}]'"
