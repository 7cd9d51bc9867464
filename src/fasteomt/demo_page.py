"""The HTML page that `fasteomt demo` leaves: one file, nothing loaded from elsewhere but its own video."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import cv2
import numpy as np

from fasteomt.draw import palette

# RGB. The first is the overlay's own colour of the first class after the background.
PREDICTED = tuple(int(channel) for channel in palette(2)[1])
TRUE = (64, 160, 255)
_HALO = (0, 0, 0)

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --paper: #fff; --line: #d5dae0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf1; --dim: #9aa5b1; --paper: #14171b; --line: #343b44; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 60rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0 .75rem; max-width: 44rem; } .dim { color: var(--dim); }
video { display: block; width: 100%; border-radius: .4rem; background: #000; }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: .75rem; }
figure { margin: 0; } figure img { display: block; width: 100%; border-radius: .3rem; }
figcaption { color: var(--dim); font-size: .85rem; }
.key { display: inline-block; width: 1.1em; height: .3em; margin: 0 .35em .2em 0; vertical-align: middle;
  border-radius: .15em; outline: 1px solid #0006; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; font-weight: normal; overflow-wrap: anywhere; }
th { color: var(--dim); width: 15rem; } td { font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; border-bottom: 1px solid var(--line); }
code { font: .9em ui-monospace, monospace; } a { color: inherit; }
"""


@dataclass(frozen=True)
class StripFrame:
    """One picture of the strip: `image` (H, W, 3) uint8 RGB with outlines drawn, `caption` plain text."""

    image: np.ndarray
    caption: str


@dataclass(frozen=True)
class Page:
    """What the page says. Plain text everywhere; `video` and `files` are paths relative to the page.

    `areas`: for each frame the share of the picture that is head, (predicted, true), 0 to 1.
    """

    summary: str
    video: str
    strip: Sequence[StripFrame]
    facts: Sequence[tuple[str, str]]
    areas: Sequence[tuple[float, float]]
    files: Sequence[tuple[str, str]]
    command: str


def outlined(image: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """A copy of the image with the outlines of both regions.

    Args:
        image: (H, W, 3) uint8 RGB.
        predicted, true: (H, W) bool.
    """
    out = np.array(image, order="C")
    width = max(1, round(min(image.shape[:2]) / 240))
    for region, colour in ((true, TRUE), (predicted, PREDICTED)):
        contours, _ = cv2.findContours(region.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(out, contours, -1, _HALO, 2 * width + 1)
        cv2.drawContours(out, contours, -1, colour, width)
    return out


def render(page: Page) -> str:
    """The page as one HTML document."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fasteomt demo</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1>fasteomt demo</h1>
<p>{escape(page.summary)}</p>
<video controls autoplay loop muted playsinline src="{escape(page.video)}"></video>

<h2>Frames</h2>
<p class="dim">{_key(PREDICTED)}predicted outline &ensp; {_key(TRUE)}true outline</p>
<div class="strip">
{_strip(page.strip)}
</div>

<h2>Figures</h2>
<table>
{_rows((escape(name), escape(value)) for name, value in page.facts)}
</table>

<h2>Head area over the clip</h2>
{_chart(page.areas)}
<p class="dim">Share of the picture, 0 to {_percent(_top(page.areas))}, frame 0 to {len(page.areas) - 1}.
{_key(PREDICTED)}predicted &ensp; {_key(TRUE)}true</p>

<h2>Files</h2>
<table>
{_rows((_link(path), escape(what)) for path, what in page.files)}
</table>
<p class="dim">Made by <code>{escape(page.command)}</code></p>
</body>
</html>
"""


def _key(colour: tuple[int, ...]) -> str:
    return f'<span class="key" style="background:{_css(colour)}"></span>'


def _css(colour: tuple[int, ...]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _link(path: str) -> str:
    return f'<a href="{escape(path)}"><code>{escape(path)}</code></a>'


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)


def _strip(strip: Sequence[StripFrame]) -> str:
    figures = []
    for frame in strip:
        done, jpeg = cv2.imencode(".jpg", frame.image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])
        if not done:
            raise RuntimeError("OpenCV could not encode a JPEG")
        data = base64.b64encode(jpeg.tobytes()).decode("ascii")
        caption = escape(frame.caption)
        figures.append(
            f'<figure><img alt="{caption}" src="data:image/jpeg;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return "\n".join(figures)


def _top(areas: Sequence[tuple[float, float]]) -> float:
    """Upper end of the chart's scale: the largest area, rounded up to a whole percent."""
    largest = max((value for pair in areas for value in pair), default=0.0)
    return max(1.0, float(np.ceil(100 * largest))) / 100


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _chart(areas: Sequence[tuple[float, float]]) -> str:
    width, height = 600.0, 110.0
    top, steps = _top(areas), max(1, len(areas) - 1)
    lines = []
    for which, colour, stroke in ((1, TRUE, 4), (0, PREDICTED, 2)):
        points = " ".join(
            f"{width * i / steps:.1f},{height - (height - 6) * pair[which] / top:.1f}"
            for i, pair in enumerate(areas)
        )
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{_css(colour)}" stroke-width="{stroke}" '
            'stroke-linejoin="round"/>'
        )
    label = "Predicted and true head area for each frame"
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">{"".join(lines)}</svg>'
    )
