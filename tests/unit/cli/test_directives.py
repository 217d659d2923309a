import subprocess
from pathlib import Path

import pytest

from poise.cli.asking import asked
from poise.cli.directives import Script, no_flags, read_script
from poise.cli.slurm import of_slurm
from poise.cli.submit import asked_for
from poise.errors import ErrorRecord, PoiseError, SpecError, placed
from poise.model.spec import compile_spec

NO_FLAGS = no_flags()


def script(folder: Path, *lines: str, name: str = "train.sh") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder: Path, *lines: str, name: str = "train.sh") -> Script:
    return read_script(script(folder, *lines, name=name), {"USER": "me"}, {})


def refused(folder: Path, *lines: str) -> list[ErrorRecord]:
    with pytest.raises(SpecError) as caught:
        read(folder, *lines)
    return list(caught.value.record.all())


def test_a_script_says_what_it_needs(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        "#!/usr/bin/env bash",
        "# Trains.",
        "#POISE gpu=1 memory=8GiB --gpu-model=H100 gpu_model=A100",
        "",
        '#POISE name=train env=SEED=1 env=USER expect=10m preemptible=false retry="{limit: 2, when: [oom]}"',
        "python train.py",
    )
    assert made.command == ["/usr/bin/env", "bash", str(tmp_path / "train.sh")]
    assert made.spec == {
        "resources": {"gpu": 1, "memory": "8GiB", "gpu_model": ["H100", "A100"]},
        "name": "train",
        "env": {"SEED": "1", "USER": "me"},
        "expect": "10m",
        "preemptible": False,
        "retry": {"limit": 2, "when": ["oom"]},
    }
    compile_spec(made.spec | {"run": made.command}, wall=0.0)


def test_a_sweep_in_either_spelling(tmp_path: Path) -> None:
    flags = read(tmp_path, "#POISE sweep=lr=0.1,0.01 sweep=seed=1..5 at_most=2")
    assert flags.spec == {"sweep": {"lr": ["0.1", "0.01"], "seed": "1..5"}, "at_most": 2}
    assert read(tmp_path, '#POISE sweep="{lr: [0.1, 0.01]}"').spec == {"sweep": {"lr": ["0.1", "0.01"]}}
    assert read(tmp_path, '#POISE env="{A: 12.10}"').spec == {"env": {"A": "12.10"}}


def test_without_a_first_line_the_ending_tells_what_runs_it(tmp_path: Path) -> None:
    assert read(tmp_path, "echo").command == ["/bin/sh", str(tmp_path / "train.sh")]
    assert "python" in read(tmp_path, "print()", name="train.py").command[0]


def test_flags_override_directives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "#POISE gpu=1 memory=8GiB env=A=1 name=a")
    spec, place = asked_for(["train.sh", "--epochs", "3"], NO_FLAGS | {"gpu": "2", "env": ("B=2",), "name": "b"})
    assert spec["resources"] == {"gpu": 2, "memory": "8GiB"}
    assert (spec["env"], spec["name"], spec["folder"]) == ({"A": "1", "B": "2"}, "b", str(tmp_path))
    assert spec["run"][-2:] == ["--epochs", "3"]
    assert (place("resources.memory"), place("resources.gpu"), place("name")) == ("train.sh:1", "", "")


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    records = refused(
        tmp_path,
        "#!/bin/sh",
        "#POISE gpus=1 priorty=high grace=soon",
        '#POISE name="a',
        "#POISE no_preempt=yes cpu",
        "#POISE name=a name=b",
        "# POISE memory=1GiB",
        "#POISE run=x",
        "#POISE retry={limit",
        "echo",
        "#POISE gpu=2",
    )
    assert [record.at.rpartition(":")[2] for record in records] == [
        "3", "6", "10", "2", "2", "4", "4", "5", "7", "8", "2"
    ]  # fmt: skip
    hints = {record.at.rpartition(":")[2]: record.hint for record in records}
    assert hints["6"] == "#POISE memory=1GiB"
    assert hints["10"] == "move it up, above line 9"
    assert "did you mean `priority`?" in [record.hint for record in records]
    assert all(record.hint for record in records)


