"""Generated heads without end: worker processes draw images while the GPU trains on earlier ones."""

from __future__ import annotations

import functools
import queue
import threading

import cv2
import numpy as np

from fasteomt.data.labelled import Labelled, labelled
from fasteomt.data.photos import Split
from fasteomt.data.processes import map_in_processes
from fasteomt.data.scenes import ASPECTS, encode, frame_of_aspect, generate, mask_of

CLASSES = {0: "background", 1: "head"}
FOREVER = 1 << 40
AHEAD = 256  # finished images that wait at most


def largest_side(width: int, height: int) -> int:
    """The longest side, in pixels, of any frame that is generated with about the area width x height."""
    return max(max(frame_of_aspect(aspect, width, height)) for aspect, _ in ASPECTS)


def fresh_head(seed: int, split: Split, size: tuple[int, int], index: int) -> Labelled:
    """Image number `index` of a split as `fasteomt data synth` would store it, and its mask."""
    sample = generate(seed, split, index, *size)
    bgr = cv2.imdecode(np.frombuffer(encode(sample), np.uint8), cv2.IMREAD_COLOR)
    assert bgr is not None
    return labelled(np.ascontiguousarray(bgr[..., ::-1]), mask_of(sample))


class FreshHeads:
    """Training images `first`, `first + step`, ... of the generator, drawn in the background.

    Use as a context manager: leaving it ends the processes.
    """

    def __init__(self, seed: int, size: tuple[int, int], workers: int, first: int = 0, step: int = 1) -> None:
        make = functools.partial(fresh_head, seed, "train", size)
        self._made = map_in_processes(make, range(first, FOREVER, step), workers)
        self._queue: queue.Queue[Labelled] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._collect, name="fresh heads", daemon=True)

    def __enter__(self) -> FreshHeads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self, most: int, *, least: int = 0) -> list[Labelled]:
        """Up to `most` images: those that are ready, waiting for `least` of them.

        Raises:
            whatever the processes raised.
        """
        taken: list[Labelled] = []
        while len(taken) < most:
            try:
                taken.append(self._queue.get(block=len(taken) < least, timeout=1))
            except queue.Empty:
                if self._failure is not None:
                    raise self._failure from None
                if len(taken) >= least:
                    break
        return taken

    def _collect(self) -> None:
        try:
            for one in self._made:
                while not self._stop.is_set():
                    try:
                        self._queue.put(one, timeout=0.2)
                        break
                    except queue.Full:
                        continue
                if self._stop.is_set():
                    break
        except BaseException as error:
            self._failure = error
        finally:
            self._made.close()  # ends its processes
