"""An upgrade with running work, by the real code of both versions: the last commit of 0.1.0, and this one."""

import io
import os
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

import poise
from poise.model.record import FORMAT
from system.living import Diary, Done, Living, ended, until

ROOT = Path(__file__).parent.parent.parent
LAST_OF_0_1 = "51528146"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of 0.1.0."""
    archive = subprocess.run(["git", "archive", LAST_OF_0_1, "src"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"needs the history of the repository: {archive.stderr.decode()}")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
        file.extractall(folder, filter="data")
    return folder / "src"


def test_running_work_goes_through_an_upgrade_and_the_older_version_then_refuses_the_log(
    living: Living, older: Path
) -> None:
    def before(*arguments: str) -> Done:
        """`poise …` of the older version."""
        path = os.pathsep.join([str(older), *filter(None, [os.environ.get("PYTHONPATH")])])
        return ended(living.start(*arguments, PYTHONPATH=path))

    assert before("--version").text == "poise 0.1.0\n"
    assert before("up", "--port", "0", "--policy", "fifo").code == 0
    diary = Diary(living.work / "diary")
    living.file("long.yaml", f"run: '{diary.held()}'\nname: long\n")
    assert before("submit", "long.yaml").code == 0
    assert before("run", "--cpu", "0.1", "--name", "over", "--", "echo", "before").code == 0
    until(lambda: list(diary.entries()), "it runs")
    tasks = living.tasks()
    assert before("down", "--leave").code == 0

    done = living.poise("up", "--json")
    assert (done.code, done.value["version"]) == (0, poise.__version__), done
    assert "`--policy fifo`" in done.err, "what the older version was up with is kept"
    assert living.tasks() == tasks
    assert living.poise("show", "over", "--json").value["status"] == "done"
    assert living.poise("logs", "over").out == b"before\n"
    assert living.poise("run", "--cpu", "0.1", "--", "echo", "after").out == b"after\n"
    diary.release()
    assert living.poise("wait", "long").code == 0
    assert living.poise("show", "long", "--json").value["tasks"][0]["epoch"] == 1, "it ran once, through the upgrade"
    assert diary.endings() == ["j1.main"]

    assert living.poise("down").code == 0
    with closing(sqlite3.connect(living.home.log)) as log:
        assert log.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    refused = before("up", "--json")
    assert (refused.code, refused.error["code"], refused.error["need"]) == (2, "E206", poise.__version__), refused
    assert f"use Poise {poise.__version__} or newer" in refused.error["hint"]
    until(lambda: not living.pid("supervisor"), "the older version has gone")
    assert [job["status"] for job in living.poise("ls", "--json").value] == ["done"] * 3, "nothing is lost by trying"
