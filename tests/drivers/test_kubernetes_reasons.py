"""Reasons that Pods are told: each Pod in its turn, and each reason once."""

from poise.model.decisions import Reason
from poise.model.reports.questions import Explanation, Refusing, Waiting
from poise_kubernetes.scheduling import TOLD, Events, reason_of


def test_every_pod_that_waits_is_told_in_its_turn() -> None:
    events, names = Events(), [f"ml.p{number:03}" for number in range(3 * TOLD - 5)]
    turns = [events.in_turn(names) for _ in range(3)]
    assert [len(turn) for turn in turns] == [TOLD] * 3
    assert {name for turn in turns for name in turn} == {*names}
    assert events.in_turn([]) == []
    assert events.in_turn(names[:3]) == names[:3], "it begins anew"


def test_a_reason_is_told_once_and_a_node_that_is_not_ready_in_the_words_of_kubernetes() -> None:
    short = Reason(code="CPU_BUSY", subject="n2", need="0.5", have="0.1")
    unfit = Reason(code="NODE_UNFIT", subject="n3")
    refusing = tuple(Refusing(count=1, nodes=(of.subject,), reasons=(of,)) for of in (short, unfit))
    waiting = Waiting(count=1, named=("j1.main",), asks="", reasons=(short,), refusing=refusing)
    told = Explanation(job="j1", name="ml.p", status="pending", revision=1, policy="poise", waiting=(waiting,))
    node = "n3: Kubernetes has cordoned the node"
    assert reason_of(told, node) == f"{short.sentence()}; {node} (`poise explain ml.p`)"
