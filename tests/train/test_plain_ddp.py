"""Scripts of others in a gang: they find what torchrun would have given them."""

import time
from pathlib import Path

from poise.drivers.process import environment
from poise.model.messages import Attempt, Launch
from poise.model.resources import Shape
from train.gangs import FORKING, HERE, PATIENCE, work


def test_a_script_of_plain_pytorch_trains_in_a_gang(tmp_path: Path) -> None:
    processes, submitted = [], time.time_ns()
    for rank in range(2):
        launch = Launch(
            attempt=Attempt(f"j1.main[{rank}]", 1),
            argv=("python",),
            shape=Shape(cpu=1000),
            slots=1,
            gang="j1.main",
            rank=rank,
            world=2,
            submitted=submitted,
        )
        env = environment(launch, result=str(tmp_path / f"{rank}.json"), gang_folder=str(tmp_path), devices={})
        env |= {"OUT": str(tmp_path / "out"), "GLOO_SOCKET_IFNAME": "lo"}
        args = (str(HERE / "plain_ddp.py"), env, str(tmp_path / f"{rank}.err"))
        processes.append(FORKING.Process(target=work, args=args, daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0], (tmp_path / "0.err").read_text()
    assert [(tmp_path / f"out.{rank}").read_text() for rank in range(2)] == ["0.5", "0.5"], "the mean of 0 and 1"
