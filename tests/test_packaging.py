"""What is shipped: the wheel, licences, pins, README's commands and its generated tables."""

from __future__ import annotations

import email
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import fasteomt
import render_tables
from fasteomt.data.photos import FILES

ROOT = Path(__file__).resolve().parent.parent
# The text that gnu.org distributes (agpl-3.0.txt).
AGPL_SHA256 = "8486a10c4393cee1c25392769ddd3b2d6c242d6ec7928e1414efff7dfb2f07ef"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_licence_is_the_agpl_verbatim():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == AGPL_SHA256


def test_every_photo_of_the_generator_has_its_terms_stated():
    lines = (ROOT / "licences/photos.md").read_text("utf-8").splitlines()
    listed = {line.split("|")[1].strip() for line in lines if line.startswith("| ")} - {"photo"}
    used = {Path(inner).stem for _, inner, _ in FILES.values()}
    assert listed == used


def test_notice_names_files_that_exist():
    named = re.findall(r"licences/[\w.-]+\w", (ROOT / "NOTICE").read_text("utf-8"))
    assert len(named) == 5
    assert {Path(name).name for name in named} == {path.name for path in (ROOT / "licences").iterdir()}


def test_versions_agree(project):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert project["version"] == fasteomt.__version__ == citation["version"]
    assert project["license"] == citation["license"]


def test_wheel_holds_package_model_and_licences(wheel):
    names = set(wheel.namelist())
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/fasteomt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= names
    assert {"fasteomt/assets/heads-vitt16.pt", "fasteomt/assets/heads-vitt16.json"} <= names
    assert wheel.getinfo("fasteomt/assets/heads-vitt16.pt").file_size <= 13_000_000
    folder = f"fasteomt-{fasteomt.__version__}.dist-info"
    for licence in ("LICENSE", "NOTICE", "licences/DINOv3.md", "licences/photos.md"):
        assert f"{folder}/licenses/{licence}" in names
    assert not any(name.startswith(("tests/", "scripts/")) for name in names)


def test_wheel_metadata(wheel):
    folder = f"fasteomt-{fasteomt.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert metadata["License-Expression"] == "AGPL-3.0-or-later"
    assert metadata["Requires-Python"] == ">=3.11"
    scripts = wheel.read(f"{folder}/entry_points.txt").decode()
    assert "fasteomt = fasteomt.cli.main:run" in scripts


def test_core_stays_light_and_torch_uncapped(project):
    core = {Requirement(line).name: Requirement(line) for line in project["dependencies"]}
    assert not core.keys() & {"lightly-train", "torchvision", "transformers", "scikit-image", "matplotlib"}
    assert str(core["torch"].specifier) == ">=2.11"
    assert "opencv-python" not in core  # overwrites the headless wheel's files


def test_kernels_and_upstream_are_pinned_exactly(project):
    extras = project["optional-dependencies"]
    lines = [*extras["kernels"], *(line for line in extras["train"] if not line.startswith("torchvision"))]
    for line in lines:
        (specifier,) = Requirement(line).specifier
        assert specifier.operator == "==", line
        assert "*" not in specifier.version, line
    assert "lightly-train==0.16.2" in extras["train"]


def test_every_needed_extra_exists(project):
    """A message that says `pip install 'fasteomt[x]'` names an extra that there is."""
    asked = set()
    for path in (ROOT / "src").rglob("*.py"):
        asked |= set(re.findall(r"need\([^)]*extra=\"(\w+)\"", path.read_text("utf-8")))
    assert asked
    assert asked <= project["optional-dependencies"].keys()


def test_import_is_quick_and_prediction_needs_no_optional_package():
    code = (
        "import sys, fasteomt; assert 'torch' not in sys.modules\n"
        "import fasteomt.predictor\n"
        "heavy = {'lightly_train', 'torchvision', 'transformers', 'skimage', 'sklearn', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_readme_commands_are_the_ones_ci_runs():
    """README's two commands, followed cold, are what .ci/run takes from it."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = dict(re.findall(r"<!-- ci:(\w+) -->\n```bash\n(.*?)\n```", text, flags=re.S))
    assert blocks.keys() == {"demo", "test"}
    assert "fasteomt demo" in blocks["demo"]
    assert "pytest" in blocks["test"]
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert "run_readme demo" in ci
    assert "run_readme test" in ci
    # Into the environment only what README says.
    assert all("--target" in line for line in ci.splitlines() if "pip install" in line)
    assert text.index("<!-- ci:test -->") < text.index("\n---\n")  # both on the first screen


def test_readme_names_only_commands_and_files_that_exist():
    from typer.main import get_command

    from fasteomt.cli.main import app

    text = (ROOT / "README.md").read_text("utf-8")
    commands = set(get_command(app).commands)
    named = set(re.findall(r"(?:`|bin/|\n)fasteomt ([a-z]+)", text))
    assert named == commands
    linked = re.findall(r"\]\(((?!http)[^)#]+)\)", text) + re.findall(r"python (scripts/\S+\.py)", text)
    assert linked
    for path in linked:
        assert (ROOT / path).exists(), path


def test_readme_tables_are_generated():
    assert render_tables.main(["--check"]) == 0


def test_tables_follow_the_card_and_check_finds_drift(tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{render_tables.BEGIN}\nold\n{render_tables.END}\nafter\n")
    assert render_tables.main(["--check"], tmp_path) == 1
    assert "render_tables.py" in capsys.readouterr().err
    assert render_tables.main([], tmp_path) == 0
    assert "No speed figures" in readme.read_text()

    card = tmp_path / render_tables.CARD
    card.parent.mkdir(parents=True)
    figures = {"background": 0.9987, "head": 0.95123}
    card.write_text(json.dumps({"iou": figures, "images": 200} | CARD_TEXT))
    assert render_tables.main(["--check"], tmp_path) == 1
    assert render_tables.main([], tmp_path) == 0
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| head | 0.9512 |" in text
    assert "200 held-out generated images" in text
    assert render_tables.main(["--check"], tmp_path) == 0


CARD_TEXT = {
    "data": "fasteomt data synth D",
    "command": "fasteomt eval --data D",
    "hardware": "one NVIDIA H200",
    "commit": "0123456789abcdef",
}
