"""Who `poise serve` lets in, by where it listens and what it is told."""

from pathlib import Path
from typing import Any

import pytest

from poise.cli.main import main
from poise.config import Home
from poise.errors import InputError, PoiseError, SpecError
from poise_serve.cli.serve import _entrance
from poise_serve.serve import Entrance

LOOPBACK, ALL = "127.0.0.1", "0.0.0.0"  # noqa: S104 — it is refused


def entrance(home: Path, address: str, **told: Any) -> Entrance:
    said = {"keys": None, "insecure": False, "cors": (), "names": ()} | told
    return _entrance(Home(home), address, address, **said)


def test_on_this_machine_nobody_needs_a_key(tmp_path: Path) -> None:
    for address in (LOOPBACK, "::1"):
        made = entrance(tmp_path, address)
        assert made.keys() is None and made.tls is None


@pytest.mark.parametrize("address", [ALL, "::", "10.1.2.3"])
def test_beyond_this_machine_it_listens_with_keys_by_tls_or_because_it_is_told_to(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError) as error:
        entrance(tmp_path, address)
    assert "--keys home" in error.value.record.hint and "--insecure" in error.value.record.hint
    made = entrance(tmp_path, address, keys="home")
    assert made.keys() is not None and made.tls is not None and made.home is not None
    made = entrance(tmp_path, address, insecure=True)
    assert made.keys() is None and made.tls is None
    made = entrance(tmp_path, address, insecure=True, keys="home")
    assert made.keys() is not None and made.tls is None, "behind a proxy that speaks TLS"


@pytest.mark.parametrize("insecure", [False, True])
def test_it_is_called_by_every_name_in_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, insecure: bool
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda *_: "gpu1.lab.example")
    made = entrance(tmp_path, ALL, keys="home", insecure=insecure, names=("models.example",))
    assert {"gpu1.lab.example", "models.example"} <= set(made.names)


def test_a_file_of_keys_asks_the_control_plane_only_where_it_names_its_tokens(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"kind: keys\nkeys: [{{name: app, sha256: {'a' * 64}}}]\n")
    made = entrance(tmp_path, LOOPBACK, keys=str(file))
    assert (made.file, made.home) == (file, None)
    file.write_text("kind: keys\nkeys: [{name: app, token: t1}]\n")
    assert entrance(tmp_path, LOOPBACK, keys=str(file)).home == Home(tmp_path)


@pytest.mark.parametrize("text", ["kind: keys\nkeys: []\n", "kind: service\nname: x\nmodel: a:B\n", None])
def test_a_file_of_keys_that_is_none_is_told_at_the_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PoiseError):
        entrance(tmp_path, LOOPBACK, keys=str(file))


def test_an_origin_is_a_site_and_no_page(tmp_path: Path) -> None:
    assert entrance(tmp_path, LOOPBACK, cors=("https://app.example:8443", "*")).origins
    for wrong in ("app.example", "https://app.example/page"):
        with pytest.raises((InputError, SpecError)):
            entrance(tmp_path, LOOPBACK, cors=(wrong,))


@pytest.mark.parametrize("more", [[], ["--gateways", "2"]])
def test_a_missing_file_is_told_before_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    assert main(["serve", "nosuch.py:Model", "--port", "0", *more]) == 1
    said = capsys.readouterr()
    assert "no such file" in said.err and f"hint: ls {tmp_path}" in said.err
    assert "/predict" not in said.out + said.err
