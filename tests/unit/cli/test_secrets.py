"""Secrets on the command line: read from the environment, a file or standard input, and never typed."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from poise.cli.asking import asked, merged, told_as_flags
from poise.cli.directives import no_flags, read_script
from poise.cli.main import main
from poise.cli.secrets import with_values
from poise.cli.submit import asked_for, read_spec
from poise.errors import SpecError
from poise.model.servicefile import DeclaredService
from poise_serve.cli.documents import of_file
from poise_serve.cli.serve import _own, declared_of, serve

VALUE = "hf_correct-horse-battery"
ENVIRON = {"HF_TOKEN": VALUE}


def flags(*secrets: str) -> dict[str, Any]:
    return no_flags() | {"secret": secrets}


def secrets_of(spec: dict[str, Any], environ: dict[str, str] = ENVIRON) -> dict[str, str]:
    made: dict[str, str] = with_values(spec, environ)["secrets"]
    return made


def refused(spec: dict[str, Any], given: dict[str, Any] | None = None) -> SpecError:
    with pytest.raises(SpecError) as raised, told_as_flags(given or {}):
        with_values(spec, ENVIRON)
    assert "horse" not in repr([raised.value.record, raised.value.__notes__])
    return raised.value


def test_a_flag_takes_the_value_from_the_environment_or_a_file(tmp_path: Path) -> None:
    token = tmp_path / "token.txt"
    token.write_text("s3cret\r\n\n")
    spec = {"run": "true"} | asked(flags("HF_TOKEN", f"KEY=@{token}"), ENVIRON)
    assert secrets_of(spec) == {"HF_TOKEN": VALUE, "KEY": "s3cret"}


def test_one_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    spec = {"run": "true"} | asked(flags("KEY=@-"), {})
    assert secrets_of(spec) == {"KEY": "from a pipe"}


def test_a_file_names_its_secrets_and_files_are_found_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text("s3cret")
    file = tmp_path / "job.yaml"
    file.write_text("run: true\nsecrets: [HF_TOKEN]\n")
    assert secrets_of(read_spec(file, ENVIRON)) == {"HF_TOKEN": VALUE}
    file.write_text("run: true\nsecrets:\n  HF_TOKEN:\n  KEY: {file: token.txt}\n")
    assert secrets_of(read_spec(file, ENVIRON)) == {"HF_TOKEN": VALUE, "KEY": "s3cret"}
    file.write_text("kind: graph\ntasks:\n  a:\n    run: true\n    secrets: {KEY: {file: token.txt}}\n")
    assert with_values(read_spec(file, ENVIRON), {})["tasks"]["a"]["secrets"] == {"KEY": "s3cret"}


def test_flags_add_to_what_a_file_or_a_script_names(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("run: true\nsecrets: [HF_TOKEN]\n")
    spec = asked_for([str(file)], flags("KEY")).spec
    assert secrets_of(spec, ENVIRON | {"KEY": "k"}) == {"HF_TOKEN": VALUE, "KEY": "k"}
    script = tmp_path / "job.sh"
    for said in ("secret=HF_TOKEN", "secrets=[HF_TOKEN]", '"secrets={HF_TOKEN: }"'):
        script.write_text(f"#POISE {said}\ntrue\n")
        own = asked(flags("KEY"), {})
        spec = merged(read_script(script, {}, own).spec, own)
        assert secrets_of(spec, ENVIRON | {"KEY": "k"}) == {"HF_TOKEN": VALUE, "KEY": "k"}


def test_a_value_is_not_typed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command, code in (("run", 125), ("submit", 1), ("plan", 1)):
        assert main([command, "--secret", f"HF_TOKEN={VALUE}", "--", "true"]) == code
        told = "".join(capsys.readouterr())
        assert "hint: --secret HF_TOKEN" in told and "horse" not in told
    script = tmp_path / "job.sh"
    script.write_text(f"#POISE gpu=1\n#POISE secret=HF_TOKEN={VALUE}\ntrue\n")
    with pytest.raises(SpecError) as raised:
        read_script(script, {}, {})
    assert raised.value.record.at == f"{script}:2" and "horse" not in repr(raised.value.record)
    assert refused({"secrets": {"HF_TOKEN": VALUE}}).record.hint == "secrets: [HF_TOKEN]"


def test_what_is_not_there_is_named_by_its_flag(tmp_path: Path) -> None:
    given = flags("MISSING", f"KEY=@{tmp_path}/none")
    error = refused(asked(given, {}), given)
    assert [one.field for one in error.record.all()] == ["--secret", "--secret"]
    assert error.record.message == "`MISSING` is not set in your environment"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    given = flags(f"KEY=@{tmp_path}/binary")
    assert refused(asked(given, {}), given).record.message == "the file of a secret is not UTF-8 text"


def test_a_plan_reads_no_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert main(["plan", "--secret", "HF_TOKEN", "--json", "--", "true"]) == 0
    assert "HF_TOKEN" not in capsys.readouterr().out


def test_a_service_and_its_canary_have_their_values_and_paths_are_from_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "token.txt").write_text("of the file")
    (tmp_path / "here" / "token.txt").write_text("of the flag")
    monkeypatch.chdir(tmp_path / "here")
    file = tmp_path / "service.yaml"
    file.write_text(
        "kind: service\nname: s\nmodel: app.py:M\nsecrets: {A: {file: token.txt}}\ncanary: {model: b.py:M}\n"
    )
    unset: dict[str, Any] = dict.fromkeys(option.name for option in serve.params if option.name)
    made = declared_of(of_file(file, _own(unset | flags("B=@token.txt")))[0].document)
    assert isinstance(made, DeclaredService) and made.canary is not None
    assert made.job["secrets"] == made.canary.job["secrets"] == {"A": "of the file", "B": "of the flag"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["=@file"], "the secret has no name"),
        (["KEY=@"], "the file of the secret is missing"),
        (["KEY", "KEY=@file"], "the secret is given twice"),
    ],
)
def test_a_flag_with_a_part_missing_says_which(given: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        asked(flags(*given), {})
