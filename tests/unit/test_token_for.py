"""What is taken for a token: whatever it is, it is never told."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from poise.cli.join import join
from poise.client import Client
from poise.config import Home
from poise.drivers.security import token_for
from poise.errors import Denied

SECRET = "Vq3secret"  # noqa: S105 — of nobody


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("POISE_TOKEN", raising=False)
    monkeypatch.delenv("POISE_TOKEN_FILE", raising=False)
    return Home(tmp_path)


CASES = [
    (f"{SECRET}\npoise: this is t1", "2 lines"),
    (f"{SECRET} and more", "spaces"),
    (f"{SECRET}\x07", "letters"),
]


@pytest.mark.parametrize(("value", "why"), CASES)
@pytest.mark.parametrize("source", ["variable", "file", "home"])
def test_what_is_no_token_is_refused_and_not_told(
    home: Home, monkeypatch: pytest.MonkeyPatch, source: str, value: str, why: str
) -> None:
    if source == "variable":
        monkeypatch.setenv("POISE_TOKEN", value)
    else:
        home.token.write_text(value)
        home.token.chmod(0o600)
        if source == "file":
            monkeypatch.setenv("POISE_TOKEN_FILE", str(home.token))
    with pytest.raises(Denied) as caught:
        token_for(home)
    assert caught.value.record.code == "E130"
    assert why in str(caught.value)
    assert SECRET not in repr(caught.value.record)


def test_a_variable_that_is_not_ascii_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_TOKEN", f"{SECRET}é")
    with pytest.raises(Denied, match="no token") as caught:
        token_for(home)
    assert SECRET not in repr(caught.value.record)


def test_a_file_that_is_not_there_is_said_to_be_that_of_the_variable(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_TOKEN_FILE", str(home.root / "none"))
    with pytest.raises(Denied, match="POISE_TOKEN_FILE") as caught:
        token_for(home)
    assert "poise token add" in caught.value.record.hint


def test_a_token_is_read_without_the_newline_after_it(home: Home) -> None:
    home.token.write_text(f"{SECRET}\n")
    home.token.chmod(0o600)
    assert token_for(home) == SECRET


def test_a_file_without_an_end_is_no_token(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_TOKEN_FILE", "/dev/zero")
    with pytest.raises(Denied):
        token_for(home)


@pytest.mark.parametrize(("value", "why"), CASES)
def test_what_is_no_token_is_not_sent_by_a_client(home: Home, value: str, why: str) -> None:
    with pytest.raises(Denied, match=why):
        Client(home, token=value)


@pytest.mark.parametrize(("value", "why"), CASES)
@pytest.mark.parametrize("flag", ["--token", "--token-file"])
def test_what_is_no_token_joins_nothing(home: Home, flag: str, value: str, why: str) -> None:
    given = home.root / "given"
    given.write_text(value)
    told = CliRunner().invoke(
        join,
        ["127.0.0.1:1#" + "a" * 64, flag, value if flag == "--token" else str(given), "--home", str(home.root / "n")],
    )
    assert isinstance(told.exception, Denied) and told.exception.record.code == "E130"
    assert told.exception.record.field == flag and why in str(told.exception)
