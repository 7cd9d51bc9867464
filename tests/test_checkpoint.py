"""Reading and writing model files: every form, what may be missing, and what must be refused."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fasteomt.checkpoint import (
    MODEL_CLASS_PATH,
    Checkpoint,
    random_checkpoint,
    read,
    resolve,
    resolve_spec,
    write_export,
    write_safetensors,
)
from fasteomt.errors import CheckpointError, InputError
from fasteomt.model.reference import Eomt, rope_periods
from fasteomt.model.spec import BACKBONES, ModelSpec, backbone_name
from fasteomt.model.state import spec_and_weights


@pytest.fixture
def export(tmp_path: Path, small_checkpoint: Checkpoint) -> dict[str, Any]:
    """The content of a LightlyTrain export of the small model."""
    path = write_export(tmp_path / "small.pt", small_checkpoint.spec, small_checkpoint.weights)
    return torch.load(path, weights_only=True)


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def same_weights(a: Checkpoint, b: Checkpoint) -> bool:
    same_names = a.weights.keys() == b.weights.keys()
    return same_names and all(torch.equal(a.weights[k], b.weights[k]) for k in a.weights)


def test_export_round_trip(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    found = read(write_export(tmp_path / "a.pt", small_checkpoint.spec, small_checkpoint.weights))
    assert found.spec == small_checkpoint.spec
    assert same_weights(found, small_checkpoint)
    assert not found.random
    assert found.notes == ()


def test_safetensors_round_trip(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", small_checkpoint.spec, small_checkpoint.weights)
    found = read(path)
    assert found.spec == small_checkpoint.spec
    assert same_weights(found, small_checkpoint)


def test_bf16_export_rounds_weights_but_not_rope(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    path = write_export(
        tmp_path / "a.pt", small_checkpoint.spec, small_checkpoint.weights, dtype=torch.bfloat16
    )
    found = read(path)
    periods = "backbone.rope_embed.periods"
    assert torch.equal(found.weights[periods], small_checkpoint.weights[periods])
    others = {k: w for k, w in found.weights.items() if k != periods and not k.endswith("bias_mask")}
    assert {w.dtype for w in others.values()} == {torch.bfloat16}
    assert all(torch.equal(w, small_checkpoint.weights[k].bfloat16()) for k, w in others.items())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda c: {**c, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "step": 3},
        lambda c: {"state_dict": {f"train_model.{k}": v for k, v in c["train_model"].items()}},
        lambda c: {"model": {k.removeprefix("model."): v for k, v in c["train_model"].items()}, "epoch": 1},
        lambda c: {f"module._orig_mod.{k}": v for k, v in c["train_model"].items()},
        lambda c: {k.removeprefix("model."): v for k, v in c["train_model"].items()},
    ],
    ids=["training-ckpt", "lightning-state-dict", "model-key", "ddp-compiled", "bare-state-dict"],
)
@pytest.mark.parametrize("suffix", [".ckpt", ".pth"])
def test_all_forms_of_file_give_the_same_weights(
    tmp_path: Path, export: dict[str, Any], small_checkpoint: Checkpoint, wrap: Any, suffix: str
) -> None:
    found = read(save(tmp_path / f"best{suffix}", wrap(export)))
    assert same_weights(found, small_checkpoint)
    assert found.spec.class_ids == small_checkpoint.spec.class_ids


def test_training_buffers_are_left_out(
    tmp_path: Path, export: dict[str, Any], small_checkpoint: Checkpoint
) -> None:
    export["train_model"] |= {
        "criterion.empty_weight": torch.ones(3),
        "train_metrics.metrics.train_metric/miou.confmat": torch.zeros(2, 2),
        "val_metrics.loss": torch.zeros(1),
    }
    assert same_weights(read(save(tmp_path / "last.ckpt", export)), small_checkpoint)


def test_satellite_backbone_has_known_extra_keys(
    tmp_path: Path, export: dict[str, Any], small_checkpoint: Checkpoint
) -> None:
    """Local_cls_norm is never used at inference; accepted."""
    export["train_model"] |= {
        "model.backbone.local_cls_norm.weight": torch.ones(64),
        "model.backbone.local_cls_norm.bias": torch.zeros(64),
    }
    assert same_weights(read(save(tmp_path / "sat.pt", export)), small_checkpoint)


def test_unknown_keys_are_named(tmp_path: Path, export: dict[str, Any]) -> None:
    """Anything else that is unknown is refused by name, since it might change the masks."""
    export["train_model"]["model.backbone.gate.weight"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=r"unknown backbone\.gate\.weight"):
        read(save(tmp_path / "odd.pt", export))


@pytest.mark.parametrize("name", sorted(BACKBONES.keys() - {"vit7b", "vithplus"}))
@pytest.mark.parametrize("patch_size", [16, 32])
def test_spec_from_shapes_alone(tmp_path: Path, name: str, patch_size: int) -> None:
    """Init arguments stripped and RoPE periods absent: rebuilt from tensor shapes, for every backbone."""
    full = ModelSpec.from_name(backbone_name(name, patch_size), num_queries=7)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in Eomt(full).state_dict().items() if "periods" not in k}
    # One storage of one element, expanded: the shapes of a ViT-L without its 1.2 GB.
    state = {k: torch.zeros(1).expand(shape) for k, shape in shapes.items()}
    spec, weights, notes = spec_and_weights("stripped.pth", state, {})
    assert spec == ModelSpec.from_name(
        backbone_name(name, patch_size), num_queries=7, class_names=("class_0", "class_1")
    )
    assert torch.equal(weights["backbone.rope_embed.periods"], rope_periods(64))
    assert any("joint blocks" in note for note in notes)
    assert any("class" in note for note in notes)


def test_nan_bias_mask_is_derived(
    tmp_path: Path, export: dict[str, Any], small_checkpoint: Checkpoint
) -> None:
    """A file may hold NaN, or nothing, where the mask of the qkv bias belongs."""
    state = export["train_model"]
    state["model.backbone.blocks.0.attn.qkv.bias_mask"] = torch.full((192,), torch.nan)
    del state["model.backbone.blocks.1.attn.qkv.bias_mask"]
    assert same_weights(read(save(tmp_path / "a.pt", export)), small_checkpoint)


@pytest.mark.parametrize("queries", [50, 101, 200])
@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ((5,), "uint8"),
        ((0, 255), "uint8"),
        (tuple(range(300)), "uint16"),
        ((0, 70000), "int32"),
        ((-1, 4), "int32"),
    ],
    ids=["one", "0-255", "300", "past-16-bits", "negative"],
)
def test_any_number_of_queries_and_classes(
    tmp_path: Path, small_spec: ModelSpec, queries: int, ids: tuple[int, ...], dtype: str
) -> None:
    """Any count of queries and classes; ids keep their values."""
    spec = replace(small_spec, num_queries=queries, class_ids=ids, class_names=tuple(f"c{i}" for i in ids))
    made = random_checkpoint(spec)
    found = read(write_export(tmp_path / "a.pt", spec, made.weights))
    assert found.spec == spec
    assert found.spec.id_dtype == dtype


def test_normalisation_and_sparse_ids_travel_in_both_forms(tmp_path: Path, small_spec: ModelSpec) -> None:
    """Non-ImageNet mean/std, sparse ids, image size and ignore class come back from the file."""
    spec = replace(
        small_spec,
        mean=(0.1, 0.2, 0.3),
        std=(0.9, 0.8, 0.7),
        class_ids=(3, 17),
        class_names=("x", "y"),
        class_ignore_index=255,
        image_size=(96, 64),
    )
    weights = random_checkpoint(spec).weights
    assert read(write_export(tmp_path / "a.pt", spec, weights)).spec == spec
    assert read(write_safetensors(tmp_path / "a.safetensors", spec, weights)).spec == spec


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_truncated_file(tmp_path: Path, small_checkpoint: Checkpoint, kind: str, share: float) -> None:
    """A file cut short says so in one line."""
    write = write_export if kind == "pt" else write_safetensors
    path = write(tmp_path / f"a.{kind}", small_checkpoint.spec, small_checkpoint.weights)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"cut short|not a PyTorch checkpoint") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pickled_paths_load_as_pure_paths(tmp_path: Path, export: dict[str, Any]) -> None:
    """Paths in the arguments, even a Windows path on Linux, do no harm and no good."""
    export["model_init_args"]["backbone_weights"] = pathlib.Path("weights.pth")
    export["extra"] = pathlib.PureWindowsPath("C:/w.pth")
    assert read(save(tmp_path / "a.pt", export)).spec.num_queries == 8


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("code ran",)


class OsSystem:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("echo code ran",)


@pytest.mark.parametrize("payload", [Malicious(), OsSystem(), datetime.datetime(2020, 1, 1)])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_never_runs(
    tmp_path: Path, export: dict[str, Any], capfd: pytest.CaptureFixture[str], payload: Any, zipped: bool
) -> None:
    """A narrow allow-list; what isn't data is named, not run."""
    export["hook"] = payload
    path = tmp_path / "evil.pt"
    torch.save(export, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="could run code") as caught:
        read(path)
    assert "code ran" not in capfd.readouterr().out
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"hello, this is no model", "not a PyTorch checkpoint"),
        (pickle.dumps({"a": 1}), "not a PyTorch checkpoint|no model weights"),
        (b"PK\x03\x04" + b"\0" * 100, "not a PyTorch checkpoint"),
    ],
    ids=["empty", "text", "plain-pickle", "broken-zip"],
)
def test_foreign_files(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=match):
        read(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        resolve("runs/none.ckpt")


def test_other_models_are_named(tmp_path: Path, export: dict[str, Any]) -> None:
    export["model_class_path"] = MODEL_CLASS_PATH.replace("SemanticSegmentation", "PanopticSegmentation")
    with pytest.raises(CheckpointError, match="DINOv3EoMTPanopticSegmentation"):
        read(save(tmp_path / "a.pt", export))
    with pytest.raises(CheckpointError, match="no model weights"):
        read(save(tmp_path / "b.pt", {"weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match="no model weights"):
        read(save(tmp_path / "c.pt", [1, 2]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c["train_model"].pop("model.class_head.weight"), "class_head.weight' is missing"),
        (lambda c: c["train_model"].pop("model.backbone.blocks.1.norm2.bias"), r"lacks .*blocks\.1\.norm2"),
        (lambda c: c["train_model"].update({"model.mask_head.0.bias": torch.ones(3)}), "shape: mask_head"),
        (lambda c: c["model_init_args"].update(classes={0: "only one"}), "class head has 2 classes"),
        (lambda c: c["model_init_args"].update(classes={0: "head", 1: "head"}), "share the name 'head'"),
        (lambda c: c["model_init_args"].update(classes={"a": "x", "b": "y"}), "class_ids is .*int"),
        (lambda c: c["model_init_args"].update(classes={0: 1, 1: "1"}), "class_names is .*str"),
        (lambda c: c["model_init_args"].update(classes={0: "a", 1: "\udc80"}), r"'\\udc80' is no text"),
        (lambda c: c["model_init_args"].update(classes=torch.ones(2)), "not a dictionary"),
        (lambda c: c["model_init_args"].update(model_name=torch.ones(2)), "name is tensor"),
        (lambda c: c["model_init_args"].update(model_name="a\nb"), "printable"),
        (
            lambda c: c["model_init_args"].update(num_joint_blocks="3"),
            "num_joint_blocks is '3': expected int",
        ),
        (lambda c: c["model_init_args"].update(num_joint_blocks=10**400), "joint blocks in 3 blocks"),
        (lambda c: c["model_init_args"].update(image_size="512"), "image_size is '512'"),
        (lambda c: c["model_init_args"].update(image_size=torch.tensor([64, 64])), "image_size is tensor"),
        (lambda c: c["model_init_args"].update(class_ignore_index=2.5), "class_ignore_index is 2.5"),
        (
            lambda c: c["model_init_args"].update(image_normalize={"mean": "abc", "std": (1, 1, 1)}),
            "mean is 'abc'",
        ),
        (
            lambda c: c["model_init_args"].update(image_normalize={"mean": (10**400,) * 3, "std": (1,) * 3}),
            "finite",
        ),
        (lambda c: c["model_init_args"].update(num_joint_blocks=9), "9 joint blocks in 3 blocks"),
        (lambda c: c["model_init_args"].update(image_normalize={"mean": (1,), "std": (1,)}), "only RGB"),
        (lambda c: c["model_init_args"].update(image_normalize="imagenet"), "not a dictionary"),
        (
            lambda c: c["model_init_args"].update(image_normalize={"mean": (0, 0, 0), "std": (0, 1, 1)}),
            "positive",
        ),
        (lambda c: c["model_init_args"].update(classes=["a", "b"]), "not a dictionary"),
        (lambda c: c["model_init_args"].update(classes={0: "a", 2**40: "b"}), "fit 32 bits"),
        (lambda c: c["model_init_args"].update(image_size=(4, 4)), "one patch"),
        (lambda c: c["model_init_args"].update(image_size=(10**9, 10**9)), "2048 pixels"),
        (lambda c: c["train_model"].update({"model.queries.weight": torch.zeros(0, 64)}), "no queries"),
        (lambda c: c["train_model"].update({"model.queries.weight": torch.ones(8, 64).to_sparse()}), "dense"),
        (lambda c: c["train_model"].update({"model.mask_head.0.bias": torch.ones(64).int()}), "floating"),
        (lambda c: c["train_model"].update({"model.queries.weight": torch.tensor(1.0)}), "make no model"),
        (lambda c: c["train_model"].update({"model.backbone.blocks.99999999.x": torch.ones(1)}), "gaps"),
        (lambda c: c["train_model"].update({"model.upscale.99999999.x": torch.ones(1)}), "gaps"),
        (lambda c: c["train_model"].update({"model.backbone.rope_embed.periods": torch.ones(5)}), "no ViT"),
        (lambda c: c["train_model"].update({"model.backbone.rope_embed.periods": torch.ones(999)}), "no ViT"),
        (lambda c: c["model_init_args"].update(image_size=(float("inf"), 64)), "image_size is .*int"),
        (
            lambda c: c["train_model"].update({"model.queries.weight": torch.zeros(1).expand(10**12, 64)}),
            "at most 4096",
        ),
        (
            lambda c: c["train_model"].update({"model.class_head.weight": torch.zeros(1).expand(10**12, 64)}),
            "at most 65536",
        ),
        (
            lambda c: c["train_model"].update(
                {"model.queries.weight": torch.nested.nested_tensor([torch.zeros(8, 64)])}
            ),
            "make no model",
        ),
        (
            lambda c: c["train_model"].update(
                {"model.mask_head.0.bias": torch.nested.nested_tensor([torch.zeros(64)])}
            ),
            "nested",
        ),
        (
            lambda c: c["train_model"].update(
                {"model.queries.weight": torch.zeros(8, 64).to(torch.float8_e8m0fnu)}
            ),
            "8 to 64 bits",
        ),
        (lambda c: c["train_model"].update({"model.x\n" + "y" * 9999: torch.ones(1)}), "unknown x y+:"),
        (
            lambda c: c["train_model"].update({"model.queries.weight": torch.ones(8, 64, device="meta")}),
            "dense",
        ),
        (lambda c: (c.pop("train_model"), c.update(model=c)), "no model weights"),
        (lambda c: c.update(model_init_args=[1]), "not a dictionary"),
        (lambda c: c.update(model_init_args=torch.ones(3)), "model_init_args are not a dictionary"),
        (lambda c: c.update(model_init_args=""), "model_init_args are not a dictionary"),
        (lambda c: c.update(model_class_path=torch.ones(3)), "holds a tensor"),
        (lambda c: c.update(model_class_path=[MODEL_CLASS_PATH]), "holds a "),
    ],
)
def test_inconsistent_files_are_refused(
    tmp_path: Path, export: dict[str, Any], change: Any, match: str
) -> None:
    change(export)
    with pytest.raises(CheckpointError, match=match) as caught:
        read(save(tmp_path / "a.pt", export))
    assert "a.pt" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_arguments_may_be_lists(tmp_path: Path, export: dict[str, Any], small_spec: ModelSpec) -> None:
    export["model_init_args"] |= {
        "image_size": [64, 64],
        "image_normalize": {"mean": [0, 0, 0], "std": [1] * 3},
    }
    export.pop("model_class_path")
    found = read(save(tmp_path / "a.pt", export)).spec
    assert found == replace(small_spec, mean=(0, 0, 0), std=(1, 1, 1))


def described(path: Path, checkpoint: Checkpoint, description: str) -> Path:
    """Our safetensors with any text where the model's description belongs."""
    save_file(dict(checkpoint.weights), path, metadata={"fasteomt.spec": description})
    return path


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        # The checks were a hang, or hours, before.
        ({"depth": 10**7, "num_joint_blocks": 1}, "depth is 10000000: at most 128"),
        ({"depth": 100, "num_joint_blocks": 1}, "lacks backbone.blocks.10"),
        ({"num_upscale_blocks": 10**7}, "10000000 upscale blocks"),
        ({"embed_dim": 2**40}, "at most 8192"),
        ({"num_heads": 10**400}, "at most 256"),
        ({"ffn_hidden": 10**12}, "at most 32768"),
        ({"num_queries": 10**12}, "at most 4096"),
        ({"num_register_tokens": 10**12}, "at most 256"),
        ({"num_register_tokens": -1}, "no ViT"),
        ({"patch_size": 10**6}, "image size"),
        ({"patch_size": 8, "image_size": [1100, 1100]}, "to 1024 pixels"),
        ({"image_size": [4096, 4096]}, "to 2048 pixels"),
        ({"class_ids": list(range(10**5)), "class_names": ["a"] * 10**5}, "1 to 65536"),
        ({"class_ids": list(range(60000)), "class_names": ["a"] * 60000}, "share the name 'a'"),
        ({"class_ignore_index": 2**40}, "fit 32 bits"),
        ({"ffn": "relu"}, "'mlp' or 'swiglu'"),
        ({"mean": [float("nan"), 0, 0]}, "finite"),
        ({"std": [1e-300, 1, 1]}, "positive"),
        *(
            ({field: value}, f"{field} is ")
            for field, value in {
                "name": 5,
                "patch_size": "16",
                "embed_dim": 64.0,
                "depth": None,
                "num_heads": [2],
                "ffn": 1,
                "ffn_hidden": {},
                "qkv_bias": 1,
                "num_queries": True,
                "num_joint_blocks": "1",
                "num_upscale_blocks": 2.5,
                "class_ids": "01",
                "class_names": ["a", 1],
                "class_ignore_index": "255",
                "image_size": [64],
                "mean": ["0", "0", "0"],
                "std": 1,
                "num_register_tokens": None,
            }.items()
        ),
    ],
)
def test_absurd_descriptions_are_refused_at_once(
    tmp_path: Path, small_checkpoint: Checkpoint, changes: dict[str, Any], match: str
) -> None:
    description = json.loads(small_checkpoint.spec.to_json()) | changes
    path = described(tmp_path / "a.safetensors", small_checkpoint, json.dumps(description))
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=match) as caught:
        read(path)
    assert time.monotonic() - started < 5
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "description", ["", "null", "[1]", "{}", '{"x\\ny": 1}', "[" * 10**5, '{"name": ' + "9" * 5000 + "}"]
)
def test_descriptions_that_are_none(tmp_path: Path, small_checkpoint: Checkpoint, description: str) -> None:
    path = described(tmp_path / "a.safetensors", small_checkpoint, description)
    with pytest.raises(CheckpointError, match="not a fasteomt model description") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_nan_weights_are_noted(tmp_path: Path, export: dict[str, Any]) -> None:
    export["train_model"]["model.queries.weight"][0, 0] = torch.nan
    assert any("queries.weight" in note for note in read(save(tmp_path / "a.pt", export)).notes)


