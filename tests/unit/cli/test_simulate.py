"""`poise simulate` and `poise compare`, as typed."""

import json
import re
import sys
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from poise.cli.main import main
from poise_lab.compare import Asked, Far, compare
from poise_lab.traces.options import Options

ROOT = Path(__file__).resolve().parents[3]
FLEET = ["--fleet", str(ROOT / "examples" / "cluster.yaml")]
TRACE = [str(ROOT / "examples" / "trace.csv"), "--map", "submit=created,duration=seconds,gpus=gpus,kind=class"]
FEW = [*TRACE, *FLEET, "--jobs", "20"]


def value(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_trace_under_one_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *FEW, "--policy", "fifo"]) == 0
    out = capsys.readouterr().out
    assert "20 done" in out
    for name in ("completion", "waiting", "slowdown", "rho", "use of V100", "stranded", "kWh", "money"):
        assert name in out


def test_json_is_one_value_and_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    first = value(capsys, "simulate", *FEW, "--policy", "las", "--seed", "3")
    assert value(capsys, "simulate", *FEW, "--policy", "las", "--seed", "3") == first
    (trial,) = first["trials"]
    assert trial["policy"] == "las"
    assert trial["measures"]["completion"]["count"] == 20


def test_run_times_differ_by_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A class is as fast as the fleet file says: half as fast as on an A100, of which there is none."""
    (tmp_path / "trace.csv").write_text("at,took,class\n0,2400,resnet\n")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "kind: fleet\nnodes: {n: {cpu: 8, memory: 64GiB, devices: [{model: V100}]}}\n"
        "throughputs: {resnet: {A100-80: 2.4, V100: 1.2}}\n"
    )
    mapping = ["--map", "submit=at,duration=took,kind=class"]
    told = value(capsys, "simulate", str(tmp_path / "trace.csv"), *mapping, "--fleet", str(fleet))
    assert told["trials"][0]["measures"]["completion"]["mean"] == 4800 * 10**9


def test_speeds_that_nobody_knows_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("at,took,class\n0,60,resnet\n0,60,\n0,60,unheard-of\n")
    trace = [str(tmp_path / "trace.csv"), "--map", "submit=at,duration=took,kind=class"]
    assert main(["simulate", *trace, *FLEET]) == 0
    note = "nothing tells how fast 2 of 3 jobs are on A100-80, T4, V100: taken for as fast as on the fastest device"
    assert note in capsys.readouterr().err
    assert value(capsys, "simulate", "poisson:jobs=2,speeds=A100-80:2+V100:1", *FLEET)["notes"] == [
        "nothing tells how fast 2 of 2 jobs are on T4: taken for as fast as on the fastest device"
    ]
    assert value(capsys, "simulate", *FEW)["notes"] == []


def test_policies_side_by_side_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    assert main(["compare", *FEW, "--policies", "fifo,sjf", "--report", str(page)]) == 0
    caught = capsys.readouterr()
    assert [line.split()[0] for line in caught.out.splitlines()[1:]] == ["POLICY", "fifo", "sjf"]
    assert f"wrote {page}" in caught.err
    html = page.read_text()
    assert "<script" not in html
    assert "http" not in re.sub(r"http-equiv|xmlns=\S+", "", html)
    links, panels = set(re.findall(r'href="#(p\d-j\d+)"', html)), set(re.findall(r'id="(p\d-j\d+)"', html))
    assert links == panels
    assert len(panels) == 40


def test_a_policy_whose_package_is_missing_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    for typed in (["simulate", *FEW, "--policy", "max-min"], ["compare", *FEW, "--policies", "fifo,finish-time-fair"]):
        assert main(typed) == 1
        assert "hint: `pip install 'poise-scheduler[lp]'`, or a policy that needs none" in capsys.readouterr().err


BAD = """
import time
from poise.policy.suites import policy_named

class Later:
    def __init__(self, name, answer):
        self.name, self.answer = name, answer
    def decide(self, view):
        return self.answer() if view.revision > 20 else policy_named("fifo").decide(view)

RAISES, HANGS = Later("raises", lambda: {}["what"]), Later("hangs", lambda: time.sleep(600))
"""


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two policies of a package that is installed: one raises after a while, one gives no answer any more."""
    info = tmp_path / "bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[poise.policies]\nraises = bad_policies:RAISES\nhangs = bad_policies:HANGS\n"
    )
    (tmp_path / "bad_policies.py").write_text(BAD)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("bad")
def test_where_a_policy_fails_the_others_are_tried_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *FEW, "--policies", "raises,fifo", "--json"]) == 1
    caught = capsys.readouterr()
    told = json.loads(caught.out)
    assert [trial["policy"] for trial in told["trials"]] == ["fifo"]
    assert [(one["policy"], one["error"]["message"]) for one in told["failed"]] == [
        ("raises", "the policy `raises` raised KeyError: 'what'")
    ]
    assert "the trial of `raises` failed" in caught.err
    assert main(["simulate", *FEW, "--policy", "raises"]) == 1
    assert "the policy `raises` raised KeyError: 'what'" in capsys.readouterr().err


@pytest.mark.usefixtures("bad")
def test_who_is_interrupted_leaves_no_process_behind() -> None:
    def watch(number: int, far: Far) -> None:
        if number == 0 and far.over == far.jobs > 0:
            raise KeyboardInterrupt

    columns = {"submit": "created", "duration": "seconds", "gpus": "gpus", "kind": "class"}
    asked = Asked(
        trace=ROOT / "examples" / "trace.csv",
        fleet=ROOT / "examples" / "cluster.yaml",
        options=Options(jobs=20, columns=columns),
    )
    with pytest.raises(KeyboardInterrupt):
        compare(asked, ["fifo", "hangs"], watch)
    assert not active_children()


