"""What `poise doctor` says of a machine and a home, well and not well."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from poise.config import Home
from poise.drivers import checkup
from poise.drivers.checkup import byte_code, devices, examine, exposed, file_system_of, folder, probe
from poise.drivers.probes import Answer, Finding
from poise.drivers.vault import Vault
from poise.model.reports.nodes import Check
from poise.model.resources import Device, Node

MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /data rw,nosuid - nfs4 server:/x rw
31 30 0:26 / /data/fast\\040disk rw - xfs /dev/vdb rw
"""


def by_name(checks: "list[Check]") -> dict[str, Check]:
    return {check.name: check for check in checks}


class Fake:
    name, hint, rest = "npu-smi", "type this", 0.0

    def find(self) -> Finding:
        return Finding()

    def use(self, indices: object) -> dict[int, object]:
        return {}


def test_a_machine_without_a_home_is_looked_at_and_nothing_is_made(tmp_path: Path) -> None:
    home = Home(tmp_path / "none")
    found = by_name(list(examine(home)))
    assert {
        "poise",
        "kernel",
        "clock",
        "home",
        "disk",
        "writing",
        "token",
        "cgroups",
        "left-overs",
        "NVML",
        "extra",
    } <= set(found)
    assert all(check.status != "fail" for check in found.values())
    assert not home.root.exists()


def test_modules_that_each_process_compiles_anew_are_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("answer = 42\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert byte_code([tmp_path]).status == "ok"  # the next process keeps what it compiles
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    check = byte_code([tmp_path])
    assert (check.status, check.text.partition(";")[0]) == ("warn", "0 of 1 modules are compiled")
    subprocess.run(shlex.split(check.hint), check=True)
    assert byte_code([tmp_path]) == Check("byte code", "ok", "1 of 1 modules are compiled")
    module.write_text("answer = 42 + 1\n")
    assert byte_code([tmp_path]).status == "warn"


def test_a_home_that_others_may_enter_is_worth_a_word(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = by_name(list(folder(Home(tmp_path))))["home"]
    assert (check.status, check.hint) == ("warn", f"chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert by_name(list(folder(Home(tmp_path))))["home"].status == "ok"


def test_a_token_or_a_socket_for_everybody_fails(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.token.write_text("secret")
    home.token.chmod(0o644)
    home.secrets_key.write_text(f"{'a' * 64}\n")
    home.secrets_key.chmod(0o640)
    home.socket.write_text("")
    home.socket.chmod(0o666)
    found = by_name(list(exposed(home)))
    assert (found["secrets"].status, found["secrets"].hint) == (
        "fail",
        "in the state directory: `chmod 600 secrets.key`",
    )
    assert (found["token"].status, found["token"].hint) == ("fail", f"chmod 600 {home.token}")
    assert (found["socket"].status, found["socket"].hint) == ("fail", f"chmod 600 {home.socket}")


def test_keys_of_secrets_are_told_where_there_are_any(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert "secrets" not in by_name(list(exposed(home)))
    Vault.of(home).seal("ann", "A", "value")
    assert by_name(list(exposed(home)))["secrets"].status == "ok"


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    assert file_system_of(Path("/home/x"), MOUNTS) == "ext4"
    assert file_system_of(Path("/data"), MOUNTS) == "nfs4"
    assert file_system_of(Path("/database"), MOUNTS) == "ext4"
    assert file_system_of(Path("/data/fast disk/y"), MOUNTS) == "xfs"
    assert file_system_of(Path("/x"), "nonsense") == ""


@pytest.mark.parametrize(
    ("finding", "status", "text"),
    [
        (Finding((Device(index=0, model="A10"),), driver="5"), "ok", "1 found: A10, driver 5"),
        (Finding(why_none="`npu-smi` is not installed"), "ok", "none: `npu-smi` is not installed"),
        (Finding(why_none="it hangs", failed=True), "warn", "it hangs"),
    ],
)
def test_a_missing_tool_is_no_fault_and_a_broken_one_is(finding: Finding, status: str, text: str) -> None:
    check = probe(Answer(Fake(), finding))  # type: ignore[arg-type]
    assert (check.status, check.text) == (status, text)
    assert bool(check.hint) == (status == "warn")


def test_a_driver_without_its_tool_is_a_surprise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkup.DEVICE_FILES, "npu-smi", str(tmp_path))
    check = probe(Answer(Fake(), Finding(why_none="`npu-smi` is not installed")))  # type: ignore[arg-type]
    assert (check.status, check.hint) == ("warn", "type this")


def test_a_file_of_devices_is_read_and_compared(tmp_path: Path) -> None:
    home = Home(tmp_path)
    node = Node(name="n", incarnation="1", cpu=1, memory=1, devices=(Device(index=0, model="A10"),))
    assert [check.name for check in devices(home, node)] == ["measured"]
    home.devices.write_text("devices: [{model: A10, price: 1}, {model: H100, price: 2}]\n")
    found = by_name(list(devices(home, node)))["devices.yaml"]
    assert (found.status, found.text) == ("warn", "devices[1]: no device here is meant")
    home.devices.write_text("devices: [{prize: 1}]\n")
    found = by_name(list(devices(home, node)))["devices.yaml"]
    assert (found.status, "prize" in found.text, bool(found.hint)) == ("fail", True, True)
