"""Real gangs for tests: processes that meet in a gloo group, do one thing, and hand back what they found."""

import os
import signal
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch._C._distributed_c10d import FileStore

SECONDS = 60.0


def together(
    what: Callable[..., Mapping[str, Any]], world: int, folder: Path, *arguments: Any, killed: tuple[int, ...] = ()
) -> list[Any]:
    """What each of `world` processes returned, by rank, but those that are to be killed. Raises with the words of the
    first that failed.
    """
    context = processes.get_context("fork")  # without importing PyTorch anew
    workers = [
        context.Process(target=_run, args=(what, rank, world, folder, arguments, not killed)) for rank in range(world)
    ]
    for one in workers:
        one.start()
    for one in workers:
        one.join(SECONDS)
        if one.is_alive():
            one.kill()
    failed = [(folder / f"failed.{rank}") for rank in range(world) if (folder / f"failed.{rank}").exists()]
    assert not failed, failed[0].read_text()
    ended = [one.exitcode for one in workers]
    assert ended == [-signal.SIGKILL if rank in killed else 0 for rank in range(world)]
    return [torch.load(folder / f"told.{rank}", weights_only=True) for rank in range(world) if rank not in killed]


def _run(
    what: Callable[..., Any], rank: int, world: int, folder: Path, arguments: tuple[Any, ...], whole: bool
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(str(folder / "store"), world)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        torch.save(what(rank, world, *arguments), folder / f"told.{rank}")
        if whole:
            dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (folder / f"failed.{rank}").write_text(traceback.format_exc())
        raise