def test_aliases_mean_seeded_random_weights_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    first, second = resolve("vitt32"), resolve("dinov3/vitt32-eomt")
    assert first.random
    assert "random weights" in first.source
    assert "random weights" in caplog.text
    assert same_weights(first, second)
    assert first.sha256 == second.sha256


def test_spec_of_an_alias_needs_no_weights() -> None:
    spec = resolve_spec("vitl16")
    assert (spec.embed_dim, spec.depth, spec.num_joint_blocks) == (1024, 24, 4)


@pytest.mark.parametrize(
    "name",
    [
        *("resnet50", "vitx16", "", "vit16", "vitt9999", "vitt" + "9" * 100, "a\nb", "\udc80"),
        *("x" * 5000, "x" * 5000 + ".pt", "a\0b", "a\0b.pt", None, 5, b"vitt16", ["vitt16"]),
    ],
    ids=lambda name: repr(name)[:20],
)
def test_unknown_names(name: Any) -> None:
    for function in (resolve, resolve_spec):
        with pytest.raises(InputError) as caught:
            function(name)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["", None, 5])
def test_what_names_no_model_is_told_what_does(name: Any) -> None:
    with pytest.raises(InputError, match="give a checkpoint file, 'heads-vitt16'"):
        resolve(name)


def test_existing_file_is_kept(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    path = tmp_path / "a.pt"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write_export(path, small_checkpoint.spec, small_checkpoint.weights)
    assert path.read_text() == "mine"
    write_export(path, small_checkpoint.spec, small_checkpoint.weights, overwrite=True)
    assert read(path).spec == small_checkpoint.spec
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_models_that_lightly_cannot_build_are_refused(tmp_path: Path, small_spec: ModelSpec) -> None:
    for changes in ({"num_upscale_blocks": 4}, {"name": "dinov3/vitx16-eomt"}):
        spec = replace(small_spec, **changes)
        with pytest.raises(CheckpointError, match="LightlyTrain"):
            write_export(tmp_path / "a.pt", spec, random_checkpoint(spec).weights)
        assert not (tmp_path / "a.pt").exists()


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("write", [write_export, write_safetensors])
def test_new_files_have_the_usual_mode(tmp_path: Path, small_checkpoint: Checkpoint, write: Any) -> None:
    before = os.umask(0o027)
    try:
        path = write(tmp_path / "model.safetensors", small_checkpoint.spec, small_checkpoint.weights)
    finally:
        os.umask(before)
    assert oct(path.stat().st_mode & 0o777) == oct(0o640)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("write", [write_export, write_safetensors])
def test_read_only_folder(tmp_path: Path, small_checkpoint: Checkpoint, write: Any) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="can't be written") as caught:
            write(tmp_path / "a.pt", small_checkpoint.spec, small_checkpoint.weights)
    finally:
        tmp_path.chmod(0o700)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


LIMITED = """
import resource, signal, sys
from pathlib import Path
from fasteomt import checkpoint
from fasteomt.cli.script import exit_code
found = checkpoint.read(sys.argv[1])
write = getattr(checkpoint, sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
sys.exit(exit_code("test", lambda: write(sys.argv[3], found.spec, found.weights, overwrite=True)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files")
@pytest.mark.parametrize("write", ["write_export", "write_safetensors"])
def test_full_disk_leaves_what_was_there(tmp_path: Path, small_checkpoint: Checkpoint, write: str) -> None:
    source = write_export(tmp_path / "source.pt", small_checkpoint.spec, small_checkpoint.weights)
    target = tmp_path / "target"
    target.write_text("mine")
    command = [sys.executable, "-c", LIMITED, str(source), write, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{target}: can't be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert target.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.pt", "target"]
