"""Collect the news fragments into CHANGELOG.md as one version, and set the version of the package.

    python release/changelog.py 0.2.0

Fragments are `docs/news/NAME.KIND.md`; they are removed. One that begins with a heading is a list of its own, which
comes after the others. Links in them, which are relative to their folder, are made relative to the changelog.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_VERSION = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="collect the news into CHANGELOG.md, and set the version")
    parser.add_argument("version")
    version = parser.parse_args().version
    news = ROOT / "docs" / "news"
    fragments = sorted(path for path in news.glob("*.md") if path.name != "README.md")
    changelog = ROOT / "CHANGELOG.md"
    if fragments:
        changelog.write_text(entered(changelog.read_text(), section(version, fragments, news)))
        for path in fragments:
            path.unlink()
    set_version(ROOT / "src" / "poise" / "__init__.py", version)


def section(version: str, fragments: list[Path], news: Path) -> str:
    """The fragments as one section, by kind. Raises ValueError for a fragment of an unknown kind or without text."""
    single: dict[str, list[str]] = {kind: [] for kind in KINDS}
    areas: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in fragments:
        kind = path.name.split(".")[-2]
        text = relinked(path.read_text().strip(), news)
        if kind not in KINDS or not text:
            raise ValueError(f"{path}: a fragment is NAME.KIND.md with text, KIND one of {', '.join(KINDS)}")
        if text.startswith("#"):
            areas[kind].append(text)
        else:
            single[kind].append(f"* {' '.join(text.split())}")
    parts = [f"## {version}"]
    for kind, title in KINDS.items():
        found = [*(["\n".join(single[kind])] if single[kind] else []), *areas[kind]]
        parts += [f"### {title}", *found] if found else []
    return "\n\n".join(parts) + "\n"


def relinked(text: str, folder: Path) -> str:
    """The text with links that are relative to the root."""

    def from_root(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[1].partition("#")
        return f"]({(folder / path).resolve().relative_to(ROOT)}{hash_sign}{anchor})"

    return _LINK.sub(from_root, text)


def entered(changelog: str, new: str) -> str:
    """The changelog with a new section above the others."""
    head, mark, rest = changelog.partition("\n## ")
    return f"{head}\n{new}{mark}{rest}"


def set_version(module: Path, version: str) -> None:
    text, count = _VERSION.subn(f'__version__ = "{version}"', module.read_text())
    if count != 1:
        raise ValueError(f"{module} has no __version__")
    module.write_text(text)


if __name__ == "__main__":
    main()
