"""Label files that anyone may have written: their JSON, and what its ids and names may be."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fasteomt.errors import InputError, one_line
from fasteomt.files import require_file

# One below the largest int32, so that an ignore id above all classes still fits a mask.
MAX_CLASS_ID = 2**31 - 2
# Control characters, half surrogates and line separators: they break terminals, files and lines.
_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")


def read_json(
    path: Path, advice: str, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """What a JSON file holds; UTF-8, with or without a byte order mark.

    Args:
        advice: what to do about a file that can't be read; ends the message.
        pairs_hook: makes something else than a dict of each object's pairs.

    Raises:
        InputError: missing, not a regular file, or not JSON.
    """
    require_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=pairs_hook)
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror}): {advice}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} can't be read as JSON (it is not UTF-8 text): {advice}") from None
    except ValueError as error:  # also numbers of more digits than Python converts
        raise InputError(f"{path} can't be read as JSON ({one_line(error)}): {advice}") from None
    except RecursionError:
        raise InputError(f"{path} can't be read as JSON (it is nested too deeply): {advice}") from None


def is_id(value: Any, most: int = 2**63 - 1) -> bool:
    """Whether a JSON value is an integer of 0 to `most`; true, 1.0 and "1" are not."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_name(value: Any) -> bool:
    """Whether a JSON value is a string that can be printed and written: not blank, no control characters."""
    return (
        isinstance(value, str)
        and bool(value.strip())
        and not any(unicodedata.category(character) in _NO_TEXT for character in value)
    )
