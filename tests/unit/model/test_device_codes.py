"""Known error codes in what drivers and programs write."""

import pytest

from poise.drivers.nvidia import CRITICAL
from poise.model.device_codes import known


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("XID 79", "XID 79"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=8, name=python", "XID 48"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=8", "XID 31"),
        ("HBM MULTI BIT ECC, Uncorrectable ECC, device_id=3, event_id=0x80e01801, time us=6", "80E01801"),
        ("amdgpu 0000:03:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", "UE"),
        ("amdgpu: bad page threshold reached", "RMA"),
    ],
)
def test_codes_are_found(text: str, code: str) -> None:
    found = known(text)
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize("text", ["", "XID 999", "loss 0.3", "commit deadbeef is bad", "amdgpu: reset"])
def test_others_are_not(text: str) -> None:
    assert known(text) is None


def test_codes_that_a_program_can_cause_close_no_device() -> None:
    assert not CRITICAL.keys() & {13, 31, 43, 45}
    assert {48, 63, 64, 74, 79, 94, 95} == CRITICAL.keys()
