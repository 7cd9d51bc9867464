"""doctor: the machine as it is, and machines that aren't here."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fasteomt import capabilities
from fasteomt.capabilities import Package, arch_problem, cuda_problem, has_code_for
from fasteomt.cli.main import app
from fasteomt.format_probe import FORMATS, probe_format

WHEEL_CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
WHEEL_CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
REQUIREMENTS = [
    "torch>=2.11",
    "rich>=13.9",
    "quack-kernels==0.6.5; extra == 'kernels'",
    "tilelang==0.1.15; (platform_system == 'Nowhere') and extra == 'kernels'",
    "lightly-train==0.16.2; extra == 'train'",
    "pytest>=8.3; extra == 'dev'",
]


@pytest.fixture
def fresh_probe():
    capabilities.probe.cache_clear()
    yield
    capabilities.probe.cache_clear()


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((9, 0), WHEEL_CU130, True),
        ((8, 9), WHEEL_CU130, True),  # sm_86 code runs on sm_89
        ((12, 1), WHEEL_CU130, True),
        ((12, 0), WHEEL_CU126, False),
        ((10, 0), WHEEL_CU126, False),
        ((7, 0), WHEEL_CU130, False),
        ((12, 0), [*WHEEL_CU126, "compute_90"], True),  # PTX is compiled when loaded
        ((10, 3), ["sm_100a"], False),  # an 'a' variant runs on its own architecture only
        ((10, 0), ["sm_100a"], True),
        ((8, 0), [], False),
    ],
)
def test_wheel_has_code_for_device(capability, archs, runs):
    assert has_code_for(capability, archs) is runs


def test_wheel_without_this_gpus_code_names_the_wheel_needed():
    """A wheel without this GPU's code."""
    line = arch_problem("NVIDIA GeForce RTX 5090", (12, 0), WHEEL_CU126, "2.11.0+cu126")
    assert line is not None
    assert "\n" not in line
    assert "RTX 5090 (sm_120)" in line
    assert "CUDA 12.8 or later (cu128 or later)" in line
    assert arch_problem("NVIDIA H200", (9, 0), WHEEL_CU130, "2.14.1+cu130") is None


def test_gpu_that_new_wheels_dropped_is_sent_to_an_older_one():
    """The wheel is too new for the GPU."""
    line = arch_problem("Tesla V100", (7, 0), WHEEL_CU130, "2.14.1+cu130")
    assert line is not None
    assert "CUDA 12.x" in line


def test_gpu_newer_than_this_release_knows_is_not_guessed_at():
    line = arch_problem("Future GPU", (15, 0), WHEEL_CU130, "2.14.1+cu130")
    assert line is not None
    assert "newest CUDA (after 13.0) that lists sm_150" in line


@pytest.mark.parametrize(
    ("torch_cuda", "driver_cuda", "available", "says"),
    [
        (None, None, False, None),
        ("13.0", None, False, None),
        ("13.0", "13.0", True, None),
        (None, "13.0", False, "torch is a CPU build"),
        ("13.0", "12.4", False, "update the driver"),
        ("12.8", "13.0", False, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_driver_and_torch_that_do_not_meet(torch_cuda, driver_cuda, available, says):
    line = cuda_problem(torch_cuda, driver_cuda, available)
    assert line is None if says is None else says in (line or "")


def test_simulated_gpu_reaches_the_output(monkeypatch, fresh_probe):
    """The whole command on a machine whose GPU the wheel has no code for; exit code 0."""
    card = SimpleNamespace(name="NVIDIA GeForce RTX 5090", major=12, minor=0, total_memory=32 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: WHEEL_CU126)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["devices"][0]["arch"] == "sm_120"
    assert found["devices"][0]["memory_gib"] == 32.0
    assert "cu128 or later" in found["devices"][0]["problem"]
    assert found["devices"][0]["problem"] in found["problems"]
    # nothing is run on a device that torch can't use
    assert {entry["device"] for entry in found["formats"]} == {"cpu"}
    assert {package["state"] for package in found["packages"]} <= {"ok", "missing", "mismatch"}
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    assert "cu128 or later" in shown.stdout


def test_absent_and_mismatched_packages_are_told_with_their_remedy():
    versions = {"torch": "2.14.1+cu130", "quack-kernels": "0.6.4", "opencv-python": "4.10"}
    found = capabilities.packages(REQUIREMENTS, versions.get)
    by_name = {package.name: package for package in found}
    assert by_name["torch"].state == "ok"
    assert by_name["rich"].state == "missing"
    assert by_name["quack-kernels"].state == "mismatch"
    assert by_name["lightly-train"].state == "missing"
    assert by_name["lightly-train"].remedy == "pip install 'fasteomt[train]'"
    assert "tilelang" not in by_name  # not for this platform
    assert "pytest" not in by_name  # an extra of developers
    problems = capabilities.package_problems(found, versions.get)
    assert problems == [
        "rich is not installed: pip install 'rich>=13.9'",
        "quack-kernels 0.6.4 is installed, ==0.6.5 is needed: pip install 'fasteomt[kernels]'",
    ]


def test_both_opencv_wheels_at_once_are_a_problem():
    versions = {"opencv-python": "4.10", "opencv-python-headless": "4.11"}
    problems = capabilities.package_problems([], versions.get)
    assert len(problems) == 1
    assert "overwrite each other" in problems[0]


def test_prerelease_pins_match():
    assert Package("flash-attn-4", "4.0.0b36", "==4.0.0b36", "kernels", "").state == "ok"


def test_formats_of_the_cpu_are_tried():
    runs = {name: probe_format(name, "cpu").runs for name in FORMATS}
    assert runs["fp32"]
    assert not any(runs[name] for name in ("fp8_e4m3", "mxfp8", "nvfp4", "mxfp4"))


def test_format_that_raises_or_computes_wrongly_does_not_run(monkeypatch):
    def refuses(device):
        raise RuntimeError("no kernel image is available\nlong explanation")

    monkeypatch.setitem(FORMATS, "fp32", refuses)
    monkeypatch.setitem(FORMATS, "bf16", lambda device: torch.zeros(2, 2))
    assert probe_format("fp32", "cpu").note == "no kernel image is available"
    assert probe_format("bf16", "cpu").note == "computed wrong numbers"
    assert not probe_format("fp32", "cpu").runs
    assert not probe_format("bf16", "cpu").runs


def test_this_machine_has_the_codecs_and_doctor_exits_0(fresh_probe):
    assert all(codec.available for codec in capabilities.codecs())
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    for word in ("torch", "libx264", "fp32", "mxfp4"):
        assert word in result.stdout


@pytest.mark.gpu
def test_formats_of_the_gpu_agree_with_its_generation():
    device = capabilities.devices()[0]
    runs = {f.format: f.runs for f in capabilities.formats([device]) if f.device == "cuda:0"}
    assert runs["fp32"]
    assert runs["bf16"]
    assert runs["fp16"]
    generation = int(device.arch.removeprefix("sm_"))
    assert runs["fp8_e4m3"] == (generation >= 89)
    if generation < 100:
        assert not any(runs[name] for name in ("mxfp8", "nvfp4", "mxfp4"))
