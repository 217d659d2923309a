"""`poise replay` as typed, on exported logs of small worlds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.cli.main import main
from poise.drivers.logfile import write_log
from poise.drivers.plugins import choose, code_of
from poise.kernel.ledger import Ledger
from poise.model.events import Event, Placed, Round, encode_event
from poise.ports import StoredCheckpoint
from poise.testing import World

Ran = tuple[int, str, str]
Typed = Callable[..., Ran]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Exit code, stdout and stderr of `poise replay …`."""
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> Ran:
        code = main(["replay", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def world(**settings: Any) -> World:
    return World("fifo", version="0.1.0", **{"code": code_of(choose("fifo")), **settings}).nodes(2, cpu=2)


def placed_twice(**settings: Any) -> list[Event]:
    return world(**settings).job("a").round().job("b", cpu=2).job("c", cpu=2).round().log


def written(folder: Path, events: list[Event]) -> Path:
    path = folder / "some.log"
    write_log(path, map(encode_event, events), start=None, written_by="0.1.0")
    return path


def test_the_same_is_one_line(typed: Typed, tmp_path: Path) -> None:
    events = placed_twice()
    path = written(tmp_path, events)
    assert typed(path) == (0, f"revisions 1 to {len(events)}: 2 rounds, 3 decisions, all the same\n", "")
    code, out, err = typed(path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "first": 1, "last": len(events), "rounds": 2, "decisions": 3, "different": 0, "difference": None,
        "left_out": {}, "policy": "",
    }  # fmt: skip


def test_the_first_difference_shows_both_plans(typed: Typed, tmp_path: Path) -> None:
    """A log of a policy with a bug: it placed the second job where the third should go, and the other way round."""
    events = placed_twice()
    at = next(place for place, event in enumerate(events) if isinstance(event, Placed) and event.unit == "j2.main")
    events[at] = msgspec.structs.replace(events[at], unit="j3.main")
    path = written(tmp_path, events)
    code, out, err = typed(path)
    assert (code, err) == (1, "poise: 1 other decision of this round: the same\n")
    lines = out.splitlines()
    assert lines[0].endswith("1 of 2 rounds decided otherwise")
    assert lines[1].startswith("the first: revision ")
    assert lines[2].split() == ["OF", "RECORDED", "NOW"]
    assert [line.split() for line in lines[3:5]] == [
        ["j3.main", "place", "on", "n2", "-"],
        ["j2.main", "-", "place", "on", "n2"],
    ]
    code, out, _ = typed(path, "--json")
    told = json.loads(out)
    assert (code, told["different"], told["difference"]["recorded"][0]["unit"]) == (1, 1, "j3.main")


def test_other_code_is_told_and_compared_only_when_asked(typed: Typed, tmp_path: Path) -> None:
    path = written(tmp_path, placed_twice(code="0123abcd"))
    code, out, err = typed(path)
    assert (code, out.split(": ")[1]) == (0, "no round was compared\n")
    assert "poise: 2 rounds not compared: decided by Poise 0.1.0 with code 0123abcd" in err
    assert "`--anyway`" in err
    code, out, err = typed(path, "--anyway")
    assert (code, out.split(": ")[1], err) == (0, "2 rounds, 3 decisions, all the same\n", "")


def test_another_policy_is_asked_instead(typed: Typed, tmp_path: Path) -> None:
    path = written(tmp_path, placed_twice())
    assert typed(path, "--policy", "fifo")[1].endswith("`fifo` would have decided 0 of 2 rounds otherwise\n")
    code, out, _ = typed(path, "--policy", "static")
    assert (code, out.splitlines()[0].split(": ")[1]) == (0, "`static` would have decided 2 of 2 rounds otherwise")
    code, _, err = typed(path, "--policy", "no-such")
    assert (code, "there is no policy `no-such`" in err) == (1, True)


def test_only_a_part_of_it(typed: Typed, tmp_path: Path) -> None:
    events = placed_twice()
    path = written(tmp_path, events)
    first, second = (at for at, event in enumerate(events, start=1) if isinstance(event, Round))
    assert ": 1 round, " in typed(path, "--from", second)[1]
    assert ": 1 round, " in typed(path, "--until", first)[1]
    assert typed(path, "--until", 0)[0] == 1


def test_a_log_that_was_pruned_says_where_it_begins(typed: Typed, tmp_path: Path) -> None:
    events = placed_twice()
    ledger = Ledger()
    for event in events[:5]:
        ledger.apply(event)
    path = tmp_path / "pruned.log"
    state = StoredCheckpoint(5, ledger.encode())
    write_log(path, map(encode_event, events[5:]), start=state, written_by="0.1.0")
    code, out, err = typed(path)
    assert (code, out.split(":")[0]) == (0, f"revisions 6 to {len(events)}")
    assert "earlier records than revision 6 are no longer kept" in err


def test_export_writes_what_is_read_again(typed: Typed, tmp_path: Path) -> None:
    events = placed_twice()
    path, other = written(tmp_path, events), tmp_path / "other.log"
    assert typed(path, "--export", other) == (0, "", f"poise: wrote {other}, up to revision {len(events)}\n")
    assert other.read_bytes() == path.read_bytes()
    assert other.stat().st_mode & 0o077 == 0, "it holds commands and environments"
    assert typed(path, "--export", other)[0] == 1, "nothing is overwritten"
    other = tmp_path / "three.log"
    code, out, _ = typed(path, "--export", other, "--until", 3, "--json")
    assert (code, json.loads(out)) == (0, {"file": str(other), "last": 3})
    assert typed(path, "--export", tmp_path / "no" / "folder")[0] == 1
    assert typed(path, "--export", other, "--policy", "fifo")[0] == 1


def test_where_there_is_nothing_to_replay(typed: Typed, tmp_path: Path) -> None:
    code, _, err = typed()
    assert (code, "nothing to replay" in err, "hint: `poise run -- echo hello`" in err) == (1, True, True)
    assert typed(tmp_path / "missing.log")[0] == 1
