"""Token files of llm.c and modded-nanogpt: 256 numbers of header, then bare tokens.

| number | what                                                                     |
| ------ | ------------------------------------------------------------------------ |
| 0      | magic: 20240520 (GPT-2), 20240801 (Llama 3), 20240522 (an evaluation set) |
| 1      | version: 1 and 7                                                         |
| 2      | tokens                                                                   |

The header is i32. The end-of-text token stands before each document, and documents run on from
one file into the next (source: `dev/data/data_common.py` of llm.c).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packcore.errors import FormatError
from packcore.formats.options import Options
from packcore.formats.reading import read_head
from packcore.formats.spans import PlainTokens, with_separators
from packcore.rawfiles import broken, file_bytes

__all__ = ["END_OF_TEXT", "HEADER_BYTES", "MODELS", "find", "open_files"]

HEADER_BYTES = 1024
MODELS: dict[int, tuple[int, np.dtype[Any]]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}
"""magic -> version, dtype"""
END_OF_TEXT = {20240520: 50256, 20240801: 128000}
"""magic -> the id that stands before each document"""
_EVALUATION = 20240522
_START = struct.Struct("<3i")


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns `path` if it begins with one of the magics."""
    head = read_head(path, 4)
    return path if int.from_bytes(head, "little") in (*MODELS, _EVALUATION) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each file; a separator that the user names replaces the model's."""
    files = [_open(path) for path in paths]
    magic = int.from_bytes(read_head(paths[0], 4), "little")
    sep_token = END_OF_TEXT[magic] if options.sep_token is None else options.sep_token
    return with_separators(files, sep_token, "before")


def _open(path: str) -> PlainTokens:
    size = file_bytes(path)
    head = read_head(path, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        raise broken(
            path,
            f"is cut off inside its header: expected at least {HEADER_BYTES} bytes, got {size}.",
            expected=HEADER_BYTES,
            got=size,
            offset=size,
        )
    magic, version, num_tokens = _START.unpack_from(head)
    if magic == _EVALUATION:
        raise FormatError(
            f"{path} is an llm.c evaluation set: questions with answers, not a row of tokens. "
            "Open the training files.",
            path=path,
            offset=0,
            expected=sorted(MODELS),
            got=magic,
        )
    wanted, dtype = MODELS[magic]
    if version != wanted:
        raise broken(
            path,
            f"has llm.c version {version}; expected {wanted}.",
            expected=wanted,
            got=version,
            offset=4,
        )
    whole = HEADER_BYTES + num_tokens * dtype.itemsize
    if num_tokens < 0 or size != whole:
        what = "is truncated" if size < whole else "has another size than its header says"
        raise broken(
            path,
            f"{what}: {num_tokens} tokens of {dtype} need {whole} bytes; got {size}. Copy or make "
            "it again.",
            expected=whole,
            got=size,
            offset=max(0, min(size, whole)),
        )
    return PlainTokens(path=path, dtype=dtype, offset=HEADER_BYTES, num_tokens=num_tokens)
