"""`poise eta` and `poise what-if` as typed, on exported logs of small worlds."""

import json
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.drivers.logfile import write_log
from poise.model.events import encode_event
from unit.engine.test_futures import stopped


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four jobs of ten seconds on one device."""
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    run, _ = stopped("fifo", [10.0] * 4, at=1000)
    write_log(tmp_path / "run.log", map(encode_event, run.events), start=None, written_by="0.1.0")
    return tmp_path / "run.log"


def test_a_log_is_looked_back_at(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eta", "--check", "--from", str(log), "--futures", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["submitted"], told["finish"]["count"]) == (4, 4)


def test_a_log_is_run_with_a_change(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--from", str(log), "--add", "1xn1", "--policy", "sjf"]) == 0
    out = capsys.readouterr().out
    assert "if: policy sjf, with 1xn1 more" in out
    [makespan] = [line for line in out.splitlines() if line.startswith("makespan")]
    assert makespan.split() == ["makespan", "40.0", "s", "20.0", "s"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("eta", "`poise run -- echo hello`, or POISE_HOME"),
        ("eta --from LOG", "`poise eta --check --from LOG`"),
        ("eta --check --from nowhere", "a log.db of a home, or an exported log"),
        ("eta --budget 0", "--budget 30s"),
        ("what-if --from LOG --without n1", "leave one, or `--add` some"),
        ("what-if --from LOG --without n2", "`poise nodes`"),
        ("what-if --from LOG --policy fif", "did you mean `fifo`?"),
        ("what-if --from LOG --add 1xA100", "--add 1xA100-40"),
    ],
)
def test_errors_say_what_to_type(log: Path, capsys: pytest.CaptureFixture[str], typed: str, hint: str) -> None:
    arguments = [str(log) if word == "LOG" else word for word in typed.split()]
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == hint
