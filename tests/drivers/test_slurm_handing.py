"""What `poise submit --via slurm` asks of `sbatch`: Slurm is in memory."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from poise.cli.main import main
from poise_slurm import COMMANDS, commands


class Slurm:
    """It keeps what is submitted."""

    def __init__(self) -> None:
        self.script = ""
        self.options: tuple[str, ...] = ()

    def test(self, script: str, options: Sequence[str]) -> str:
        return ""

    def submit(self, script: str, options: Sequence[str]) -> str:
        self.script, self.options = script, tuple(options)
        return "17"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    for name in ("test", "submit"):
        monkeypatch.setattr(commands, name, getattr(slurm, name))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in COMMANDS:
        (programs / name).write_text("")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)
    return slurm


def handed(slurm: Slurm, *words: str) -> tuple[str, ...]:
    """The options of `sbatch`."""
    assert main(["submit", "--via", "slurm", "-q", *words]) == 0
    return slurm.options


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    """The errors, by their fields."""
    capsys.readouterr()
    assert main(["submit", "--via", "slurm", "--json", *words]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    return [error, *error.get("others", ())]


def test_the_lines_of_a_script_count_where_no_flag_says_something_else(slurm: Slurm, tmp_path: Path) -> None:
    lines = ("#!/bin/sh", "#SBATCH --cpus-per-task=8", "#SBATCH --chdir=/scratch", "", "cat <<END", "#SBATCH -p x")
    (tmp_path / "job.sh").write_text("\n".join((*lines, "END", "")))
    assert handed(slurm, "job.sh") == ()
    assert [line for line in slurm.script.splitlines() if line.startswith("#SBATCH")] == list(lines[1:3])
    assert handed(slurm, "--cpu", "2.5", "job.sh") == ("--cpus-per-task=3",)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (
            "--after 12 --after 13_4 --after-any 14",
            "--dependency=afterok:12:13_4,afterany:14 --kill-on-invalid-dep=yes",
        ),
        ("--after-failure 12", "--dependency=afternotok:12 --kill-on-invalid-dep=yes"),
        ("--node n1", "--nodelist=n1"),
        ("--exclude-node n1,n2", "--exclude=n1,n2"),
        ("--retries 0", "--no-requeue"),
        ("--begin 2h", "--begin=now+7200"),
        ("--deadline 2h --if-late cancel", "--deadline=now+7200"),
        ("--hold", "--hold"),
        ("--memory 1GiB --gpu 2 --time-limit 90s --name train", "--mem=1024M --gres=gpu:2 --time=2 --job-name=train"),
        ("--memory 0 --gpu 0", ""),
        ("--output %t-%r-%j-%%.log", "--output=main-0-%j-%%.log"),
        ("--expect 5m --class train --sync=off", ""),
    ],
)
def test_a_flag_that_means_the_same_in_slurm_is_translated(slurm: Slurm, flags: str, options: str) -> None:
    assert sorted(handed(slurm, *flags.split(), "--", "true")) == sorted(options.split())


def test_a_job_file_runs_in_its_folder(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "job.yaml").write_text("run: echo\nresources: {cpu: 2}\npreemptible: true\n")
    assert handed(slurm, "below/job.yaml") == (f"--chdir={tmp_path / 'below'}", "--cpus-per-task=2")


@pytest.mark.parametrize(
    "flags",
    [
        "--priority high",
        "--after j1",
        "--after train",
        "--node n1 --node n2",
        "--retries 2",
        "--deadline 2h",
        "--label zone=eu",
        "--no-preempt",
        "--every 1h",
        "--checkpoint 5m",
        "--output out-%a",
        "--network 1Gbit",
    ],
)
def test_a_flag_without_the_same_in_slurm_is_refused_by_its_name(
    slurm: Slurm, capsys: pytest.CaptureFixture[str], flags: str
) -> None:
    [error] = refused(capsys, *flags.split(), "--", "true")
    assert error["field"] == flags.split()[0]
    assert error["hint"]
    assert slurm.options == ()


def test_all_that_is_refused_is_told_at_once_and_where_it_is_written(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text("run: echo\nweight: 2\n")
    monkeypatch.setenv("TOKEN", "x")
    errors = refused(capsys, "--priority", "high", "--secret", "TOKEN", "job.yaml")
    assert {error["field"] for error in errors} == {"--priority", "--secret", "weight"}
    assert [error["at"] for error in errors if error["field"] == "weight"] == ["job.yaml:2:1"]


def test_without_sbatch_it_is_said_where_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    [error] = refused(capsys, "--", "true")
    assert (error["field"], error["have"]) == ("--via", "no sbatch, squeue, scancel, sinfo in PATH")
    assert "login node" in error["hint"]
    assert main(["up", "--on", "slurm"]) == 1
    told = capsys.readouterr().err
    assert "--on" in told and "no sbatch, squeue, scancel, sinfo in PATH" in told and "login node" in told
    assert not (tmp_path / "home").exists()
    assert main(["doctor", "--on", "slurm"]) == 1
    assert "no sbatch" in capsys.readouterr().out
