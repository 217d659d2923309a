"""What commands write on other machines, as the control plane keeps it."""

from pathlib import Path

from poise.drivers.logs import Moments
from poise.drivers.places import log_paths
from poise.drivers.shipping import keep
from poise.model.messages import Attempt, Output

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


def test_when_it_was_written_there_is_known_here(tmp_path: Path) -> None:
    attempt = Attempt("j1.main", 1)
    moments = Moments(log_paths(tmp_path, attempt)[0])
    for start, at in ((0, 1_000), (4, 2_000), (0, 1_000), (8, 3_000)):  # one part comes twice
        keep(tmp_path, Output(attempt=attempt, err=False, start=start, data=b"abc\n", at=at))
    assert [moments.at(offset)[0] for offset in (0, 4, 8)] == [1_000, 2_000, 3_000]
    assert moments.since(3_001) == 12
