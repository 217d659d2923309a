"""`poise.step`: a program says that it gets on."""

import os
from pathlib import Path

import pytest

import poise
from poise.drivers import heartbeat


def test_a_step_touches_the_file_at_most_every_100_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress"
    moment = 10.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    monkeypatch.setattr(heartbeat, "_next_step", 0.0)
    monkeypatch.setenv("POISE_PROGRESS", str(path))
    poise.step()
    os.utime(path, (1, 1))
    moment = 10.05
    poise.step()
    assert path.stat().st_mtime == 1
    moment = 10.1
    poise.step()
    assert path.stat().st_mtime > 1


def test_a_step_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_next_step", 0.0)
    monkeypatch.setenv("POISE_PROGRESS", str(tmp_path / "gone" / "progress"))
    poise.step()
    monkeypatch.setattr(heartbeat, "_next_step", 0.0)
    monkeypatch.delenv("POISE_PROGRESS")
    poise.step()
