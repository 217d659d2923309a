"""What commands write on other machines, as the control plane keeps it."""

from pathlib import Path

from poise.drivers.process import log_paths
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
