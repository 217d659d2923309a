"""`poise rehearse`, as typed: which loads it reads, what it tells, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from poise.cli.main import main
from poise.errors import SpecError
from poise.units import SECOND
from poise_lab.engine.serving import Request
from poise_lab.traces.loads import Wanted, asking

SERVICE = "kind: service\nname: s\nmodel: app.py:Model\nreplicas: 2\nobjective: {latency_p99: 200ms}\n"
WORLD = """
kind: world
serving:
  start: 5s
  replicas:
    - {name: fast, count: 2, batch: [[1, 20ms], [8, 40ms]], price: 4}
    - {name: slow, count: 2, batch: [[1, 60ms], [8, 160ms]], price: 1}
"""
FRONT = """
kind: upstreams
upstreams: [{name: h100, url: "a:1"}, {name: a100, url: "b:1"}]
objective: {latency_p99: 30s}
"""
LLM = """
kind: world
serving:
  replicas:
    - {name: h100, measured: {file: perf.csv, model: llama2-70b, hardware: h100-80gb}, price: 32}
    - {name: a100, token: [[1, 45ms], [64, 72ms]], prompt: [[512, 93ms], [1024, 155ms]], price: 16}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second}.6805900,{read},{wrote}\n"
    for second, read, wrote in ((46, 374, 44), (50, 396, 109), (51, 879, 55), (52, 91, 16), (53, 91, 16), (54, 381, 84))
)
"""The first rows of Azure's conversations of 2023, seconds only (github.com/Azure/AzurePublicDataset, CC BY 4.0)."""

PERF = "model,hardware,prompt_size,batch_size,prompt_time,token_time,tensor_parallel\n" + "".join(
    f"llama2-70b,h100-80gb,{prompt},{batch},{reads},{writes},8\n"
    for prompt, batch, reads, writes in (
        (512, 1, 53.0, 29.0), (512, 1, 54.0, 30.0), (512, 1, 53.4, 29.8), (1024, 1, 77.9, 29.7), (512, 64, 2936.3, 50.2)
    )
)  # fmt: skip
"""Some of the rows of Splitwise's measurements (github.com/Mutinifni/splitwise-sim, MIT)."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"s.yaml": SERVICE, "w.yaml": WORLD, "f.yaml": FRONT, "l.yaml": LLM, "azure.csv": AZURE, "perf.csv": PERF}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value(capsys: pytest.CaptureFixture[str], *typed: str) -> Any:
    assert main(["rehearse", *typed, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_service_on_more_and_fewer_replicas(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["s.yaml", "poisson:rate=80,requests=800", "--world", "w.yaml", "--replicas", "1,2,1..4"]
    assert main(["rehearse", *typed, "--scalers", "forecast,hpa"]) == 0
    out = capsys.readouterr().out
    assert "800 requests in" in out
    assert "in time is 200 ms" in out
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["1", "2", "1..4", "1..4"]
    told = value(capsys, *typed)
    one, two, scaled = (trial["figures"] for trial in told["trials"])
    assert one["answered"] + sum(one["not_answered"].values()) == one["asked"] == 800
    assert two["use"].keys() == {"fast-1", "fast-2"}
    assert two["cost"] == pytest.approx(8 * two["seconds"] / 3600)
    assert two["per_dollar"] == pytest.approx(two["per_second"] / 8)
    assert told["trials"][2]["scaler"] == "forecast"
    assert scaled["p50"] <= scaled["p95"] <= scaled["p99"]


def test_the_same_every_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "w.yaml").write_text(
        WORLD.replace("start: 5s", "start: 1s\n  spread: 20%\n  hang_up: {share: 10%, after: 30ms}")
        + "losses: {mtbf: 1m, mttr: 2s, detected: 100ms}\n"
    )
    typed = ["s.yaml", "poisson:rate=80,requests=800,variation=1", "--world", "w.yaml", "--seed", "7"]
    assert main(["rehearse", *typed, "--json"]) == 0
    first = capsys.readouterr().out
    assert main(["rehearse", *typed, "--json"]) == 0
    assert capsys.readouterr().out == first
    (trial,) = json.loads(first)["trials"]
    assert trial["figures"]["not_answered"]["cancelled"] > 0


def test_a_front_by_router_on_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = value(capsys, "f.yaml", "azure.csv", "--world", "l.yaml", "--routers", "round-robin,weighted,expected-delay")
    assert [trial["router"] for trial in told["trials"]] == ["round-robin", "weighted", "expected-delay"]
    assert told["objective"] == 30 * SECOND
    assert all(trial["figures"]["answered"] == 6 for trial in told["trials"])
    assert all(trial["figures"]["use"].keys() == {"h100", "a100"} for trial in told["trials"])


def test_a_router_by_key_that_has_no_keys_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["f.yaml", "azure.csv", "--world", "l.yaml", "--routers", "consistent-hash,expected-delay"]
    told = value(capsys, *typed)
    note = "the requests have no key, so that `consistent-hash` routes them as `expected-delay` does"
    assert told["notes"] == [note]
    assert main(["rehearse", *typed]) == 0
    assert f"poise: {note}" in capsys.readouterr().err


def test_a_speed_from_measurements(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt of 768 between the medians 53.4 and 77.9 ms, and two tokens of 29.8 ms, alone on the H100."""
    (folder / "one.csv").write_text("arrival_s,input_tokens,output_tokens\n0,768,2\n")
    (folder / "f.yaml").write_text('kind: upstreams\nupstreams: [{name: h100, url: "a:1"}]\n')
    told = value(capsys, "f.yaml", "one.csv", "--world", "l.yaml")
    assert told["trials"][0]["figures"]["mean"] == pytest.approx((65.65 + 59.6) * 1e6, abs=2)


