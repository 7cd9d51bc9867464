"""All rounds of a checkout run, in order, and what fails is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fasteomt.bench.ladder import patch_of, rounds, run_rounds, stack_of
from fasteomt.errors import InputError, PartialResultError
from fasteomt.stacks import STACKS

ROOT = Path(__file__).parents[2]

WRITES = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(' '.join(sys.argv[3:]))"


def round_with(root: Path, name: str, script: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "speed.py").write_text(script)


def test_rounds_run_in_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("infer-opt/round10_b", "infer-opt/round2_a", "train-opt/round0_c"):
        round_with(tmp_path, name, WRITES)
    (tmp_path / "infer-opt" / "round3_notes_only").mkdir()
    seen: list[str] = []
    written = run_rounds(tmp_path, ["--device", "cpu"], starting=lambda folder: seen.append(folder.name))
    assert seen == ["round2_a", "round10_b", "round0_c"]
    assert [path.name for path in written] == ["results.json"] * 3
    assert written[0].read_text() == "--device cpu"


def test_quick_results_never_replace_measured_ones(tmp_path: Path) -> None:
    round_with(tmp_path, "infer-opt/round0_a", WRITES)
    (written,) = run_rounds(tmp_path, quick=True, starting=lambda _: None)
    assert written.name == "results.local.json"
    assert written.read_text() == "--quick"


def test_a_round_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    round_with(tmp_path, "infer-opt/round0_a", "raise SystemExit(3)")
    round_with(tmp_path, "infer-opt/round1_b", WRITES)
    with pytest.raises(PartialResultError, match=r"1 of 2 rounds failed \(round0_a\)"):
        run_rounds(tmp_path, starting=lambda _: None)
    assert (tmp_path / "infer-opt/round1_b/results.json").exists()


def test_no_rounds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="root of a checkout"):
        run_rounds(tmp_path, starting=lambda _: None)


@pytest.mark.parametrize(
    ("folder", "stack"),
    [
        ("round2_cuda_graph", "torch_bf16"),
        ("round5_gemm", "r5_v1"),
        ("round11_bf16_small", "bf16"),
        ("round12_lowp_stack", "fp16"),
    ],
)
def test_the_rounds_changes_one_after_the_other_make_the_shipped_stacks(folder: str, stack: str) -> None:
    assert stack_of(ROOT / "infer-opt" / folder) == STACKS[stack]


def test_every_change_of_the_ladder_changes_something() -> None:
    changes = [folder for folder in rounds(ROOT / "infer-opt") if (folder / "patch.py").exists()]
    assert len(changes) >= 7
    for folder in changes:
        parent = patch_of(folder).PARENT
        before = STACKS["fp32"] if parent is None else stack_of(folder.parent / parent)
        assert stack_of(folder) not in (before, replace(before, name=stack_of(folder).name))


def test_a_round_without_a_patch_makes_no_stack() -> None:
    with pytest.raises(InputError, match=r"round0_baseline: has no patch\.py"):
        stack_of(ROOT / "infer-opt" / "round0_baseline")
