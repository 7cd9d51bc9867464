"""README's speed table and the ladders' indexes say what the results say, or nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from example_results import GATES, PARENT_PLAN, PLAN, ROWS, measured, results, run

import render_tables
from fasteomt.bench.results import RoundResults, save
from fasteomt.provenance import source_digest

FIRST = ("graph_bf16", 9.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A ladder of three rounds: peers, a graph, fused norms on top of it; and one that isn't measured."""
    (tmp_path / "README.md").write_text(f"before\n{render_tables.BEGIN}\nold\n{render_tables.END}\nafter\n")
    now = source_digest()
    put(
        tmp_path,
        results(
            run((measured(*FIRST), measured("eager_bf16", 20.0, baseline="graph_bf16")), (), source=now),
            round="infer-opt/round0_baseline",
            title="where it starts",
            kind="study",
            parent=None,
        ),
    )
    put(
        tmp_path,
        results(
            run((*ROWS[:2],), (), source=now),
            round="infer-opt/round1_graph",
            title="one graph",
            parent="round0_baseline",
        ),
    )
    slower = run((*ROWS[:1], measured("r2", 8.0, plan=PLAN, baseline="graph_bf16")), GATES, gpu="NVIDIA A100")
    put(tmp_path, results(run(source=now), slower))
    (tmp_path / "infer-opt/round10_next").mkdir()
    return tmp_path


def put(root: Path, content: RoundResults) -> Path:
    path = root / content.round / "results.json"
    save(path, content)
    return path


def cells(text: str) -> list[list[str]]:
    """The cells of all table lines."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_speed_table(root: Path) -> None:
    assert render_tables.main([], root) == 0
    text = (root / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    header, _, *rows = cells(text)
    metric = "model_ms, 2 crops, 1 frame, 1 stream, batch 1"
    round2 = "infer-opt/round2_fused"
    assert header == ["GPU", "measured", "stack", "against", "vitl16", "accuracy", "from"]
    assert [
        "NVIDIA H200", metric, "r2", "graph_bf16", "4 ms, 2.25 x, 62%", "passed, native", round2
    ] in rows  # fmt: skip
    # What round 1 said of r1 has been said again since.
    assert [row[-1] for row in rows if row[2] == "r1"] == [round2]
    # The sources of this run are not today's.
    (a100,) = (row for row in rows if row[0] == "NVIDIA A100" and row[2] == "r2")
    assert a100[2:] == ["r2", "graph_bf16", "8 ms, 1.12 x", "passed, native", f"{round2} (older source)"]
    assert ["graph_bf16", "-", "9 ms"] in [row[2:5] for row in rows]
    assert len(rows) == 7
    assert f"- {round2}: `python speed.py --model vitl16` on NVIDIA H200\n" in text
    assert render_tables.main(["--check"], root) == 0


def test_index(root: Path) -> None:
    assert render_tables.main([], root) == 0
    text = (root / "infer-opt/README.md").read_text()
    assert text.startswith("# infer-opt\n")
    metric = "model_ms, 2 crops, 1 frame, 1 stream, batch 1"
    h200, a100 = "NVIDIA H200", "NVIDIA A100"
    round1, round2 = "[round1_graph](round1_graph/)", "[round2_fused](round2_fused/)"
    assert cells(text)[2:] == [
        ["[round0_baseline](round0_baseline/)", "where it starts", h200, *"-----"],
        [round1, "one graph", h200, "vitl16", "r1", metric, "1.50 x graph_bf16", "unchecked, native"],
        [f"{round2} (older source)", "fused norms", a100, "vitl16", "r2", "-", "-", "passed, native"],
        [round2, "fused norms", h200, "vitl16", "r2", metric, "1.50 x r1", "passed, native"],
        ["[round10_next](round10_next/)", "", "no results", *"-----"],
    ]


def test_what_the_index_says_around_its_table_stays(root: Path) -> None:
    index = root / "infer-opt/README.md"
    index.write_text(f"mine\n{render_tables.BEGIN}\n{render_tables.END}\nmine too\n")
    assert render_tables.main([], root) == 0
    text = index.read_text()
    assert text.startswith("mine\n")
    assert text.endswith("mine too\n")
    assert "round2_fused" in text


def test_a_comparison_with_another_stack_is_none_with_the_parent(root: Path) -> None:
    """Not even with the one that the parent was compared with."""
    row = measured("r3", 3.0, plan="c" * 12, baseline="r1")
    other = run((measured("r1", 6.0, plan=PARENT_PLAN), row), ())
    put(root, results(other, round="infer-opt/round3_more", title="more", parent="round2_fused"))
    assert render_tables.main([], root) == 0
    lines = [line for line in cells((root / "infer-opt/README.md").read_text()) if "round3" in line[0]]
    assert [(line[4], line[6]) for line in lines] == [("r1", "-"), ("r3", "-")]


@pytest.mark.parametrize("file", ["README.md", "infer-opt/README.md"])
def test_check_finds_what_differs_and_changes_nothing(root: Path, file: str, capsys) -> None:
    render_tables.main([], root)
    edited = (root / file).read_text().replace("1.50 x", "1.60 x").replace("2.25 x", "2.35 x")
    (root / file).write_text(edited)
    assert render_tables.main(["--check"], root) == 1
    error = capsys.readouterr().err
    assert f"{root / file}: " in error
    assert error.count("\n") == 1
    assert (root / file).read_text() == edited


def test_a_missing_index_is_a_difference(root: Path, capsys) -> None:
    render_tables.main([], root)
    (root / "infer-opt/README.md").unlink()
    assert render_tables.main(["--check"], root) == 1
    assert "infer-opt/README.md" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_wrong_results_are_named_and_never_rendered(root: Path, arguments: list[str], capsys) -> None:
    render_tables.main([], root)
    readme = (root / "README.md").read_text()
    path = root / "infer-opt/round2_fused/results.json"
    content = json.loads(path.read_text())
    content["runs"][1]["rows"][2] |= {"median": 3.6, "ratio": 2.5}
    path.write_text(json.dumps(content))
    broken = root / "infer-opt/round1_graph/results.json"
    broken.write_text("{}")
    assert render_tables.main(arguments, root) == 1
    error = capsys.readouterr().err.splitlines()
    assert all(line.startswith((f"{path}: ", f"{broken}: ")) for line in error)
    assert any("NVIDIA H200: the seal" in line for line in error)
    assert any(line.startswith(f"{broken}: ") for line in error)
    assert (root / "README.md").read_text() == readme


def test_results_lie_in_their_own_round_and_name_a_parent_that_is_there(root: Path, capsys) -> None:
    path = root / "infer-opt/round10_next/results.json"
    save(path, results(parent="round9_gone"))
    assert render_tables.main(["--check"], root) == 1
    error = capsys.readouterr().err
    assert f"{path}: is of round infer-opt/round2_fused, not of infer-opt/round10_next" in error
    assert f"{path}: parent 'round9_gone' is no round of infer-opt" in error


def test_results_of_a_users_own_reruns_are_left_alone(root: Path) -> None:
    (root / "infer-opt/round2_fused/results.local.json").write_text("{}")
    assert render_tables.main([], root) == 0


def test_a_file_without_its_markers(root: Path, capsys) -> None:
    (root / "README.md").write_text(f"{render_tables.END}{render_tables.BEGIN}")
    assert render_tables.main([], root) == 2
    assert "README.md: needs exactly one" in capsys.readouterr().err
    assert render_tables.main(["--other"], root) == 2
