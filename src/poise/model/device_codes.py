"""Error codes of accelerators: meaning, and what to do.

Sources:
* NVIDIA, "Analyzing Xid Errors with the Xid Catalog", docs.nvidia.com/deploy/xid-errors.
* Huawei, MindCluster, `component/ascend-device-plugin/build/faultCode.json` (gitcode.com/Ascend/mind-cluster), which
  groups event codes by how they are handled; event 80E01801 is an uncorrectable error of HBM.
* Linux kernel, "AMDGPU RAS Support" (docs.kernel.org/gpu/amdgpu/ras.html).

>>> known("XID 79").meaning
'GPU has fallen off the bus'
>>> known("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus").vendor
'nvidia'
"""

import re

import msgspec

RESTART = "restart the job"
RESET = "reset the device, or restart the machine"
POWER = "switch the machine off and on; replace the device if it happens again"
MEMORY = "reset the device to remap its memory; replace it if it happens again"
REPLACE = "take the device out of service and contact its vendor"
LINKS = "check the links between the devices, then reset the device"
PROGRAM = "look for the error in the program first"


class DeviceCode(msgspec.Struct, frozen=True):
    """A vendor's code. `hardware`: it indicates a fault of the device, not of the program."""

    vendor: str
    code: str
    meaning: str
    advice: str
    hardware: bool = True


XID: dict[int, DeviceCode] = {
    code: DeviceCode("nvidia", f"XID {code}", meaning, advice, hardware)
    for code, meaning, advice, hardware in (
        (8, "GPU stopped processing", RESTART, False),
        (13, "graphics engine exception", PROGRAM, False),
        (31, "memory page fault", PROGRAM, False),
        (43, "GPU stopped processing a program", PROGRAM, False),
        (45, "a program was ended while it used the GPU", PROGRAM, False),
        (48, "double-bit ECC error", MEMORY, True),
        (63, "memory row remapped or page retired", MEMORY, True),
        (64, "memory row could not be remapped", REPLACE, True),
        (74, "NVLink error", LINKS, True),
        (79, "GPU has fallen off the bus", POWER, True),
        (94, "contained memory error", RESTART, True),
        (95, "uncontained memory error", RESET, True),
    )
}
"""NVIDIA's Xid codes."""

ASCEND: dict[str, DeviceCode] = {
    code: DeviceCode("ascend", code, meaning, advice)
    for code, meaning, advice in (
        ("80E01801", "uncorrectable error of the device memory", RESTART),
        ("80C98009", "bus error of a compute core", RESTART),
        ("80CB8009", "bus error of a vector core", RESTART),
        ("80E18005", "the device needs a reset", RESET),
        ("80E3A203", "the device needs a reset", RESET),
        ("80E3A201", "the device must be isolated", REPLACE),
        ("80E18402", "the device must be isolated", REPLACE),
    )
}
"""Event codes of Ascend devices."""

AMD: dict[str, DeviceCode] = {
    code: DeviceCode("amd", code, meaning, advice)
    for code, meaning, advice in (
        ("UE", "uncorrectable error found by RAS", RESET),
        ("RMA", "more bad pages than the device may have", REPLACE),
    )
}
"""Error kinds of AMD's RAS."""

_XID = re.compile(r"\bXid\b(?: \(PCI:[0-9a-f:.]+\))?:? *(\d{1,3})", re.IGNORECASE)
_ASCEND = re.compile(r"(?:event_id[:=] ?|ASCEND )?\b(?:0x)?([0-9A-F]{8})\b", re.IGNORECASE)
_AMD = re.compile(r"amdgpu.*\buncorrectable (?:hardware )?error", re.IGNORECASE)
_AMD_RMA = re.compile(r"amdgpu.*\b(?:RMA|bad page threshold)\b", re.IGNORECASE)


def known(text: str) -> DeviceCode | None:
    """Return the first known code in a code, a sentence or a line of a log; None if there is none."""
    if found := _XID.search(text):
        return XID.get(int(found[1]))
    if _AMD.search(text):
        return AMD["UE"]
    if _AMD_RMA.search(text):
        return AMD["RMA"]
    return next((ASCEND[code] for one in _ASCEND.finditer(text) if (code := one[1].upper()) in ASCEND), None)
