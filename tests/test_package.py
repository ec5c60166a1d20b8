"""What would be published: a wheel and a source distribution that install into an empty environment and run there.

Nothing is compiled and nothing is downloaded: the packages that specrun depends on are those of the environment that
runs the tests, and pip is told to find all of them there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import specrun

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the commands lie in Scripts there")]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command that has to succeed prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    result = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, by their suffixes."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    wheel, source = sorted(folder.iterdir(), key=lambda path: path.suffix, reverse=True)
    return {".whl": wheel, ".tar.gz": source}


def test_twine_accepts_both(built: dict[str, Path], tmp_path: Path) -> None:
    assert run(sys.executable, "-m", "twine", "check", "--strict", *built.values(), cwd=tmp_path).count("PASSED") == 2


def test_they_have_what_a_user_needs(built: dict[str, Path]) -> None:
    name = f"specrun-{specrun.__version__}"
    with zipfile.ZipFile(built[".whl"]) as wheel:
        files = set(wheel.namelist())
    assert {
        "specrun/embedded/target.gguf",
        "specrun/embedded/draft.gguf",
        "specrun/embedded/head.gguf",
        "specrun/catalog/models.toml",
        "specrun/bench/prompts.jsonl",
        "specrun/py.typed",
        "specrun/serving/web/index.html",
        "specrun/serving/web/vendor/markdown-it.js",
        f"{name}.dist-info/licenses/LICENSE",
        f"{name}.dist-info/licenses/specrun/serving/web/vendor/LICENSES.txt",
        f"{name}.data/data/share/man/man1/specrun.1",
    } <= files
    assert not [file for file in files if file.startswith(("tests/", "scripts/"))]
    with tarfile.open(built[".tar.gz"]) as source:
        names = set(source.getnames())
    assert {f"{name}/{file}" for file in ("models.toml", "mkdocs.yml", "scripts/demo", "tests/models.py")} <= names


@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_it_installs_and_runs(built: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # A folder in a .pth file gives its packages, but not what is linked from there: the specrun under test is not seen.
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (own / "others.pth").write_text("\n".join(others) + "\n")
    python, command = home / "bin" / "python", home / "bin" / "specrun"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    options = ["--no-index", "--no-build-isolation", "--no-deps", "--force-reinstall"]
    run(*pip, "install", *options, built[suffix], cwd=tmp_path)
    assert (home / "share" / "man" / "man1" / "specrun.1").exists()
    where = run(python, "-c", "import specrun; print(specrun.__file__)", cwd=tmp_path)
    assert where.startswith(str(own))
    assert run(command, "--version", cwd=tmp_path).startswith(f"specrun {specrun.__version__}\n")
    written = run(command, "generate", "--raw", "-n", "4", "-t", "1", "--temp", "0", "import", cwd=tmp_path)
    assert written.strip()
    assert "catalog" in run(command, "models", "list", "--help", cwd=tmp_path)


def test_every_dependency_is_declared() -> None:
    """Modules that the package imports belong to the packages of its metadata."""
    from importlib import metadata

    declared = {line.partition(";")[0].split("[")[0].strip() for line in metadata.requires("specrun") or []}
    names = {name.split(">")[0].split("=")[0].split("<")[0].lower().replace("_", "-") for name in declared}
    known = metadata.packages_distributions()
    imported = {
        line.split()[1].split(".")[0].rstrip(",")
        for path in (ROOT / "specrun").rglob("*.py")
        for line in map(str.strip, path.read_text(encoding="utf-8").splitlines())
        if line.startswith(("import ", "from ")) and len(line.split()) > 1
    }
    foreign = {name for name in imported if name in known and name not in sys.stdlib_module_names and name != "specrun"}
    missing = {name for name in foreign if not {d.lower().replace("_", "-") for d in known[name]} & names}
    assert missing == set()
