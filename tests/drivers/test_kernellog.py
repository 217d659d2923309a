"""Errors of NVIDIA devices in the log of the kernel."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from poise.config import Home
from poise.drivers.devices import Inventory
from poise.drivers.kernellog import KernelLog, ran_out_of_memory
from poise.drivers.probes import Finding, Use
from poise.model.messages import DeviceFault
from poise.model.resources import Device

UUIDS = {"0000:3b:00.0": "GPU-a", "0000:af:00.0": "GPU-b"}
INDICES = {"GPU-a": 0, "GPU-b": 1}


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """What the driver says in `/proc/driver/nvidia/gpus`."""
    for address, uuid in UUIDS.items():
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 120\nGPU UUID: \t {uuid}\n")
    return tmp_path / "gpus"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(line("PCI:0000:3b:00", 79) + "\n")
    return path


def line(address: str, code: int, said: str = "pid='<unknown>', name=<unknown>") -> str:
    """A record as the kernel gives it: level, number, time and flags before the text."""
    return f"3,1234,98765432,-;NVRM: Xid ({address}): {code}, {said}"


def write(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{one}\n" for one in lines)


def test_a_device_fails_as_the_kernel_says_and_only_from_now_on(log: Path, driver: Path) -> None:
    with closing(KernelLog(log, driver)) as kernel:
        assert kernel.faults(INDICES) == [], "what is older may have been mended"
        write(log, line("PCI:0000:af:00", 79), line("PCI:0000:AF:00", 79), line("PCI:0000:3b:00", 48))
        assert [(of.index, of.code, of.text) for of in kernel.faults(INDICES)] == [
            (1, "XID 79", "GPU has fallen off the bus"),
            (0, "XID 48", "double-bit ECC error"),
        ]
        assert kernel.faults(INDICES) == []


@pytest.mark.parametrize(
    "text",
    [
        line("PCI:0000:3b:00", 31),  # a fault of the program
        line("PCI:0000:00:00", 79),  # no device of this node
        "6,1,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "6,1,1,-;NVRM: Xid (PCI:0000:3b:00): many",
        "6,1,1,-;audit: somebody wrote 3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79",
        "",
    ],
)
def test_other_records_say_nothing_of_devices(log: Path, driver: Path, text: str) -> None:
    with closing(KernelLog(log, driver)) as kernel:
        write(log, text, "\0\udcff".encode(errors="surrogateescape").decode("latin-1"))
        assert kernel.faults(INDICES) == []


class Card:
    """A driver with one card, which tells of its faults as well."""

    name, hint, rest = "card", "", 0.0

    def find(self) -> Finding:
        return Finding((Device(index=0, memory=1, uuid="GPU-b"),), driver="1")

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        return {}

    def faults(self) -> list[DeviceFault]:
        return [DeviceFault(index=0, code="XID 79", text="GPU has fallen off the bus")]


def test_what_the_driver_and_the_kernel_tell_is_one_fault(log: Path, driver: Path, tmp_path: Path) -> None:
    inventory = Inventory("here", Home(tmp_path), [Card()])
    inventory.look()
    with closing(KernelLog(log, driver)) as kernel:
        write(log, line("PCI:0000:af:00", 79), line("PCI:0000:af:00", 95), line("PCI:0000:3b:00", 79))
        assert [(of.index, of.code) for of in inventory.faults(kernel)] == [(0, "XID 79"), (0, "XID 95")]


def test_a_log_that_may_not_be_read_tells_nothing(tmp_path: Path, driver: Path) -> None:
    with closing(KernelLog(tmp_path / "gone", driver)) as kernel:
        assert kernel.faults(INDICES) == []


def test_without_the_driver_the_log_is_not_opened(log: Path, tmp_path: Path) -> None:
    with closing(KernelLog(log, tmp_path / "none")) as kernel:
        write(log, line("PCI:0000:3b:00", 79))
        assert kernel.faults(INDICES) == []


def test_the_log_of_this_kernel_is_read_without_waiting(driver: Path) -> None:
    with closing(KernelLog(driver=driver)) as kernel:
        assert kernel.faults(INDICES) == []


OOM = (
    "6,1,75,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=libpod-a1,mems_allowed=0,"
    "oom_memcg=/libpod_parent/libpod-a1,task_memcg=/libpod_parent/libpod-a1,task=libpod-b2,pid=7,uid=0\n"
)


def test_a_cgroup_whose_memory_ran_out_is_named_by_the_kernel(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"6,0,1,-;something,oom_memcg=/libpod-c3,\n{OOM}")
    assert ran_out_of_memory("libpod-a1", log)
    assert not ran_out_of_memory("libpod-b2", log), "the name of a process is anything"
    assert not ran_out_of_memory("libpod-c3", log)
    assert not ran_out_of_memory("libpod-a", log)
    assert not ran_out_of_memory("libpod-a1", tmp_path / "none")