def test_requests_of_a_trace(folder: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": read, "output_length": wrote}
        for at, read, wrote in ((1000, 6, 5), (500, 9, 1))
    ]
    (folder / "mooncake.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    load = asking("mooncake.jsonl", Wanted(load=2), 0).begin()
    assert list(load.begin()) == [Request(0, 1.0, 9, 1, 9.0), Request(SECOND // 4, 1.0, 6, 5, 6.0)]
    assert len(list(asking("azure.csv", Wanted(requests=3), 0).begin().begin())) == 3
    assert len(list(asking("azure.csv", Wanted(until=5 * SECOND), 0).begin().begin())) == 2


def test_requests_of_rates(folder: Path) -> None:
    """ServeGen's totals: so many a second in windows of 10 minutes."""
    (folder / "rates.csv").write_text("window_start_s,big,small\n0,0.5,1\n600,4,1\n1200,0,1\n")
    times = [request.at / SECOND for request in asking("rates.csv", Wanted(column="big"), 3).begin().begin()]
    assert times == sorted(times)
    assert sum(at < 600 for at in times) == pytest.approx(300, abs=60)
    assert sum(600 <= at < 1200 for at in times) == pytest.approx(2400, abs=160)
    assert max(times) < 1200
    with pytest.raises(SpecError) as error:
        asking("rates.csv", Wanted(), 0)
    assert error.value.record.need == "one of big, small"


def test_replicas_of_a_simulated_service_are_there_before_an_event(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica starts in 5 seconds. From 9:02 on there are six times as many requests: the calendar says so."""
    (folder / "s.yaml").write_text(SERVICE.replace("replicas: 2", "replicas: 1..4\nscaling: {calendar: c.yaml}"))
    (folder / "rates.csv").write_text("window_start_s,all\n0,50\n60,50\n120,300\n")
    event = "{name: launch, from: 2026-12-01T09:02, for: 10m, service: s, load: x6}"
    (folder / "c.yaml").write_text(f"kind: calendar\nevents: [{event}]\n")
    typed = ["s.yaml", "rates.csv", "--world", "w.yaml", "--column", "all"]
    without, told = value(capsys, *typed), value(capsys, *typed, "--begins", "2026-12-01T09:00Z")
    assert any("announced load is left out" in note for note in without["notes"])
    assert not told["notes"]
    late, there = (of["trials"][0] for of in (without, told))
    assert late["figures"]["not_answered"]["late"] > 20
    assert there["figures"]["not_answered"] == {}
    assert "requests/s are announced in 10.0 s" in there["scaled"][0][1]
    assert any("(x6 for launch)" in why for _, why in there["scaled"])
    (folder / "c.yaml").write_text("kind: calendar\nevents: [{from: 2026-12-01T09:10, load: much}]\n")
    assert main(["rehearse", *typed, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["at"].endswith("c.yaml:2:35")


@pytest.mark.parametrize(
    "text", ["poisson:rate=0", "poisson:jobs=4", "clients:think=soon", "clients:clients=x", "poisson:rate"]
)
def test_what_cannot_be_drawn(folder: Path, text: str) -> None:
    with pytest.raises(SpecError, match="cannot be generated"):
        asking(text, Wanted(), 0)


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ("s.yaml poisson:rate=1 --world w.yaml --routers random", "--routers"),
        ("s.yaml poisson:rate=1 --world w.yaml --replicas 1..2 --scalers best", "--scalers"),
        ("f.yaml poisson:rate=1 --world l.yaml --scalers hpa", "--scalers"),
        ("f.yaml poisson:rate=1 --world l.yaml --routers best", "--routers"),
        ("f.yaml poisson:rate=1 --world w.yaml", "upstreams"),
        ("s.yaml poisson:rate=1 --world empty.yaml", "serving"),
        ("s.yaml poisson:rate=1 --world gone.yaml", "changes[0].node"),
        ("s.yaml poisson:rate=1 --world wrong.yaml", "serving.replicas[0].batch"),
        ("s.yaml poisson:rate=1 --world twice.yaml", "serving.replicas[0]"),
        ("s.yaml poisson:rate=1 --world w.yaml --load 0", "--load"),
        ("s.yaml s.yaml --world w.yaml", ""),
        ("s.yaml poisson:rate=1 --world w.yaml --until 1h", "--until"),
        ("s.yaml azure.csv --world w.yaml --column big", "--column"),
    ],
)
def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], typed: str, field: str) -> None:
    (folder / "empty.yaml").write_text("kind: world\n")
    (folder / "gone.yaml").write_text(WORLD + "changes: [{at: 1s, node: n1, there: false}]\n")
    (folder / "wrong.yaml").write_text(WORLD.replace("[1, 20ms]", "[9, 20ms]"))
    (folder / "twice.yaml").write_text(WORLD.replace("price: 4", "token: [[1, 1ms]]"))
    assert main(["rehearse", *typed.split(), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"].get("field", "") == field


def test_what_a_world_says_of_jobs_is_left_out_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "w.yaml").write_text(WORLD + "sharing: 30%\n")
    assert main(["rehearse", "s.yaml", "poisson:rate=9,requests=9", "--world", "w.yaml", "--replicas", "9"]) == 0
    said = capsys.readouterr().err
    assert "the world's sharing is about jobs" in said
    assert "of 9 replicas the world has 4" in said
