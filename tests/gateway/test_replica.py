"""What a replica says where its answers are too large for one frame."""

import socket

import pytest

from poise.gateway import replica
from poise.gateway.wire import LENGTH, Answer, Answers, Broken, FromReplica, decode_from_replica


def said(message: FromReplica) -> FromReplica:
    class Echo:
        def predict(self, batch: list[int]) -> list[int]:
            return batch

    ours, theirs = socket.socketpair()
    with ours, theirs:
        replica.Worker(replica.Model(Echo()), ours)._say(message)
        data = theirs.recv(1 << 16)
    assert LENGTH.unpack(data[: LENGTH.size])[0] == len(data) - LENGTH.size
    return decode_from_replica.decode(data[LENGTH.size :])


def test_too_large_together_they_are_asked_for_in_halves_and_alone_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "MOST_BODIES", 100)
    small, large = Answer(200, "text/plain", b"x" * 60), Answer(200, "text/plain", b"x" * 101)
    assert said(Answers(1, 5, 1, [small])) == Answers(1, 5, 1, [small])
    together = said(Answers(1, 5, 2, [small, small]))
    assert isinstance(together, Broken) and together.why == "memory"
    alone = said(Answers(1, 5, 1, [large]))
    assert isinstance(alone, Answers)
    assert alone.answers[0].status == 500 and b"101 bytes" in alone.answers[0].body


def test_sizes_beyond_the_largest_batch_are_not_tried() -> None:
    class Four:
        def predict(self, batch: list[int]) -> list[int]:
            assert len(batch) <= 4
            return batch

        def example(self) -> int:
            return 1

    assert [size for size, _ in replica.tried(replica.Model(Four()), 4)] == [1, 2, 3, 4]
