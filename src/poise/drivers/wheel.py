"""Packs the running Poise as a wheel, to install the same version on another machine."""

import zipfile
from importlib import metadata
from pathlib import Path

import poise
from poise.errors import DISTRIBUTION, Fault

PACKAGES = (
    "poise",
    "poise_ha",
    "poise_kubernetes",
    "poise_lab",
    "poise_ray",
    "poise_serve",
    "poise_slurm",
    "poise_train",
)
"""All packages in the wheel."""

PYTHON = (3, 11)
"""The oldest supported version of Python."""


def pack(folder: Path) -> Path:
    """Write the wheel into a folder; return its path. Raises Fault if Poise is not installed as a package."""
    try:
        requires = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        hint = "`make setup` in the clone, or install the wheel"
        raise Fault(f"Poise is not installed as the package {DISTRIBUTION}", hint=hint) from None
    stem = f"{DISTRIBUTION.replace('-', '_')}-{poise.__version__}"
    info = f"{stem}.dist-info"
    about = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {poise.__version__}",
        f"Requires-Python: >={'.'.join(map(str, PYTHON))}",
        *(f"Requires-Dist: {one}" for one in requires if "extra ==" not in one),
    ]
    source = Path(poise.__file__).parent.parent
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in sorted((source / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = "\n".join([*about, ""]).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: poise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    points = metadata.distribution(DISTRIBUTION).read_text("entry_points.txt") or ""
    files[f"{info}/entry_points.txt"] = points.encode()
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return wheel
