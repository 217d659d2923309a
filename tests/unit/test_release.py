"""What `make release` does before it asks an index: the changelog, and the wheel."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import poise
from poise.cli.main import main

ROOT = Path(__file__).parent.parent.parent
CLONE = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fragments_become_a_section_above_the_others() -> None:
    changelog, news = script("changelog"), ROOT / "docs" / "news"
    texts = {
        "area.added.md": "#### Area\n\n* This [one](operate.md).\n* That one.\n",
        "one.fixed.md": "It is\nright now.\n",
        "two.added.md": "See [it](../how-to/operate.md#upgrade).\n",
    }
    fragments = [news / name for name in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: texts[path.name])
        made = changelog.section("9.0.0", fragments, news)
    assert made == (
        "## 9.0.0\n\n### Added\n\n* See [it](docs/how-to/operate.md#upgrade).\n\n"
        "#### Area\n\n* This [one](docs/news/operate.md).\n* That one.\n\n### Fixed\n\n* It is right now.\n"
    )
    assert changelog.entered("# Changes\n\nNewest first.\n\n## 8.0.0\n\n* Old.\n", made) == (
        f"# Changes\n\nNewest first.\n\n{made}\n## 8.0.0\n\n* Old.\n"
    )


def test_every_fragment_there_is_can_be_collected() -> None:
    changelog, news = script("changelog"), ROOT / "docs" / "news"
    fragments = [path for path in news.glob("*.md") if path.name != "README.md"]
    made = changelog.section("9.0.0", fragments, news)
    assert all(line[:2] in ("", "* ") or line.startswith("##") for line in made.split("\n")), "all are lists"
    assert made.count("\n* ") >= len(fragments)
    assert "](../" not in made


def test_the_version_is_set_where_it_is_written(tmp_path: Path) -> None:
    module = tmp_path / "__init__.py"
    module.write_text((ROOT / "src" / "poise" / "__init__.py").read_text())
    script("changelog").set_version(module, "9.0.0")
    assert '\n__version__ = "9.0.0"\n' in module.read_text()


@CLONE
def test_the_wheel_has_the_demo_the_examples_and_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = script("build")
    monkeypatch.setattr(build, "DIST", tmp_path / "dist")
    monkeypatch.setattr(build, "STAGE", tmp_path / "stage")
    build.main()
    [wheel] = (tmp_path / "dist").glob("poise_scheduler-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        assert "dev" not in poise.__version__ or file.read("poise/commit").strip()
    examples = f"poise_scheduler-{poise.__version__}.data/data/share/poise/examples"
    for name in ("poise_lab/demo/service.yaml", "poise/cli/flags.json", "poise/py.typed", f"{examples}/hello.yaml"):
        assert name in names
    kept = subprocess.check_output(["git", "ls-files", "examples"], cwd=ROOT, text=True).split()
    left_out = [path for path in kept if f"{examples.removesuffix('examples')}{path}" not in names]
    assert all(path.startswith("examples/scenes/made/") for path in left_out), left_out
    assert list((tmp_path / "dist").glob("poise_scheduler-*.tar.gz"))


def test_the_examples_are_copied_where_one_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--examples", str(tmp_path / "examples"), "--json"]) == 0
    assert '"hello.yaml"' in capsys.readouterr().out
    assert (tmp_path / "examples" / "hello.yaml").read_text() == (ROOT / "examples" / "hello.yaml").read_text()
    assert main(["demo", "--examples", str(tmp_path / "examples")]) == 1
    assert "this folder exists already" in capsys.readouterr().err


@CLONE
def test_the_version_of_a_clone_names_its_commit() -> None:
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True).strip()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    told = subprocess.check_output([sys.executable, "-m", "poise.cli.main", "--version"], env=environment, text=True)
    assert told.startswith(f"poise {poise.__version__} (commit {commit}")
