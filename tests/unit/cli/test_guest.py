"""Commands of somebody who uses a control plane that another shares."""

import json
from pathlib import Path

import pytest

from poise.cli.doctor import _control
from poise.cli.main import main
from poise.config import Home
from poise.drivers.security import ensure_token, token_for
from poise.errors import InputError


def test_a_report_is_not_made_of_another_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    monkeypatch.setenv("POISE_SOCKET", str(tmp_path / "shared.sock"))
    assert main(["report"]) != 0
    assert "unset POISE_SOCKET" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed", ["report", "timeline", "decisions", "eta", "eta --check", "what-if --policy fifo", "replay"]
)
def test_nothing_is_read_from_the_log_for_the_bearer_of_another_token(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It shows the work of all tenants."""
    home = tmp_path / "home"
    monkeypatch.setenv("POISE_HOME", str(home))
    own = ensure_token(Home(home))
    file = tmp_path / "token"
    file.write_text("of-another-tenant")
    file.chmod(0o600)
    monkeypatch.setenv("POISE_TOKEN_FILE", str(file))
    assert main([*typed.split(), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["field"] == "POISE_TOKEN_FILE" and "unset POISE_TOKEN_FILE" in error["hint"]
    file.write_text(own)
    assert main([*typed.split(), "--json"]) == 1
    assert "no log" in json.loads(capsys.readouterr().out)["error"]["message"], "the owner's token is no other"


def test_the_doctor_of_a_guest_leaves_what_is_the_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_TOKEN", "guest")
    tmp_path.chmod(0o755)
    shared = tmp_path / "shared.sock"
    checks = {check.name: check for check in _control(Home(tmp_path / "home", shared))}
    assert set(checks) == {"socket", "control plane"}
    assert "poise.log" not in checks["control plane"].hint
    assert checks["control plane"].status == "fail"
    assert "no socket is there" in checks["control plane"].text
    assert checks["socket"].status == "fail"


def test_a_socket_that_is_not_there_is_not_to_be_made_by_a_client(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no socket is there") as refused:
        token_for(Home(tmp_path, tmp_path / "nowhere" / "shared.sock"))
    assert "export POISE_SOCKET=$PWD/shared.sock" in refused.value.record.hint
    assert "unset POISE_SOCKET" in refused.value.record.hint


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        *(("POISE_ADDRESS", text, "export POISE_ADDRESS=HOST:PORT#FINGERPRINT") for text in ("lab", "lab:7718", ",")),
        ("POISE_SOCKET", "/nosuch.sock", "unset POISE_SOCKET"),
        ("POISE_SOCKET", "/etc/passwd", "`poise up --share /etc/passwd`; or `unset POISE_SOCKET`"),
    ],
)
def test_a_hint_about_a_wrong_place_names_its_variable_and_a_value(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    hint: str,
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    monkeypatch.setenv("POISE_TOKEN", "guest")
    monkeypatch.setenv(name, value)
    assert main(["ls", "--json"]) in (1, 2)
    assert hint in json.loads(capsys.readouterr().out)["error"]["hint"]
