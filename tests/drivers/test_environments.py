"""An environment is known by all that decides what is in it."""

import os
import stat
from pathlib import Path

import pytest

from poise.drivers.environments import Environments, _dependencies, _key
from poise.errors import PoiseError, SpecError


def key(tree: Path, name: str, tree_hash: str = "t1") -> str:
    return _key(tree, tree / name, name, tree_hash)


@pytest.mark.parametrize(
    "line",
    [
        "-r more.txt",
        "-rmore.txt",
        "-c more.txt",
        "-cmore.txt",
        "--requirement=more.txt",
        "  --constraint=more.txt",
        "--requirem more.txt",
        "--no-index -r more.txt",
        "-r 'more.txt'",
        "-r \\\nmore.txt",
        "\ufeff-rmore.txt",
    ],
)
def test_the_key_follows_the_lock_file_and_what_it_includes(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\nnumpy==2.0  # pinned\n")
    (tmp_path / "more.txt").write_text("six\n")
    first = key(tmp_path, "r.txt")
    assert key(tmp_path, "r.txt", "t2") == first, "other files of the tree do not matter"
    (tmp_path / "more.txt").write_text("six==1\n")
    assert key(tmp_path, "r.txt") != first


@pytest.mark.parametrize(
    "line", ["./pkg", "wheels/a-1.whl", "-f wheels", "-fwheels", "--find-links=wheels", "a @ file:pkg"]
)
def test_packages_of_the_tree_make_it_depend_on_the_tree(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\n")
    assert key(tmp_path, "r.txt", "t1") != key(tmp_path, "r.txt", "t2")


def test_a_uv_lock_counts_with_its_project(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text("version = 1\n")
    with pytest.raises(SpecError, match="not in the files"):
        key(tmp_path, "uv.lock")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    first = key(tmp_path, "uv.lock")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'b'\n")
    assert key(tmp_path, "uv.lock") != first


@pytest.mark.parametrize(
    "line",
    ["-e .", "-e.", "--editable ./pkg", "--editable=./pkg", "-r ../outside.txt", "-r../outside.txt", "-rmissing.txt"],
)
def test_what_cannot_be_shared_or_is_elsewhere_is_refused(tmp_path: Path, line: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "outside.txt").write_text("six\n")
    (tree / "r.txt").write_text(line + "\n")
    with pytest.raises(SpecError) as refused:
        key(tree, "r.txt")
    assert refused.value.record.code == "E217"


def test_the_needs_of_a_project(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\ndependencies = ["numpy", "six>=1"]\n')
    assert _dependencies(path) == ["numpy", "six>=1"]
    for text in ("[project\n", "[project]\ndependencies = 3\n", "project = 3\n"):
        path.write_text(text)
        with pytest.raises(SpecError):
            _dependencies(path)


def test_without_uv_a_uv_lock_is_refused_and_nothing_half_built_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "uv.lock").write_text("version = 1\n")
    (tree / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    with pytest.raises(PoiseError, match="only uv reads"):
        Environments(tmp_path / "environments").ensure(tree, "uv.lock", "t1")
    assert not list((tmp_path / "environments").glob("*/.complete"))


def test_what_fails_is_printed_whole_once_and_the_error_has_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without uv
    (tmp_path / "r.txt").write_text("--no-index\nno-such-package-at-all\n")
    said: list[str] = []
    with pytest.raises(PoiseError, match="cannot be built") as refused:
        Environments(tmp_path / "environments", say=said.append).ensure(tmp_path, "r.txt", "t1")
    *_, printed = said
    assert "\n" not in refused.value.record.have and printed.splitlines()[-1] == refused.value.record.have
    assert "no-such-package-at-all" in refused.value.record.have and len(printed.splitlines()) > 1


def test_an_environment_without_packages_is_built_once_and_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.txt").write_text("# nothing\n")
    half = tmp_path / "environments" / key(tmp_path, "r.txt") / "half"
    half.mkdir(parents=True)
    (half.parent / ".complete").write_text("/another/home")  # the state directory was moved
    said: list[str] = []
    made = Environments(tmp_path / "environments", say=said.append)
    first = made.ensure(tmp_path, "r.txt", "t1")
    again = made.ensure(tmp_path, "r.txt", "t1")
    assert first["VIRTUAL_ENV"] == again["VIRTUAL_ENV"] and len(said) == 2 and not half.exists()
    assert os.access(f"{first['VIRTUAL_ENV']}/bin/python", os.X_OK)
    (site,) = Path(first["VIRTUAL_ENV"]).glob("lib/python*/site-packages")
    assert not stat.S_IMODE(site.stat().st_mode) & 0o222
