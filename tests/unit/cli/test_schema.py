import json

import jsonschema
import pytest

from poise.cli.main import main
from poise.drivers.schemas import FILES


@pytest.mark.parametrize("kind", [*FILES, "graph"])
def test_a_schema_is_printed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def test_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--list"]) == main(["schema"]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in FILES)
    assert main(["schema", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == FILES.keys()


def test_another_kind_is_refused_with_a_near_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "polcy"]) == 1
    assert "did you mean `policy`?" in capsys.readouterr().err
