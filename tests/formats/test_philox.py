"""Random words are Random123's, and Triton's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fasteomt.errors import InputError
from fasteomt.formats.philox import philox4x32, random_words, words_at

# Known answers that Random123 ships (tests/kat_vectors, philox4x32 with 10 rounds): counter, key, words.
KNOWN = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox4x32((c0, c1, c2, c3), key)) == words


def test_seed_and_offset_are_split_low_word_first() -> None:
    (c0, c1), (k0, k1) = (3, 4), (5, 6)
    zero = torch.zeros(1, dtype=torch.int64)
    expected = philox4x32((zero + c0, zero + c1, zero, zero), (k0, k1))
    assert words_at(k1 << 32 | k0, zero + (c1 << 32 | c0)) == expected


def test_the_stream_goes_through_the_words_of_each_offset() -> None:
    words = torch.stack(words_at(9, torch.arange(5)), dim=1).flatten()
    for count in (0, 1, 4, 19, 20):
        assert torch.equal(random_words(9, count), words[:count])
    assert int(words.min()) >= 0 and int(words.max()) < 1 << 32


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_seeds_out_of_range(seed: int) -> None:
    with pytest.raises(InputError, match=f"seed {seed}: must be from 0"):
        random_words(seed, 4)


def test_words_are_tritons(tmp_path: Path) -> None:
    """With seeds and offsets of one word and of two."""
    pytest.importorskip("triton")
    out = tmp_path / "words.pt"
    script = Path(__file__).with_name("philox_in_triton.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, str(script), str(out)], env=environment, check=True, timeout=300)
    found = torch.load(out)
    assert len(found) == 3
    for (seed, first), theirs in found.items():
        offsets = torch.arange(first, first + len(theirs) // 4)
        assert torch.equal(torch.stack(words_at(seed, offsets), dim=1).flatten(), theirs)
