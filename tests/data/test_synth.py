"""The generator: repeatable, split cleanly, varied, and with polygons that are the truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fasteomt.cli.data import app
from fasteomt.data.compose import SMALLEST, Visible, compose, rings
from fasteomt.data.dataset import open_dataset
from fasteomt.data.distractors import KINDS, Thing, draw_thing
from fasteomt.data.figures import draw_body
from fasteomt.data.head_shapes import BEARDS, HAIR_STYLES, HATS, sample_look
from fasteomt.data.heads import Layer, Light, Pose, draw_head, sample_light
from fasteomt.data.photos import FILES, SPLITS, load_photo, photo_names, random_view
from fasteomt.data.rasterize import Shape, decode_shape
from fasteomt.data.scenes import Sample, frame_size, generate, head_height, mask_of, sample_scene
from fasteomt.data.synth import ANNOTATIONS, write_dataset
from fasteomt.errors import InputError

FRONT = Light(np.array([0, 0, 1], np.float32), np.ones(3, np.float32), 0.5)


def covered(polygons: list[list[float]], height: int, width: int) -> np.ndarray:
    return decode_shape(Shape(0, 1, False, tuple(np.reshape(r, (-1, 2)) for r in polygons)), height, width)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("synth") / "set", train=9, valid=4, size=(240, 180), seed=3)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return [generate(0, "train", index, 240, 180) for index in range(60)]


def test_same_seed_same_bytes_for_any_number_of_workers(made: Path, tmp_path: Path) -> None:
    again = write_dataset(tmp_path / "two", train=9, valid=4, size=(240, 180), seed=3, workers=2)
    assert files(made) == files(again)
    assert len(files(made)) == 9 + 4 + 2 + 1


def test_seeds_splits_and_indices_differ() -> None:
    images = [
        generate(seed, split, index, 160, 120).image
        for seed, split, index in [(0, "train", 0), (1, "train", 0), (0, "valid", 0), (0, "train", 1)]
    ]
    for position, image in enumerate(images):
        for other in images[position + 1 :]:
            assert image.shape != other.shape or (image != other).any()


def test_an_image_does_not_depend_on_those_before_it() -> None:
    alone = generate(5, "train", 7, 160, 120)
    generate(5, "train", 6, 160, 120)
    again = generate(5, "train", 7, 160, 120)
    assert (alone.image == again.image).all()
    assert alone.heads == again.heads


def test_photos_belong_to_one_split_each() -> None:
    assert not set(SPLITS["train"]) & set(SPLITS["valid"])
    assert set(SPLITS["train"]) | set(SPLITS["valid"]) == set(FILES)
    with pytest.raises(InputError, match="split 'test'"):
        photo_names("test")  # type: ignore[arg-type]


def test_photos_with_people_are_cropped_beside_the_head() -> None:
    # Columns of the 512-pixel originals where the astronaut's hair and the cameraman's face end.
    for name, head_ends in (("astronaut", 275), ("camera", 285)):
        left = FILES[name][2][0]
        assert left * 512 > head_ends
        assert load_photo(name).shape == (512, 512 - round(left * 512), 3)


def test_every_photo_gives_views() -> None:
    rng = np.random.default_rng(0)
    for name in FILES:
        view = random_view(rng, load_photo(name), 64, 96)
        assert view.shape == (96, 64, 3)
        assert view.dtype == np.uint8


def test_coco_file_holds_exactly_what_its_polygons_cover(made: Path) -> None:
    for split, count in (("train", 9), ("valid", 4)):
        data = json.loads((made / split / ANNOTATIONS).read_text())
        assert data["categories"] == [{"id": 1, "name": "head", "supercategory": "none"}]
        assert len(data["images"]) == count
        sizes = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
        for annotation in data["annotations"]:
            mask = covered(annotation["segmentation"], *sizes[annotation["image_id"]])
            rows, columns = np.nonzero(mask)
            assert annotation["iscrowd"] == 0
            assert annotation["area"] == mask.sum() > 0
            x, y, w, h = annotation["bbox"]
            assert (x, y) == (columns.min(), rows.min())
            assert (x + w, y + h) == (columns.max() + 1, rows.max() + 1)


def test_the_data_set_reader_opens_it(made: Path) -> None:
    data = open_dataset(made, "train")
    assert data.classes == {0: "background", 1: "head"}
    assert len(data) == 9
    assert not data.warnings
    facts = json.loads((made / "dataset.json").read_text())
    assert facts["seed"] == 3
    assert facts["counts"] == {"train": 9, "valid": 4}
    assert facts["photos"]["valid"] == photo_names("valid")


def test_polygons_are_the_visible_head() -> None:
    rng = np.random.default_rng(2)
    overlaps = []
    for _ in range(25):
        height = head_height(rng, 320, 240)
        pose = Pose(rng.uniform(20, 300), rng.uniform(20, 200), height, rng.normal(0, 1), 0.1, 0.1)
        head = draw_head(sample_look(rng), pose, FRONT, (320, 240))
        assert head is not None
        visible = np.zeros((240, 320), bool)
        h, w = head.alpha.shape
        visible[head.y : head.y + h, head.x : head.x + w] = head.alpha >= 0.5
        mask = covered(rings(Visible(head.x, head.y, head.alpha)), 240, 320)
        # A contour is as uncertain as its length: at most a sixth of a pixel along the outline.
        edge = np.sqrt(visible.sum()) * 4
        assert (mask ^ visible).sum() <= max(3, edge / 6 * 2)
        overlaps.append(((mask & visible).sum(), (mask | visible).sum()))
    both, either = np.sum(overlaps, axis=0)
    assert both / either > 0.99


@pytest.mark.parametrize("hole", [(20, 30, 12, 30), (20, 40, 33, 34), (11, 12, 20, 40)])
def test_holes_are_cut_open_without_losing_pixels(hole: tuple[int, int, int, int]) -> None:
    alpha = np.zeros((60, 60), np.float32)
    alpha[5:50, 8:52] = 1
    top, bottom, left, right = hole
    alpha[top:bottom, left:right] = 0
    polygons = rings(Visible(0, 0, alpha))
    assert len(polygons) == 2
    assert (covered(polygons, 60, 60) == (alpha > 0.5)).all()


def test_an_occluder_splits_a_head_and_takes_its_pixels() -> None:
    look = sample_look(np.random.default_rng(4))
    head = draw_head(look, Pose(80, 60, 70, 0, 0, 0), FRONT, (160, 120))
    assert head is not None
    bar = Layer(75, 0, np.full((120, 10, 3), 0.5, np.float32), np.ones((120, 10), np.float32))
    image = np.zeros((120, 160, 3), np.float32)
    (visible,) = compose(image, [head, bar])
    polygons = rings(visible)
    assert len(polygons) >= 2
    mask = covered(polygons, 120, 160)
    assert not mask[:, 75:85].any()
    assert mask[:, :75].any()
    assert mask[:, 85:].any()
    assert (image[:, 75:85] == 0.5).all()


def test_tiny_fragments_are_not_labelled() -> None:
    alpha = np.zeros((9, 9), np.float32)
    alpha[4, 4] = 1
    assert SMALLEST > 1
    assert rings(Visible(0, 0, alpha)) == []
    assert rings(Visible(0, 0, np.zeros((9, 9), np.float32))) == []


def test_a_shadow_fades_out_without_an_edge() -> None:
    spot = np.zeros((40, 40), np.float32)
    spot[8:32, 8:32] = 1
    image = np.ones((120, 160, 3), np.float32)
    compose(image, [Layer(60, 40, spot[..., None] * np.float32([1, 1, 1]), spot)], shadow=0.5)
    grey = image[..., 0]
    assert grey.min() < 0.8
    assert (grey[[0, -1]] > 0.999).all()
    outside = np.ones_like(grey, bool)
    outside[47:73, 67:93] = False
    steps = np.abs(np.diff(grey, axis=1)) * (outside[:, 1:] & outside[:, :-1])
    assert steps.max() < 0.08
    corner = np.ones((30, 30, 3), np.float32)
    compose(corner, [Layer(0, 0, spot[:30, :30, None] * np.float32([1, 1, 1]), spot[:30, :30])], shadow=0.5)
    assert corner.min() < 0.95


def test_neck_and_body_are_not_head() -> None:
    look = sample_look(np.random.default_rng(1))
    pose = Pose(100, 50, 60, 0, 0, 0)
    body, head = draw_body(look, pose, FRONT, (200, 200)), draw_head(look, pose, FRONT, (200, 200))
    assert body is not None
    assert head is not None
    assert head.is_head
    assert not body.is_head
    assert len(compose(np.zeros((200, 200, 3), np.float32), [body, head])) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dataset.json", '{"name": "of another program"}'),
        ("dataset.json", "5"),
        ("train/label.txt", "mine"),
        ("train/more/train_00000.jpg", "mine"),
        ("valid/train_00000.jpg", "mine"),
        ("notes", "mine"),
    ],
)
def test_what_somebody_else_put_there_is_never_replaced(tmp_path: Path, name: str, content: str) -> None:
    out = tmp_path / "data"
    write_dataset(out, train=1, valid=1, size=(64, 64))
    write_dataset(out, train=2, valid=1, size=(64, 64), overwrite=True)
    theirs = out / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text(content)
    with pytest.raises(InputError, match="not a generated data set"):
        write_dataset(out, train=1, valid=1, size=(64, 64), overwrite=True)
    assert theirs.read_text() == content
    assert len(list((out / "train").glob("train_*.jpg"))) == 2


def test_slivers_are_no_polygons() -> None:
    """A head cut through a hole here leaves lens-shaped pieces a pixel wide, which shrink to lines."""
    sample = generate(1, "train", 13366)
    assert sample.heads
    assert all(len(ring) >= 6 for head in sample.heads for ring in head)
    assert mask_of(sample).sum() > 1000


def test_scales_reach_from_12_pixels_to_half_the_frame() -> None:
    heights = []
    for index in range(300):
        rng = np.random.default_rng([9, index])
        heights += [person.pose.height for person in sample_scene(rng, 640, 480).people]
    assert 12 <= min(heights) < 14
    assert 220 < max(heights) <= 240
    low, middle, high = np.quantile(heights, [0.25, 0.5, 0.75])
    assert low < 45 < middle < 95 < high  # quartiles near 32, 67 and 129


def test_scene_counts_and_shapes_vary() -> None:
    scenes, shapes = [], set()
    for index in range(200):
        rng = np.random.default_rng([10, index])
        shape = frame_size(rng, 640, 480)
        shapes.add(shape)
        assert abs(shape[0] * shape[1] / (640 * 480) - 1) < 0.02
        scenes.append(sample_scene(rng, *shape))
    assert any(w < h for w, h in shapes)
    assert any(w > h for w, h in shapes)
    counts = [len(scene.people) for scene in scenes]
    assert {0, 1, 2, 3} <= set(counts)
    assert any(not scene.people and scene.things for scene in scenes)
    people = [person for scene in scenes for person in scene.people]
    assert {person.look.hair_style for person in people} == set(HAIR_STYLES)
    assert {person.look.hat for person in people} == set(HATS)
    assert {person.look.beard for person in people} == set(BEARDS)
    assert sum(abs(person.pose.yaw) > 2 for person in people) > 10  # seen from behind


def test_images_without_and_with_several_heads_exist(samples: list[Sample]) -> None:
    counts = [len(sample.heads) for sample in samples]
    assert 0 in counts
    assert max(counts) >= 3
    assert all(sample.image.dtype == np.uint8 for sample in samples)


@pytest.mark.parametrize("kind", KINDS)
def test_distractors_draw_something_and_are_not_heads(kind: str) -> None:
    photo = np.full((100, 100, 3), 128, np.uint8)
    thing = Thing(kind, np.full(3, 0.6, np.float32), np.full(3, 0.2, np.float32), np.eye(3), 0.3, 5)
    layer = draw_thing(thing, 50, 50, 40, sample_light(np.random.default_rng(0)), (100, 100), photo)
    assert layer is not None
    assert not layer.is_head
    assert layer.alpha.max() == pytest.approx(1)
    assert layer.alpha.min() == 0
    assert (layer.colour <= layer.alpha[..., None] + 1e-3).all()
    assert draw_thing(thing, 5000, 50, 40, FRONT, (100, 100), photo) is None


def test_what_is_in_the_way_stays(made: Path, tmp_path: Path) -> None:
    before = files(made)
    with pytest.raises(InputError, match="--overwrite"):
        write_dataset(made, train=1, valid=0)
    assert files(made) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(InputError, match="not a generated data set"):
        write_dataset(tmp_path / "mine", train=1, valid=0, overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_overwrite_replaces_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    out = tmp_path / "set"
    out.mkdir()
    write_dataset(out, train=1, valid=0, size=(96, 96))
    write_dataset(out, train=0, valid=2, size=(96, 96), overwrite=True)
    assert len(list((out / "valid").glob("*.jpg"))) == 2
    assert not list((out / "train").glob("*.jpg"))
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_broken_run_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / "set", train=2, valid=0, size=(96, 96), progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad", [{"train": -1}, {"train": 0, "valid": 0}, {"train": 10**30}, {"size": (10, 480)}, {"seed": -1}]
)
def test_bad_arguments_are_named(bad: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_dataset(tmp_path / "set", **bad)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path: Path) -> None:
    arguments = [
        "synth",
        str(tmp_path / "d"),
        "--train",
        "2",
        "--valid",
        "1",
        "--size",
        "96x72",
        "--workers",
        "1",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert len(list((tmp_path / "d").rglob("*.jpg"))) == 3
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InputError)
    assert again.exception.exit_code == 2
    wrong = CliRunner().invoke(app, [*arguments[:-4], "--size", "96", "--overwrite"])
    assert "96" in str(wrong.exception)
