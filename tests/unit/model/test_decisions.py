import ast
import re
from pathlib import Path

import poise
from poise.model.decisions import REASONS, Reason, Why
from poise.model.scaling import BECAUSES

CORE = Path(poise.__file__).parent
SERVING = CORE.with_name("poise_serve")


def test_a_reason_says_where_and_what() -> None:
    busy = Reason(code="CPU_BUSY", subject="n1", need="4", have="2")
    assert busy.sentence() == "n1: 2 CPU free, 4 needed"
    assert Reason(code="BEHIND", subject="j1.main").sentence() == "waits behind j1.main, which came first"


def codes(files: set[Path]) -> set[str]:
    """What is written in capitals there, but for the names that a module exports."""
    return {
        str(found.value)
        for path in files
        for statement in ast.parse(path.read_text()).body
        if not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__")
        for found in ast.walk(statement)
        if isinstance(found, ast.Constant) and re.fullmatch("[A-Z][A-Z_]+", str(found.value))
    }


def test_every_reason_that_is_given_has_its_sentence_and_every_sentence_is_used() -> None:
    files = {path for of in (CORE, SERVING) for folder in ("policy", "kernel") for path in (of / folder).glob("*.py")}
    scaling = CORE / "policy" / "replicas.py"  # whose lines have sentences of their own
    given = codes(files - {scaling})
    assert codes({scaling}) == set(BECAUSES)
    assert {"CPU_BUSY", "GANG_INCOMPLETE", "NOT_PENDING"} <= given
    assert given <= set(REASONS)


def test_why_says_what_was_not_chosen() -> None:
    why = Why(policy="poise", rank="high", score={"fit on n1": 0.5}, instead_of=("n2", "n3"))
    assert why.sentence() == "high; fit on n1 0.5; not n2, n3"
    compared = Why(policy="poise", rank="high", score={"score on n1": 0.5}, instead_of=("n2",), behind=(0.25,))
    assert compared.sentence() == "high; score on n1 0.5; not n2 (0.25)"
