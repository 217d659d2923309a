"""Batches of the models in one process."""

from collections.abc import Callable

from poise_serve.kernel.turns import LOADING, Turns


class Process:
    def __init__(self) -> None:
        self.turns = Turns()
        self.begun: list[str] = []

    def begin(self, name: str) -> Callable[[], None]:
        return lambda: self.begun.append(name)

    def enter(self, name: str, *, alone: bool = False) -> None:
        self.turns.enter((name, "j1.1"), alone, self.begin(name))


def test_batches_of_different_models_run_side_by_side() -> None:
    process = Process()
    process.enter("a")
    process.enter("b")
    assert process.begun == ["a", "b"] and process.turns.serving == {"a", "b"}


def test_a_suspect_runs_alone_and_the_others_wait_in_order() -> None:
    process = Process()
    process.enter("a")
    process.enter("suspect", alone=True)
    process.enter("b")
    assert process.begun == ["a"]
    process.turns.leave(("a", "j1.1"))
    assert process.begun[1:] == ["suspect"] and process.turns.serving == {"suspect"}
    process.turns.leave(("suspect", "j1.1"))
    assert process.begun[2:] == ["b"]


def test_only_the_suspect_waits_for_a_model_that_is_loaded() -> None:
    process = Process()
    process.turns.enter(("l", LOADING), False, process.begin("l"))
    process.enter("suspect", alone=True)
    process.enter("a")
    assert process.begun == ["l", "a"], "loading may take minutes"
    process.turns.leave(("l", LOADING))
    process.enter("b")
    assert process.begun[2:] == [], "the suspect is next"
    process.turns.leave(("a", "j1.1"))
    assert process.begun[2:] == ["suspect"]
    process.turns.leave(("suspect", "j1.1"))
    assert process.begun[3:] == ["b"]


def test_nothing_starts_after_a_loss_until_the_process_is_known_to_be_there() -> None:
    process = Process()
    process.enter("suspect", alone=True)
    process.enter("a")
    process.enter("b")
    process.turns.leave(("suspect", "j1.1"), lost=True)
    process.turns.leave(("a", "j1.1"), lost=True)
    assert process.begun == ["suspect"] and process.turns.lost == {"suspect"}, "`a` had not begun"
    process.turns.go_on()
    assert process.begun == ["suspect", "b"] and not process.turns.lost