def test_a_trial_that_would_never_end_does_and_says_what_it_waits_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text("at,took\n0,60\n20,60\n")
    (tmp_path / "fleet.yaml").write_text("kind: fleet\nnodes: {n: {cpu: 8, memory: 64GiB, devices: [{model: V100}]}}\n")
    (tmp_path / "world.yaml").write_text("kind: world\nchanges: [{at: 10s, node: n, there: false}]\n")
    files = ["--fleet", str(tmp_path / "fleet.yaml"), "--world", str(tmp_path / "world.yaml"), "--every", "6h"]
    assert main(["simulate", str(tmp_path / "trace.csv"), "--map", "submit=at,duration=took", *files]) == 0
    said = capsys.readouterr().err
    assert "2 jobs have not ended under poise" in said
    assert ".main waits: n: is lost" in said


def test_who_is_refused_or_comes_too_late_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("at,took,gpus\n0,60,1\n5,60,99\n7,60,999\n3600,60,1\n7200,60,1\n")
    trace = [str(tmp_path / "trace.csv"), "--map", "submit=at,duration=took,gpus=gpus"]
    page = tmp_path / "out.html"
    assert main(["simulate", *trace, *FLEET, "--until", "30m", "--report", str(page)]) == 0
    said = capsys.readouterr().err
    assert "2 jobs refused under poise: gang `main` can never start whole (the first: 13 tasks of " in said
    assert "; room for 6 on all nodes together)" in said
    assert "2 jobs of the trace had not arrived when the trial under poise ended" in said
    assert "2 jobs refused under poise: " in page.read_text()
    assert "2 jobs of the trace had not arrived when the trial under poise ended." in page.read_text()


@pytest.mark.parametrize(
    ("typed", "field", "hint"),
    [
        (["--faults", "work2"], "--faults", "did you mean `work`?"),
        (["--load", "nan"], "load", "`--load 1.5`"),
        (["--until", "0"], "--until", "--until 1h"),
        (["--every", "0s"], "--every", "--every 1h"),
    ],
)
def test_errors_name_what_was_typed(
    typed: list[str], field: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *FEW, *typed, "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["field"], error["hint"]) == (field, hint)


def test_what_did_not_happen_has_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """No job has ended after a second: that is no mean of 0, no perfect fairness, and no power that nobody knows."""
    assert main(["simulate", *FEW, "--policy", "fifo", "--until", "1s"]) == 0
    rows = dict(re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()[2:])
    assert [rows[name] for name in ("completion", "slowdown", "fairness", "finish-time rho")] == ["-"] * 4
    assert rows["energy"].startswith("0.0 kWh")
    assert main(["compare", *FEW, "--policies", "fifo", "--until", "1s", "-o", "wide"]) == 0
    head, row = capsys.readouterr().out.splitlines()[1:]
    cells = dict(zip(re.split(r"  +", head), re.split(r"  +", row), strict=True))
    assert [cells[name] for name in ("MEAN JCT", "P99", "P99 WAIT", "SLOWDOWN", "JAIN", "RHO", "UNFAIR")] == ["-"] * 7
    assert cells["KWH"] == "0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", *FEW, "--policy", "nosuch"], "there is no policy `nosuch`"),
        (["simulate", *FEW, "--policy", "nosuch"], "where   --policy\n"),
        (["compare", *FEW, "--policies", "fifo,nosuch"], "where   --policies\n"),
        (["simulate", "nosuch.csv", *FLEET], "nosuch.csv"),
        (["simulate", *TRACE, "--fleet", "nosuch.yaml"], "cannot be read"),
        (["simulate", *FEW, "--load", "0"], "`load` is out of range"),
        (["simulate", *FEW, "--until", "soon"], "cannot be read"),
        (["simulate", *FEW, "--report", "/no/such/folder/x.html"], "no such folder"),
        (["compare", *FEW, "--policies", "fifo,fifo"], "name each policy once"),
        (
            ["simulate", *FEW, "--throughputs", "nosuch.json"],
            "`--throughputs` has no effect on a trace of format `plain`",
        ),
        (["simulate", *FEW, "--elastic"], "need    a trace of format elasticflow, pollux"),
        (["simulate", *FEW, "--format", "philly"], "`--map` has no effect on a trace of format `philly`"),
        (["simulate", "poisson:jobs=3", *FLEET, "--elastic"], "`--elastic` has no effect on a generated workload"),
    ],
)
def test_errors_can_be_acted_on(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_figures_are_printed_even_if_the_page_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A disk may fill up while a long simulation runs."""
    assert main(["compare", *FEW, "--policies", "fifo,sjf", "--report", "/dev/full"]) == 1
    caught = capsys.readouterr()
    assert [line.split()[0] for line in caught.out.splitlines()[1:]] == ["POLICY", "fifo", "sjf"]
    assert "No space left on device" in caught.err


def test_rules_are_tested_on_a_csv_whose_columns_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        "kind: rules\nrules:\n  - {name: busy, trigger: running > 0, actions: [notify: true]}\n"
    )
    (tmp_path / "own.csv").write_text("at,took\n0,600\n60,600\n")
    line = ["rules", "test", str(tmp_path / "rules.yaml"), "--from", str(tmp_path / "own.csv"), *FLEET]
    assert main(line) == 1
    assert "hint: `--map submit=COLUMN,duration=COLUMN,gpus=COLUMN`" in capsys.readouterr().err
    assert main([*line, "--map", "submit=at,duration=took"]) == 0
    assert "busy" in capsys.readouterr().out
