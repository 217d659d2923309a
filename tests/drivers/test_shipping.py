"""What commands write on other machines, as the control plane keeps it."""

import os
from pathlib import Path

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.logs import Moments, piece
from poise.drivers.places import log_paths
from poise.drivers.shipping import Shipping, keep
from poise.model.messages import Attempt, Kept, Output

MANY, PART = 64, 64 << 10
MOST = 1 << 20


def test_a_command_that_writes_on_and_on_elsewhere_does_not_fill_the_disk_here(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    path = log_paths(tmp_path, attempt)[0]
    for number in range(MANY):
        output = Output(attempt=attempt, err=False, start=number * PART, data=bytes([number + 1]) * PART)
        assert keep(tmp_path, output, MOST).until == (number + 1) * PART
        assert path.stat().st_blocks * 512 <= MOST + PART
    assert path.stat().st_size == MANY * PART
    with path.open("rb") as file:
        for number in range(MANY - MOST // 2 // PART, MANY):
            file.seek(number * PART)
            assert file.read(PART) == bytes([number + 1]) * PART


def test_what_is_known_to_be_kept_is_not_sent_again_and_another_control_plane_gets_all_of_it(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    path = log_paths(tmp_path, attempt)[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"one\n")
    shipping = Shipping(tmp_path)
    shipping.began(attempt)

    def sent() -> list[tuple[int, bytes]]:
        return [(part.start, part.data) for part in shipping.parts()]

    assert sent() == [], "to nobody"
    shipping.connected("here")
    assert sent() == [(0, b"one\n")]
    assert sent() == []
    shipping.connected("here")
    assert sent() == [(0, b"one\n")], "it may not have come"
    shipping.kept(Kept(attempt=attempt, err=False, until=4))
    with path.open("ab") as file:
        file.write(b"two\n")
    shipping.kept(Kept(attempt=attempt, err=False, until=2))  # of what was sent before, and comes late
    shipping.connected("here")
    assert sent() == [(4, b"two\n")]
    shipping.kept(Kept(attempt=attempt, err=False, until=8))
    shipping.connected("there")
    assert sent() == [(0, b"one\ntwo\n")], "which has kept none of it"
    shipping.ended(attempt)
    assert sent() == []
    assert shipping.follows, "until all of it is kept"
    shipping.kept(Kept(attempt=attempt, err=False, until=8))
    assert sent() == []
    assert not shipping.follows


def test_output_beyond_a_large_hole_arrives(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    path = log_paths(tmp_path / "there", attempt)[0]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one\n")
    os.truncate(path, 2**42)
    with path.open("ab") as file:
        file.write(b"two\n")
    shipping = Shipping(tmp_path / "there")
    shipping.began(attempt)
    shipping.connected("here")
    for part in shipping.parts():
        keep(tmp_path / "here", msgpack_decoder(Output).decode(msgspec.msgpack.encode(part)))
    arrived = log_paths(tmp_path / "here", attempt)[0]
    assert piece(arrived, 2**20, 100) == (2**42, b"two\n")
    assert Moments(arrived).at(2**62)[1] > 2**62, "or nothing there would ever be read to its end"


def test_when_it_was_written_there_is_known_here(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    moments = Moments(log_paths(tmp_path, attempt)[0])
    for start, at in ((0, 1_000), (4, 2_000), (0, 1_000), (8, 3_000)):  # one part comes twice
        keep(tmp_path, Output(attempt=attempt, err=False, start=start, data=b"abc\n", at=at))
    assert [moments.at(offset)[0] for offset in (0, 4, 8)] == [1_000, 2_000, 3_000]
    assert moments.since(3_001) == 12
