"""Numbers as they are typed: `1_000` and digits of other scripts are none, though Python takes them."""

from collections.abc import Iterator

import click
import pytest
from click.types import FloatParamType, IntParamType

from poise.cli.group import poise
from poise.cli.main import main
from poise.cli.numbers import Number, NumberRange, Whole, WholeRange
from poise.cli.render import show_error
from poise.cli.slurm import of_slurm
from poise.config import parse_place
from poise.drivers.yamlfile import parse_yaml
from poise.errors import ErrorRecord, InputError, SpecError
from poise.model.fleetfile import compile_fleet
from poise.model.spec import compile_spec
from poise.model.worldfile import compile_world
from poise_serve.openai import Refused, read_deadlines

TWELVE = "\uff11\uff12"


def flags(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    """Of a command and of those below it."""
    for param in command.params:
        yield f"{context.command_path} {param.name}", param
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from flags(below, click.Context(below, info_name=name, parent=context))


def test_every_flag_of_a_number_takes_plain_digits_only() -> None:
    of_numbers = {
        where: param.type
        for where, param in flags(poise, click.Context(poise, info_name="poise"))
        if isinstance(param.type, IntParamType | FloatParamType)
    }
    assert len(of_numbers) > 15
    assert not {
        where: kind
        for where, kind in of_numbers.items()
        if not isinstance(kind, Number | NumberRange | Whole | WholeRange)
    }


@pytest.mark.parametrize("flag", ["--jobs", "--load", "--seed"])
@pytest.mark.parametrize("typed", ["1_0", TWELVE])
def test_what_python_would_take_is_refused(capsys: pytest.CaptureFixture[str], flag: str, typed: str) -> None:
    assert main(["simulate", "poisson:jobs=2", "--fleet", "lab.yaml", flag, typed]) == 1
    error = capsys.readouterr().err
    assert f"invalid value for '{flag}': '{typed}' is not a number in plain digits" in error


@pytest.mark.parametrize("typed", ["nan", "-NaN"])
def test_what_is_no_number_is_in_no_range(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    assert main(["report", f"--co2={typed}"]) == 1
    assert f"invalid value for '--co2': '{typed}' is not a number" in capsys.readouterr().err


def test_a_port_is_written_in_plain_digits() -> None:
    assert parse_place("lab:7718", "--listen") == ("lab", 7718)
    for text in ("lab:7_718", f"lab:77{TWELVE}"):
        with pytest.raises(InputError):
            parse_place(text, "--listen")


@pytest.mark.parametrize("typed", ["1_000", TWELVE])
def test_numbers_in_files_are_written_in_plain_digits(typed: str) -> None:
    """YAML gives these as texts, which no number is read from."""
    for field in ("cpu", "gpu", "memory", "gpu_memory", "network"):
        with pytest.raises(SpecError) as raised:
            compile_spec(parse_yaml(f"run: [work]\nresources: {{{field}: {typed}}}", "job.yaml"), wall=0.0)
        assert raised.value.record.field == f"resources.{field}"
    for field in ("deadline", "expect", "begin", "workers", "parts", "hang", "checkpoint", "weight"):
        with pytest.raises(SpecError) as raised:
            compile_spec(parse_yaml(f"run: [work]\n{field}: {typed}", "job.yaml"), wall=0.0)
        assert raised.value.record.field == field
    for fields in (f"cpu: {typed}", f"count: {typed}", f"memory: {typed}", f"devices: [{{model: T4, price: {typed}}}]"):
        with pytest.raises(SpecError):
            compile_fleet(parse_yaml(f"kind: fleet\nnodes: {{n: {{{fields}}}}}", "fleet.yaml"))
    with pytest.raises(SpecError):
        compile_world(parse_yaml(f"kind: world\nrestart: {{restore: {typed}}}", "world.yaml"))


@pytest.mark.parametrize("said", ["1_0", TWELVE])
def test_a_deadline_in_a_header_is_written_in_plain_digits(said: str) -> None:
    with pytest.raises(Refused):
        read_deadlines({"x-request-timeout-seconds": said})


def test_directives_of_slurm_are_written_in_plain_digits() -> None:
    assert of_slurm(["#SBATCH --time=1:30"])[0].words == ("time-limit=1m30s",)
    for line in ("--time=1_0", f"--time={TWELVE}", "--array=0-9%1_0"):
        assert of_slurm([f"#SBATCH {line}"])[0].words == ()
    assert "parts" not in " ".join(of_slurm(["#SBATCH --array=0-\u00b2"])[0].words)


def test_an_error_of_an_odd_file_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`isdigit` holds for a superscript, of which `int` makes no number."""
    error = SpecError("wrong")
    error.record = ErrorRecord(code="E102", message="wrong", field="cpu", at="job:\u00b2:3")
    show_error(error, as_json=False)
    assert "wrong" in capsys.readouterr().err
