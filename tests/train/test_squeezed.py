"""Sessions that send less than their gradients, as a script sees them: real workers, which may come and go."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import poise
from poise.errors import Misused
from train.gangs import HERE, Workers

SCRIPT = HERE / "squeezed.py"
LEARNT = 0.8
"""Plain gradients come to 0.86 in these few steps."""


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Workers]:
    one = Workers(tmp_path, SCRIPT, batch=64, epochs=5)
    yield one
    one.end()


@pytest.mark.parametrize(("kind", "most"), [("powersgd", 0.3), ("local", 0.55)])
def test_two_workers_learn_the_digits_with_half_the_bytes_or_less(gang: Workers, kind: str, most: float) -> None:
    gang.options["kind"] = kind
    gang.start("a", "b", orders=False)
    assert gang.wait("a", "b") == [0, 0], gang.said("a")
    for answer in gang.answers():
        assert answer["accuracy"] > LEARNT
        assert answer["samples"] == 5 * 1300
        assert 0 < answer["sent"] < most * answer["plain"]
        assert answer["weights"] == gang.answers()[0]["weights"]


def test_what_was_not_sent_goes_on_with_a_gang_that_grows_and_shrinks(gang: Workers) -> None:
    gang.options |= {"kind": "topk", "pause": 0.01, "lasting": 10}
    gang.start("a", "b")
    gang.after("a", 20)
    gang.become("a", "b", "c")
    gang.after("c", 40)
    gang.become("c", "a")
    gang.hurry()
    assert gang.wait("b") == [143]
    assert gang.wait("a", "c") == [0, 0], gang.said("a")
    one, other = gang.answers()
    assert one["samples"] == 5 * 1300
    assert np.array_equal(one["weights"], other["weights"])
    assert one["accuracy"] > LEARNT


def test_a_worker_that_is_killed_takes_along_only_what_it_owed(gang: Workers) -> None:
    gang.options |= {"kind": "powersgd", "pause": 0.01}
    gang.start("a", "b", "c")
    gang.after("a", 20)
    gang.kill("b")
    gang.become("a", "c")
    assert gang.wait("a", "c") == [0, 0], gang.said("a")
    one, other = gang.answers()
    assert one["samples"] == 5 * 1300
    assert np.array_equal(one["weights"], other["weights"])
    assert one["accuracy"] > LEARNT


def test_what_is_owed_comes_back_from_a_checkpoint_into_a_gang_of_another_size(gang: Workers, tmp_path: Path) -> None:
    gang.options |= {"kind": "powersgd", "pause": 0.01, "checkpoint": str(tmp_path / "kept"), "every": 10}
    gang.start("a", "b")
    gang.after("a", 45)
    gang.kill("a")
    gang.kill("b")
    later = tmp_path / "later"
    later.mkdir()
    again = Workers(later, SCRIPT, **gang.options)
    try:
        again.start("c", "d", "e", orders=False)
        assert again.wait("c", "d", "e") == [0, 0, 0], again.said("c")
        for answer in again.answers():
            assert answer["samples"] == 5 * 1300
            assert answer["weights"] == again.answers()[0]["weights"]
            assert answer["accuracy"] > LEARNT
        assert again.answers()[0]["restored"]
    finally:
        again.end()


def test_the_adviser_says_what_to_do_and_why_and_does_it(gang: Workers) -> None:
    gang.options["kind"] = "auto"
    gang.start("a", "b", orders=False)
    assert gang.wait("a", "b") == [0, 0], gang.said("a")
    one, other = gang.answers()
    choice, _, why = one["advice"].partition(": ")
    assert choice in ("plain", "fp16", "bf16", "powersgd", "topk")
    assert "of a step waits for gradients" in why
    assert one["advice"] == other["advice"] and one["weights"] == other["weights"]
    assert one["accuracy"] > LEARNT
    assert one["sent"] == one["plain"] if choice == "plain" else one["sent"] < one["plain"]
    assert one["speedups"][0] == 1000 and len(one["speedups"]) == 4


def test_an_exchange_that_is_not_known_is_refused_with_those_that_are() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer, data = torch.optim.SGD(model.parameters()), torch.utils.data.TensorDataset(torch.ones(3, 2))
    with pytest.raises(Misused) as refused:
        poise.Session(model, optimizer, data, exchange="zip")
    assert refused.value.record.field == "exchange"
    assert "powersgd" in refused.value.record.need
