"""A supervisor starts a gateway again of which nothing lives, and leaves all others alone."""

import fcntl
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from poise.control.supervisor import BOOT, Gateway, gateways

MARK = "0a1b2c3d"


def on_file(home: Path, **told: Any) -> Path:
    """A gateway of this home that was killed; its command writes down what it is handed."""
    folder = home / "services"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write = "import os; open('handed', 'w').write(os.environ['POISE_GATEWAY_INHERITED'] + ' ' + os.environ['OWN'])"
    record = {
        "command": [sys.executable, "-c", write],
        "folder": str(home),
        "environment": {"OWN": "x"},
        "host": "127.0.0.1",
        "port": port,
        "boot": Path(BOOT).read_text(),
    }
    (folder / f"{MARK}.lock").touch()
    path = folder / f"{MARK}.gateway"
    path.write_text(json.dumps(record | told))
    return path


def looked_at(home: Path) -> Gateway:
    (found,) = gateways(str(home), {}).values()
    found.start_if_due()
    return found


def test_one_that_was_killed_is_handed_socket_and_lock(tmp_path: Path) -> None:
    on_file(tmp_path)
    found = looked_at(tmp_path)
    assert found.process is not None and found.process.wait() == 0
    listening, lock, mark, own = (tmp_path / "handed").read_text().split()
    assert (int(listening) > 2, int(lock) > 2, mark, own) == (True, True, MARK, "x")
    assert gateways(str(tmp_path), {found.record: found}) == {found.record: found}


def test_one_of_a_group_is_started_beside_the_others_at_their_address(tmp_path: Path) -> None:
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(("127.0.0.1", 0))
    other.listen()
    listens = (
        "import os, socket; one = socket.socket(fileno=int(os.environ['POISE_GATEWAY_INHERITED'].split()[0]));"
        "open('handed', 'w').write(f'{one.getsockname()[1]} {one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}')"
    )
    command, port = [sys.executable, "-c", listens], other.getsockname()[1]
    record = on_file(tmp_path, command=command, port=port, shared=True)
    for is_listening in (True, False):  # the core of a group only holds the address
        told = json.loads(record.read_text())
        record.write_text(json.dumps(told | {"listens": is_listening}))
        found = looked_at(tmp_path)
        assert found.process is not None and found.process.wait() == 0
        assert (tmp_path / "handed").read_text() == f"{port} {is_listening:d}"
    other.close()


def test_one_that_lives_or_has_ended_in_order_is_left_alone(tmp_path: Path) -> None:
    record = on_file(tmp_path)
    lock = os.open(record.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert looked_at(tmp_path).process is None
    os.close(lock)
    record.with_suffix(".lock").unlink()
    assert looked_at(tmp_path).process is None
    record.unlink()
    assert gateways(str(tmp_path), {}) == {} == gateways(str(tmp_path / "none"), {})


@pytest.mark.parametrize("told", [{"boot": "another"}, {"ending": True}])
def test_one_that_ended_with_its_machine_or_drained_when_it_was_killed_is_not_wanted(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    record = on_file(tmp_path, **told)
    assert looked_at(tmp_path).process is None
    assert list(record.parent.iterdir()) == []


@pytest.mark.parametrize("told", [{"port": -1}, {"host": None}, {"command": ["/no/such/program"]}])
def test_one_that_cannot_be_started_is_tried_ever_more_seldom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: dict[str, Any]
) -> None:
    on_file(tmp_path, **told)
    found = looked_at(tmp_path)
    assert found.process is None
    assert "was killed, and cannot be started again" in capsys.readouterr().err
    found.start_if_due()
    assert capsys.readouterr().err == "", "not before its pause is over"
