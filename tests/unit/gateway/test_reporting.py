"""What a gateway reports of its services, over its socket; and what `poise services` makes of it."""

import asyncio
import json
from pathlib import Path

import pytest

from poise.cli.main import main
from poise.drivers import sockets
from poise.drivers.gateways import service_reports
from poise.model.reports.services import ServiceReport
from poise.units import MILLISECOND, MINUTE, SECOND
from poise_serve import reporting


def report(window: int, name: str = "digits", p99: int = 250 * MILLISECOND, **refused: int) -> ServiceReport:
    return ServiceReport(
        service=name,
        url="http://127.0.0.1:8080",
        window=window,
        rate=12.5,
        answered=750,
        failed=1,
        cached=0,
        p50=10 * MILLISECOND,
        p95=40 * MILLISECOND,
        p99=p99,
        objective=200 * MILLISECOND,
        refused=refused,
        replicas=1,
        started=2,
        waiting=3,
        serving=4,
        batches=100,
        batch_mean=7.5,
        batch_max=16,
        wait_mean=4 * MILLISECOND,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    folder = tmp_path / "services"
    folder.mkdir()
    return folder


def run(folder: Path, *arguments: str, mark: str = "0a1b2c3d") -> int:
    """A command, while a gateway runs."""

    async def gateway() -> int:
        (folder / f"{mark}.gateway").touch()
        listening = await reporting.listen(folder, mark, lambda window: [report(window, late=5, full=2)])
        try:
            return await asyncio.to_thread(main, list(arguments))
        finally:
            listening.close()
            reporting.forget(folder, mark)

    return asyncio.run(gateway())


def test_the_p99_stands_beside_the_objective(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "services") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("SERVICE", "REPLICAS", "RATE", "P50", "P95", "P99", "OBJECTIVE", "REFUSED", "WAITING", "BATCH", "ADDRESS")
    ]
    assert row.split("  ")[0] == "digits"
    for said in ("1/2", "12.5/s", "10 ms", "40 ms", "250 ms", "200 ms missed", "7", "7.5", "http://127.0.0.1:8080"):
        assert f"  {said}" in row
    assert list(folder.glob("*.sock")) == []


def test_refusals_have_their_reasons(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "services", "digits", "-o", "wide") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert "5 late, 2 full" in row
    assert " WAIT " in head and "  4 ms  " in row


def test_the_window_is_the_one_that_was_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "services", "--last", "30s", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["window"] == 30 * SECOND and told["refused"] == {"late": 5, "full": 2}


@pytest.mark.parametrize("last", ["4s", "6m", "soon"])
def test_a_window_that_there_is_not(folder: Path, capsys: pytest.CaptureFixture[str], last: str) -> None:
    assert main(["services", "--last", last]) == 1
    assert "--last" in capsys.readouterr().err


def test_without_a_gateway_the_hint_starts_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["services"]) == 0
    assert main(["services", "digits"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("`poise serve app.py:Model` starts one") == 2


def test_a_gateway_that_does_not_answer_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dead.gateway").touch()
    assert run(folder, "services", "-o", "name") == 0
    out, err = capsys.readouterr()
    assert out == "digits\n" and "the gateway dead does not answer" in err


@pytest.mark.parametrize("sent", [b"", b"\n", b"soon\n", b"9" * 100_000])
def test_whatever_is_sent_is_no_harm(folder: Path, sent: bytes) -> None:
    async def gateway() -> None:
        (folder / "x.gateway").touch()
        listening = await reporting.listen(folder, "x", lambda window: [report(window)])

        def talk() -> bytes:
            with sockets.connect(folder / "x.sock", 10) as channel:
                channel.sendall(sent)
                channel.shutdown(1)
                return channel.recv(100)

        assert await asyncio.to_thread(talk) == b""
        assert await asyncio.to_thread(lambda: dict(service_reports(folder))) == {"x": [report(MINUTE)]}
        listening.close()

    asyncio.run(gateway())
