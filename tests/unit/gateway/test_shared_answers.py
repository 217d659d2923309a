"""What is told of what lies in a Redis, and what a version is."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.errors import SpecError
from poise.gateway.shared_answers import opened, sealed, version_of
from poise.gateway.wire import Answer
from poise.model.servicefile import DeclaredService, compile_service

ANSWER = Answer(200, "application/json", b"[42]")


def test_what_was_kept_is_told_where_it_was_kept() -> None:
    data = sealed("poise:a:1.5:00", ANSWER)
    assert opened("poise:a:1.5:00", data) == ANSWER
    assert opened("poise:a:1.5:01", data) is None


@given(st.binary(max_size=80))
def test_nothing_is_told_of_garbage(data: bytes) -> None:
    assert opened("key", data) is None


@given(st.integers(0, 200), st.integers(1, 255), st.integers(0, 200))
def test_nothing_is_told_of_what_is_damaged(place: int, flip: int, length: int) -> None:
    data = sealed("key", ANSWER)
    place %= len(data)
    assert opened("key", data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]) is None
    assert opened("key", data[: length % len(data)]) is None
    assert opened("key", data + bytes(1 + length)) is None


def declared(**fields: object) -> DeclaredService:
    return compile_service({"kind": "service", "name": "twice", "model": "app.py:Twice"} | fields)


def test_a_version_changes_with_what_decides_what_a_model_says(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("one")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "app.py").write_text("one")
    made = [
        version_of(declared(**fields), tmp_path)
        for fields in (
            {},
            {"model": "app.py:Thrice"},
            {"model": "package.app:Twice"},
            {"env": {"WEIGHTS": "large"}},
            {"env": {"WEIGHTS": "small"}},
            {"python": "other/python"},
            {"version": "7"},
        )
    ]
    (tmp_path / "app.py").write_text("other")
    made.append(version_of(declared(), tmp_path))
    assert len(set(made)) == len(made)
    assert "7" in made
    (tmp_path / "app.py").write_text("one")
    assert version_of(declared(replicas=3, cache={"ttl": "1h"}), tmp_path) == made[0]


def test_a_model_whose_file_is_not_there_says_its_version(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="which version"):
        version_of(declared(model="json:JSONDecoder"), tmp_path)


def test_a_password_is_in_no_file() -> None:
    with pytest.raises(SpecError) as caught:
        declared(cache={"redis": "redis://me:secret@here:6379/0"})
    assert b"secret" not in msgspec.json.encode(caught.value.record)
    for url in ("redis://here", "rediss://me@here:6379/2", "unix:///run/redis.sock", "redis://[::1]:6379"):
        assert declared(cache={"redis": url, "password_from": "SECRET"}).redis == url
    for wrong in (
        {"redis": "http://here"},
        {"password_from": "SECRET"},
        {"redis": "redis://here", "password_from": "-"},
    ):
        with pytest.raises(SpecError):
            declared(cache=wrong)


@pytest.mark.parametrize("version", ["a b", "a:b", "-", "x" * 64])
def test_a_version_is_part_of_a_key(version: str) -> None:
    with pytest.raises(SpecError):
        declared(version=version)