@pytest.mark.parametrize(
    "line",
    [
        "#POISE deadline=30m if-late=cancel",
        "#POISE --deadline=30m if_late=cancel",
        '#POISE deadline="{by: 30m, if-late: cancel}"',
        '#POISE deadline="{by: 30m}" if-late=cancel',
    ],
)
def test_a_deadline_and_what_becomes_of_late_work(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, line, "true").spec == {"deadline": {"by": "30m", "if-late": "cancel"}}


def test_what_is_wrong_with_a_deadline_is_told_with_its_line(tmp_path: Path) -> None:
    made = read(tmp_path, "#POISE deadline=soon", "#POISE if-late=panic", "true")
    for spec, where in ((made.spec, 2), (made.spec | {"deadline": {"by": "soon"}}, 1)):
        with pytest.raises(PoiseError) as caught:
            compile_spec(spec | {"run": made.command}, wall=0.0)
        [record] = placed(caught.value.record, made.place).all()[:1]
        assert record.at == f"{tmp_path}/train.sh:{where}"


def test_what_the_scheduler_refuses_is_told_with_its_line(tmp_path: Path) -> None:
    made = read(tmp_path, "#!/bin/sh", "#POISE memory=lots", "#POISE env=1=x")
    with pytest.raises(PoiseError) as caught:
        compile_spec(made.spec | {"run": made.command}, wall=0.0)
    found = {record.field: record.at for record in placed(caught.value.record, made.place).all()}
    assert found == {"resources.memory": f"{tmp_path}/train.sh:2", "env.1": f"{tmp_path}/train.sh:3"}


LOST = ("partition", "16:00", "now+0", "now+1month", "n[1-3]", "%x", "lots", "comment", "craynetwork", "kepler", "((")
"""What nothing here corresponds to is named."""


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("--gres=gpu:h100:2 --mem=16G", "gpu=2 gpu_model=h100 memory=16GiB"),
        ("-c 4 -t 1-02:30:00 -J fit", "cpu=4 time-limit=1d2h30m name=fit"),
        ("--time=90 --mem 500", "time-limit=90m memory=500MiB"),
        ("--array=0-99%4", "parts=100 at_most=4"),
        ("--array=1-9:2", "sweep=i=1..9:2"),
        ("--ntasks=4 --partition=long", "cpu=4"),
        ("--begin=now+2hours -n 2", "begin=2h cpu=2"),
        ("--begin=now+90 --begin=16:00", "begin=90s"),
        ("--begin=now+0 --begin=now+1month -n 2", "cpu=2"),
        ("--deadline=now+2hours", "deadline=2h if-late=cancel"),
        ("--deadline=16:00 -n 2", "cpu=2"),
        ("-w n1,n2 --exclude=n3", "node=n1 node=n2 exclude_node=n3"),
        ("--dependency=afterok:1:2,afterany:3 -n 2", "after=j1 after=j2 after_any=j3 cpu=2"),
        ("--array=1-3 --output=out-%j.txt", "sweep=i=1..3 output=out-%j-%r.txt"),
        ("-n 2 -o out/%j", "cpu=2 output=out/%j"),
        ("-o out/%A_%4a.log", "output=out/%j_%r.log"),
        ("-o out/%A_%a.log -a 1-3", "output=out/%j_${i}.log sweep=i=1..3"),
        ("-o out/%A_%a.log -a 0-3", "output=out/%j_%r.log parts=4"),
        ("-n 2 --mem-per-cpu=100M -c 3", "memory=600MiB cpu=6"),
        ("--mem-per-cpu=2G", "memory=2GiB"),
        ("-N 1 --ntasks-per-node=4 -c 2", "cpu=8"),
        ("--ntasks-per-node=4", "cpu=4"),
        ("-n 2 --ntasks-per-node=4", "cpu=2"),
        ("--mem-per-cpu=2G --mem=1G", "memory=1GiB"),
        ("--output=%x.log -n 2", "cpu=2"),
        ("--mem=2GB -n 2", "memory=2GiB cpu=2"),
        ("--mem=lots -n 2", "cpu=2"),
        ('--job-name="train"', "name=train"),
        ("--job-name='my run' -n 2  # don't", "name=my-run cpu=2"),
        ('--job-name="((" -n 2', "cpu=2"),
        ('--output="logs/%j.out"', "output=logs/%j.out"),
        ('--array=1-3 --output="my logs/%j.out"', "sweep=i=1..3 output=my logs/%j-%r.out"),
        ('--comment="a b" -n 2', "cpu=2"),
        ("-dafterok:j1 -d afternotok:fit", "after=j1 after_failure=fit"),
        ("--hold -n 2", "hold cpu=2"),
        ("-H", "hold"),
        ("--gres=craynetwork:2 -n 2", "cpu=2"),
        ("--gres=gpu:2,craynetwork:1", "gpu=2"),
        ("--gres=gpu:a100", "gpu=1 gpu_model=a100"),
        ("--gpus=volta:1,kepler:2 -n 2", "cpu=2"),
        ("--time=0 -n 2", "cpu=2"),
        ("-t UNLIMITED", ""),
    ],
)
def test_slurms_lines_are_translated_and_what_has_no_counterpart_is_named(line: str, same: str) -> None:
    [read] = of_slurm(["#!/bin/sh", f"#SBATCH {line}"])
    assert read.line == 2
    assert " ".join(read.words) == same
    assert bool(read.lost) == any(word in line for word in LOST)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("--dependency=singleton", "--dependency"),
        ("-d afterok:1?afterok:2", "--dependency"),
        ("--dependency=after:1+5", "--dependency"),
        ("--dependency=afterok:1_2", "--dependency"),
        ("-J", "--job-name"),
        ("--mem --time=10", "--mem"),
        ("--mem=", "--mem"),
        ('--job-name="fit', ""),
    ],
)
def test_slurms_lines_that_cannot_be_followed_are_refused(tmp_path: Path, line: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, "#!/bin/sh", f"#SBATCH {line}", "true")
    record = caught.value.record
    assert (record.code, record.field, record.at) == ("E102", field, f"{tmp_path}/train.sh:2")
    assert record.hint and record.message


