"""Which precision is taken, from what was measured."""

from poise.model.precision import Measured
from poise_train.policy.precision import choose

FP32 = Measured(name="fp32", weights=80, takes={1: 300, 8: 1200})
INT8 = Measured(name="int8", weights=20, takes={1: 100, 8: 900}, kept=0.97)
BF16 = Measured(name="bf16", weights=40, takes={1: 150, 8: 400}, kept=1.0)
SLOW = Measured(name="mixed", weights=80, takes={1: 300, 8: 1190}, kept=1.0)
WRONG = Measured(name="fp16", weights=40, takes={1: 10, 8: 10}, kept=0.9)
BROKEN = Measured(name="pruned-50%", failed="ValueError: it has no linear layer")


def test_the_quickest_that_keeps_enough_is_taken_and_every_other_is_told_why_not() -> None:
    taken = choose([FP32, INT8, BF16, SLOW, WRONG, BROKEN], "auto", 0.95)
    assert taken.name == "bf16"
    assert taken.why == [
        "bf16 is taken: 2.45 times as quick, weights 50% less, 100.0% kept",  # sqrt(2 x 3)
        "int8: 2.00 times as quick as fp32, not 2.45",
        "mixed: 1.00 times as quick as fp32, not 2.45",
        "fp16: 90.0% kept, where 95.0% must be",
        "pruned-50% does not work: ValueError: it has no linear layer",
    ]


def test_where_nothing_that_keeps_enough_is_quicker_the_model_stays() -> None:
    taken = choose([FP32, SLOW, WRONG], "auto", 0.95)
    assert taken.name == "fp32"
    assert taken.why == [
        "fp32 stays: nothing that keeps enough is quicker",
        "mixed: no quicker, 1.00 times as quick",
        "fp16: 90.0% kept, where 95.0% must be",
    ]


def test_one_that_is_asked_for_by_name_need_not_be_quicker_but_must_keep_enough() -> None:
    assert choose([FP32, SLOW], "mixed", 0.95).name == "mixed"
    assert choose([FP32, WRONG], "fp16", 0.95).name == "fp32"
    assert choose([FP32, WRONG], "fp16", 0.9).name == "fp16"
    assert choose([FP32, BROKEN], "pruned-50%", 0.95).why == [
        "fp32 stays",
        "pruned-50% does not work: ValueError: it has no linear layer",
    ]


def test_asked_for_as_it_is_it_stays() -> None:
    assert choose([FP32], "fp32", 0.95).why == ["fp32 stays, as it was asked for"]
