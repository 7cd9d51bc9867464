"""What a head looks like: its random traits, and the ellipsoids they stand for.

Frame of `solids`: origin at the middle of the head, one unit from the crown of the skull to the chin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fasteomt.data.solids import Keep, Solid, rotation

HAIR_STYLES = {
    "bald": 0.08, "buzz": 0.08, "ring": 0.06, "short": 0.24, "side": 0.12, "curly": 0.1, "afro": 0.06,
    "bob": 0.1, "long": 0.16, "bun": 0.05, "ponytail": 0.06, "pigtails": 0.03, "mohawk": 0.02,
}  # fmt: skip
HATS = {"none": 0.72, "cap": 0.08, "beanie": 0.06, "brim": 0.05, "helmet": 0.03, "scarf": 0.06}
BEARDS = {"none": 0.68, "stubble": 0.12, "moustache": 0.06, "goatee": 0.04, "full": 0.07, "long": 0.03}
SKIN = np.array(
    [[250, 219, 196], [241, 194, 160], [224, 172, 125], [198, 140, 98], [150, 98, 64], [104, 66, 45],
     [70, 46, 36]]
) / np.float32(255)  # fmt: skip
HAIR = np.array(
    [[18, 15, 15], [35, 25, 20], [70, 45, 28], [110, 72, 40], [170, 125, 70], [222, 188, 128], [140, 60, 28],
     [160, 158, 155], [225, 222, 218], [180, 60, 130], [60, 90, 170]]
) / np.float32(255)  # fmt: skip
IRIS = np.array([[0.2, 0.12, 0.07], [0.3, 0.45, 0.6], [0.3, 0.4, 0.25]], np.float32)
HAIR_SHARES = np.array([22, 18, 16, 10, 8, 8, 4, 6, 5, 1.5, 1.5])


@dataclass(frozen=True)
class HeadLook:
    """Traits of one person that stay while the pose changes. Lengths in head heights, colours RGB 0..1."""

    width: float
    jaw: float
    nose: float
    cheek: float
    ear: float
    eye_gap: float
    eye_size: float
    eye_open: float
    gaze: tuple[float, float]
    brow: float
    brow_tilt: float
    mouth_width: float
    lip: float
    smile: float
    mouth_open: float
    skin: np.ndarray
    lips: np.ndarray
    iris: np.ndarray
    hair: np.ndarray
    hair_style: str
    hair_volume: float
    hairline: float
    parting: float
    wave: float
    beard: str
    hat: str
    hat_colour: np.ndarray
    hat_second: np.ndarray
    hat_low: float
    glasses: str
    glasses_colour: np.ndarray
    cloth: np.ndarray
    cloth_second: np.ndarray
    pattern: str
    trousers: np.ndarray
    shoulders: float
    gloss: float
    seed: int


def any_colour(rng: np.random.Generator) -> np.ndarray:
    """A random RGB colour, muted more often than vivid: (3,) float32 in 0..1."""
    grey, hue = rng.uniform(0.05, 0.95), rng.dirichlet([1.0, 1.0, 1.0]) * 1.3
    vivid = rng.beta(1.0, 1.5)
    return np.clip(grey * (1 - vivid) + vivid * hue * (0.4 + 0.6 * grey), 0.02, 0.98).astype(np.float32)


def pick(rng: np.random.Generator, shares: dict[str, float]) -> str:
    """A key of `shares`, drawn in proportion to its value."""
    weights = np.array(list(shares.values()))
    return str(list(shares)[int(rng.choice(len(weights), p=weights / weights.sum()))])


def skin_colour(rng: np.random.Generator) -> np.ndarray:
    """A human skin tone: (3,) float32 RGB, between the steps of a light-to-dark scale, jittered."""
    at = rng.uniform(0, len(SKIN) - 1)
    low = int(at)
    tone = SKIN[low] + (at - low) * (SKIN[min(low + 1, len(SKIN) - 1)] - SKIN[low])
    return np.clip(tone * rng.normal(1, 0.04, 3), 0.05, 1).astype(np.float32)


def sample_look(rng: np.random.Generator) -> HeadLook:
    """A random person."""
    skin = skin_colour(rng)
    hair = HAIR[int(rng.choice(len(HAIR), p=HAIR_SHARES / HAIR_SHARES.sum()))]
    lips = skin * np.array([0.85, 0.6, 0.6]) if rng.random() < 0.7 else np.array([0.7, 0.12, 0.18])
    style = pick(rng, HAIR_STYLES)
    return HeadLook(
        width=rng.uniform(0.92, 1.1),
        jaw=rng.uniform(0.85, 1.2),
        nose=rng.uniform(0.8, 1.3),
        cheek=rng.uniform(0.8, 1.25),
        ear=rng.uniform(0.8, 1.3),
        eye_gap=rng.uniform(0.135, 0.165),
        eye_size=rng.uniform(0.055, 0.08),
        eye_open=0.05 if rng.random() < 0.08 else rng.uniform(0.35, 0.65),
        gaze=(rng.uniform(-0.3, 0.3), rng.uniform(-0.2, 0.2)),
        brow=rng.uniform(0.008, 0.022),
        brow_tilt=rng.uniform(-0.2, 0.15),
        mouth_width=rng.uniform(0.085, 0.13),
        lip=rng.uniform(0.015, 0.035),
        smile=rng.uniform(-0.015, 0.05),
        mouth_open=rng.uniform(0.2, 1.0) if rng.random() < 0.25 else 0.0,
        skin=skin,
        lips=lips.astype(np.float32),
        iris=IRIS[int(rng.integers(3))],
        hair=np.clip(hair * rng.normal(1, 0.15) * rng.normal(1, 0.03, 3), 0.02, 1).astype(np.float32),
        hair_style=style,
        hair_volume=rng.uniform(0.02, 0.08),
        hairline=rng.uniform(-0.36, -0.16),
        parting=rng.uniform(-0.5, 0.5),
        wave=rng.uniform(0, 0.05),
        beard=pick(rng, BEARDS) if style not in ("long", "bun", "pigtails", "bob") else "none",
        hat=pick(rng, HATS),
        hat_colour=any_colour(rng),
        hat_second=any_colour(rng),
        hat_low=rng.uniform(-0.3, -0.19),
        glasses=pick(rng, {"none": 0.76, "clear": 0.15, "sun": 0.09}),
        glasses_colour=any_colour(rng) * np.float32(0.5),
        cloth=any_colour(rng),
        cloth_second=any_colour(rng),
        pattern=pick(rng, {"plain": 0.5, "stripes": 0.2, "checks": 0.15, "badge": 0.15}),
        trousers=any_colour(rng) * np.float32(0.6),
        shoulders=rng.uniform(0.85, 1.15),
        gloss=rng.uniform(0.05, 0.35),
        seed=int(rng.integers(1 << 30)),
    )


def solids(look: HeadLook) -> list[Solid]:
    """Ellipsoids of the whole head region: skull, face, ears, hair, beard, hat."""
    parts = _skull(look) + _hat(look)
    if look.hat != "scarf":
        parts += _hair(look)
    if look.beard in ("full", "long"):
        drop = 0.16 if look.beard == "long" else 0.04
        radii = (0.24 * look.jaw, 0.22 + drop, 0.22)
        parts.append(Solid("hair", (0, 0.32 + drop, 0.14), radii, keep=_below_mouth))
    return parts


def _below_mouth(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (y > 0.24) & (z > 0.05)


def _skull(look: HeadLook) -> list[Solid]:
    w, j, n = look.width, look.jaw, look.nose
    parts = [
        Solid("skin", (0, -0.13, -0.05), (0.345 * w, 0.37, 0.43)),
        Solid("skin", (0, 0.08, 0.05), (0.305 * w, 0.39, 0.34)),
        Solid("skin", (0, 0.3, 0.13), (0.2 * j, 0.2, 0.22)),
        Solid("skin", (0, 0.41, 0.25), (0.09 * j, 0.085, 0.09)),
        Solid("skin", (0, 0.02, 0.37), (0.042, 0.13, 0.07 * n), rotation(pitch=-0.25)),
        Solid("skin", (0, 0.125, 0.42), (0.05 * n, 0.045, 0.065 * n)),
        Solid("skin", (0, 0.26, 0.33), (0.09, 0.05, 0.05)),
    ]
    for side in (-1, 1):
        parts += [
            Solid("skin", (side * 0.16, 0.1, 0.24), (0.11 * look.cheek, 0.1, 0.11)),
            Solid("skin", (side * 0.045, 0.14, 0.385), (0.032 * n, 0.03, 0.04)),
            Solid("skin", (side * 0.1, -0.1, 0.31), (0.12, 0.045, 0.06)),
            Solid("skin", (side * 0.345 * w, 0.02, -0.05), (0.045, 0.105 * look.ear, 0.07 * look.ear),
                  rotation(yaw=side * 0.5)),
        ]  # fmt: skip
    return parts


def _line(look: HeadLook, front: float, side: float, back: float) -> Keep:
    """Keeps what lies above a hairline: lowest allowed y at the forehead, beside the ears and at the nape."""

    def keep(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        line = np.interp(z, [-0.28, -0.08, 0.1, 0.24], [back, side + 0.06, side, front])
        return y < line + z.clip(0) * look.parting * x * 2 + look.wave * np.sin(31 * x + 23 * z)

    return keep


def _hair(look: HeadLook) -> list[Solid]:
    v, w, style = look.hair_volume, look.width, look.hair_style
    front = look.hairline
    if style in ("bald", "buzz"):  # buzz is painted on the skin
        return []
    if style == "ring":
        line = _line(look, -1.0, 0.03, 0.2)

        def below_crown(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
            return line(x, y, z) & (y > -0.2)

        return [Solid("hair", (0, -0.11, -0.06), (0.35 * w + v, 0.38, 0.43 + v), keep=below_crown)]
    cap = _line(look, front, 0.02, 0.22)
    crown = Solid("hair", (0, -0.13, -0.06), (0.35 * w + v, 0.375 + v, 0.435 + v), keep=cap)
    rng = np.random.default_rng(look.seed)
    if style == "short":
        return [crown]
    if style == "side":
        place = (look.parting * 0.3, -0.4, 0.12)
        tuft = Solid("hair", place, (0.28, 0.11 + v, 0.24), rotation(roll=look.parting))
        return [crown, tuft]
    if style == "curly":
        return [crown, *_curls(rng, look, cap)]
    if style == "afro":
        r = 0.1 + 2 * v
        cloud = Solid(
            "hair", (0, -0.17, -0.08), (0.36 + r, 0.36 + r, 0.4 + r), keep=_line(look, front, 0.1, 0.3)
        )
        return [cloud, *_curls(rng, look, cap, 1.15 + v)]
    if style == "mohawk":
        return [Solid("hair", (0, -0.2, -0.08), (0.07, 0.42, 0.45), keep=_line(look, -0.2, -0.1, 0.1))]
    if style == "bun":
        y, z = (-0.52, -0.15) if rng.random() < 0.5 else (-0.2, -0.55)
        return [crown, Solid("hair", (0, y, z), (0.17, 0.15, 0.17))]
    if style == "ponytail":
        return [crown, Solid("hair", (0, -0.2, -0.5), (0.1, 0.1, 0.12)),
                Solid("hair", (0.05, 0.2, -0.56), (0.11, 0.45, 0.13), rotation(pitch=-0.15))]  # fmt: skip
    length = {"bob": rng.uniform(0.28, 0.42), "long": rng.uniform(0.5, 0.9), "pigtails": 0.4}[style]
    strands = [crown]
    for side in (-1, 1):
        x, z = (0.46, -0.1) if style == "pigtails" else (0.31 * w + v * 0.5, -0.09)
        thick = 0.1 if style == "pigtails" else 0.08 + v
        strands.append(Solid("hair", (side * x, length * 0.55 - 0.1, z), (thick, length * 0.62, 0.15 + v),
                             rotation(roll=-side * 0.1)))  # fmt: skip
    if style != "pigtails":
        radii = (0.35 * w + v, length * 0.66, 0.22)
        strands.append(Solid("hair", (0, length * 0.5 - 0.1, -0.24), radii, keep=_behind))
    return strands


def _behind(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return z < 0.02


def _curls(rng: np.random.Generator, look: HeadLook, cap: Keep, reach: float = 1.0) -> list[Solid]:
    curls = []
    for _ in range(26):
        turn, rise = rng.uniform(0, 2 * np.pi), rng.uniform(-0.1, 1)
        flat = np.sqrt(max(0.0, 1 - rise * rise))
        x, y, z = 0.36 * flat * np.cos(turn), -0.13 - 0.37 * rise, -0.06 + 0.43 * flat * np.sin(turn)
        if cap(np.array([x]), np.array([y]), np.array([z]))[0]:
            r = rng.uniform(0.08, 0.12) + look.hair_volume * 0.5
            curls.append(Solid("hair", (x * reach, y * reach, z * reach), (r, r, r)))
    return curls


def _hat(look: HeadLook) -> list[Solid]:
    low, w = look.hat_low, look.width

    def above(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return y < low - 0.12 * z

    v = look.hair_volume * 0.6
    dome = Solid("hat", (0, -0.15, -0.05), (0.37 * w + v, 0.39 + v, 0.46 + v), keep=above)
    if look.hat == "cap":
        flip = -1 if look.seed % 7 == 0 else 1  # some wear it backwards
        tilt = rotation(pitch=-0.2 * flip)
        return [dome, Solid("trim", (0, low - 0.02, flip * 0.5 - 0.03), (0.27, 0.03, 0.29), tilt)]
    if look.hat == "beanie":
        rim = Solid("trim", (0, low - 0.02, -0.05), (0.385 * w + v, 0.085, 0.475 + v))
        pompom = [Solid("trim", (0, -0.6 - v, -0.1), (0.1, 0.1, 0.1))] if look.seed % 2 else []
        return [dome, rim, *pompom]
    if look.hat == "brim":
        disc = Solid("hat", (0, low - 0.01, -0.04), (0.62 * w, 0.04, 0.68))
        tall = Solid("hat", (0, -0.3, -0.05), (0.36 * w + v, 0.4, 0.44 + v), keep=above)
        return [tall, disc, Solid("trim", (0, low - 0.06, -0.05), (0.372 * w + v, 0.06, 0.455 + v))]
    if look.hat == "helmet":
        return [dome, Solid("hat", (0, low, 0.02), (0.43 * w, 0.035, 0.54))]
    if look.hat == "scarf":
        return [Solid("hat", (0, 0.0, -0.1), (0.41 * w, 0.56, 0.46), keep=_face_opening)]
    return []


def _face_opening(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return ~((z > 0) & (np.square(x / 0.26) + np.square((y - 0.06) / 0.36) < 1))
