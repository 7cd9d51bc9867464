"""Is a container file whole? Walks its outer structure, since decoders pass over holes in silence."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

# Matroska element ids (RFC 9559): those entered, and those whose content is passed over.
_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675
_ENTERED = {_SEGMENT, _CLUSTER}
_PASSED = {
    0x1A45DFA3,  # EBML header
    0x114D9B74,  # SeekHead
    0x1549A966,  # Info
    0x1654AE6B,  # Tracks
    0x1C53BB6B,  # Cues
    0x1941A469,  # Attachments
    0x1043A770,  # Chapters
    0x1254C367,  # Tags
    0xE7,  # Timestamp
    0x5854,  # SilentTracks
    0xA7,  # Position
    0xAB,  # PrevSize
    0xA3,  # SimpleBlock
    0xA0,  # BlockGroup
    0xAF,  # EncryptedBlock
    0xEC,  # Void
    0xBF,  # CRC-32
}


def find_damage(path: Path, format_name: str) -> str | None:
    """Where a Matroska, MP4 or AVI file breaks off or stops making sense, in a few words; None if whole.

    Args:
        path: the file.
        format_name: FFmpeg's name of its format; other formats than these three are not looked into.
    """
    names = set(format_name.split(","))
    check = None
    if names & {"matroska", "webm"}:
        check = _matroska
    elif names & {"mp4", "mov"}:
        check = _mp4
    elif "avi" in names:
        check = _avi
    if check is None or path.stat().st_size == 0:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return check(data)


def _cut(data: mmap.mmap, end: int) -> str:
    return f"the file ends at byte {len(data)} of {end}"


def _broken(position: int) -> str:
    return f"the file is damaged at byte {position}"


def _vint(data: mmap.mmap, position: int, keep_marker: bool) -> tuple[int, int]:
    """An EBML variable-length integer: (value, length in bytes); length 0 where there is none."""
    length = 9 - data[position].bit_length()
    if length > 8 or position + length > len(data):
        return 0, 0
    value = int.from_bytes(data[position : position + length], "big")
    return (value if keep_marker else value & ((1 << 7 * length) - 1)), length


def _matroska(data: mmap.mmap) -> str | None:
    position = 0
    while position < len(data):
        element, id_length = _vint(data, position, keep_marker=True)
        start = position + id_length
        if element not in _ENTERED | _PASSED or start >= len(data):
            return _broken(position)
        size, size_length = _vint(data, start, keep_marker=False)
        if size_length == 0:
            return _broken(position)
        # All ones: the size was not known when the header was written, as in live streams.
        unknown = size == (1 << 7 * size_length) - 1
        content = start + size_length
        if not unknown and content + size > len(data):
            return _cut(data, content + size) if element in _ENTERED else _broken(position)
        position = content if element in _ENTERED else content + size
    return None


def _mp4(data: mmap.mmap) -> str | None:
    """ISO/IEC 14496-12, 4.2: boxes of a 32-bit size and a type, a 64-bit size after size 1."""
    position = 0
    while position + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[position : position + 8])
        if size == 1 and position + 16 <= len(data):
            (size,) = struct.unpack(">Q", data[position + 8 : position + 16])
        if size == 0:  # the box goes on to the end of the file
            return None
        if size < 8 or not all(32 <= letter < 127 or letter == 0xA9 for letter in kind):
            return _broken(position)
        position += size
    return _cut(data, position) if position > len(data) else None


def _avi(data: mmap.mmap) -> str | None:
    position = 0
    while position + 12 <= len(data):
        kind, size = struct.unpack("<4sI", data[position : position + 8])
        if not all(32 <= letter < 127 for letter in kind):
            return _broken(position)
        inside = data[position + 8 : position + 12]
        enter = kind == b"RIFF" or (kind == b"LIST" and inside in (b"movi", b"rec "))
        if kind == b"RIFF" and position + 8 + size > len(data):
            return _cut(data, position + 8 + size)
        # Chunks start at even bytes.
        position += 12 if enter else 8 + size + size % 2
    return None
