"""What is taken for a token: whatever it is, it is never told."""

from pathlib import Path

import pytest

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