def test_a_dependency_that_a_flag_replaces_is_not_refused(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh", "#SBATCH --dependency=singleton", "true")
    assert read_script(path, {}, {"after": ["j1"]}).spec == {}


def test_a_script_that_slurm_holds_is_held_here(tmp_path: Path) -> None:
    spec = read(tmp_path, "#!/bin/sh", '#SBATCH --hold --job-name="fit"', "true").spec
    assert spec == {"hold": True, "name": "fit"}


def test_a_script_for_slurm_runs_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        "#!/bin/bash",
        "#SBATCH -J fit --cpus-per-task=2 --mem=1G",
        "#SBATCH -t 10 -p long",
        "#SBATCH --gres=gpu:2",
    )
    made = read(tmp_path, *lines, "python fit.py")
    assert made.spec == {"name": "fit", "time-limit": "10m", "resources": {"cpu": 2, "memory": "1GiB", "gpu": 2}}
    assert made.command == ["/bin/bash", str(tmp_path / "train.sh")]
    compile_spec(made.spec | {"run": made.command}, wall=0.0)
    assert "ignored, nothing here is the same: `--partition` (line 3)" in capsys.readouterr().err


def test_directives_and_flags_count_more_than_slurms_lines(tmp_path: Path) -> None:
    lines = ("#!/bin/sh", "#SBATCH --mem=1G --time=10 --deadline=now+1hour", "#POISE memory=2GiB deadline=5h", "true")
    path = script(tmp_path, *lines)
    made = read_script(path, {}, {"time-limit": "1h"})
    assert made.spec == {"resources": {"memory": "2GiB"}, "deadline": "5h"}


def test_a_script_runs_once_with_the_cpus_of_all_its_tasks(tmp_path: Path) -> None:
    assert read(tmp_path, "#SBATCH --ntasks=4", "true").spec == {"resources": {"cpu": 4}}
    assert read(tmp_path, "#SBATCH -n 4 -c 2", "true").spec == {"resources": {"cpu": 8}}
    made = read(tmp_path, "#SBATCH -n 4 --gpus-per-task=h100:1", "true")
    assert made.spec == {"resources": {"cpu": 4, "gpu": 4, "gpu_model": ["h100"]}}
    assert read(tmp_path, "#SBATCH -n 4 --gpus=2", "true").spec == {"resources": {"cpu": 4, "gpu": 2}}
    assert read(tmp_path, "#SBATCH -n 1 -c 2", "true").spec == {"resources": {"cpu": 2}}


def test_slurms_variables_have_their_values_where_the_script_uses_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = read(
        tmp_path,
        "#!/bin/sh",
        "#SBATCH --array=1-2 -c 2",
        "echo $SLURM_ARRAY_TASK_ID of ${SLURM_JOB_ID}, $SLURM_CPUS_PER_TASK",
    )
    variables = {"POISE_SWEEP_I": "2", "POISE_PART": "1", "POISE_JOB": "j17", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(made.command, env=variables, check=True, capture_output=True, text=True)
    assert done.stdout == "2 of 17000001, 2\n", "each task of an array has its own id"
    made = read(tmp_path, "#SBATCH -n 4 -c 2", "echo $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE")
    done = subprocess.run(made.command, env={"PATH": "/bin"}, check=True, capture_output=True, text=True)
    assert done.stdout == "4 2 8\n", "`mpirun -np $SLURM_NTASKS` starts all tasks"
    made = read(tmp_path, "#SBATCH --array=0-9", "echo $SLURM_ARRAY_TASK_ID $SLURM_TASKS_PER_NODE")
    done = subprocess.run(
        made.command, env={"POISE_PART": "7", "PATH": "/bin"}, check=True, capture_output=True, text=True
    )
    assert done.stdout == "7\n"
    assert "`$SLURM_TASKS_PER_NODE`" in capsys.readouterr().err


def test_a_value_that_cannot_be_is_refused_with_its_line(tmp_path: Path) -> None:
    made = read(tmp_path, "#!/bin/sh", "#SBATCH --cpus-per-task=many", "true")
    with pytest.raises(PoiseError) as caught:
        compile_spec(made.spec | {"run": made.command}, wall=0.0)
    assert [record.at for record in placed(caught.value.record, made.place).all()] == [f"{tmp_path}/train.sh:2"]


def test_sweeps_on_the_command_line() -> None:
    assert asked(NO_FLAGS | {"sweep": ("lr=0.1,0.01", "seed=1..5")}, {})["sweep"] == {
        "lr": ["0.1", "0.01"],
        "seed": "1..5",
    }
    for wrong in (("lr",), ("lr=1..3,7",), ("lr=1", "lr=2")):
        with pytest.raises(SpecError):
            asked(NO_FLAGS | {"sweep": wrong}, {})


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("#POISE array=3", "did you mean `parts`?"),
        ("#POISE time=10m", "did you mean `time-limit`?"),
        ("#POISE memory = 1GiB", "#POISE memory=1GiB"),
    ],
)
def test_what_other_schedulers_write_is_understood_as_a_near_miss(tmp_path: Path, line: str, hint: str) -> None:
    assert [one.hint for one in refused(tmp_path, line, "true")] == [hint]


def test_a_variable_may_be_empty(tmp_path: Path) -> None:
    assert read(tmp_path, "#POISE env=A= gpu=1", "true").spec == {"env": {"A": ""}, "resources": {"gpu": 1}}


def test_a_flag_may_stand_before_others(tmp_path: Path) -> None:
    assert read(tmp_path, "#POISE no_preempt gpu=1", "true").spec == {"preemptible": False, "resources": {"gpu": 1}}


def test_retries_and_their_pause_are_directives(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n#POISE retries=2 backoff=2s\ntrue\n")
    assert read_script(path, {}, {}).spec["retry"] == {"limit": 2, "backoff": "2s"}
