"""NumPy's own `.npy` files, one row of integers each.

The header is matched and never evaluated. A `.npy` without NumPy's magic is OLMo's, for
`packcore.formats.olmo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from packcore.formats.options import Options
from packcore.formats.raw import check_no_zeros
from packcore.formats.reading import read_head
from packcore.formats.spans import PlainTokens, with_separators
from packcore.rawfiles import broken, file_bytes

__all__ = ["find", "open_files"]

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\x93NUMPY(\x01\x00..|[\x02\x03]\x00....)\{'descr': '(?P<dtype>[<|][iu][1248])', "
    rb"'fortran_order': (False|True), 'shape': \((?P<count>[0-9]{1,18}),\), ?\} *\n",
    re.DOTALL,
)
_MOST_OF_A_HEADER = 4096


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns `path` if it begins with NumPy's magic."""
    return path if read_head(path).startswith(_MAGIC) else None


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each file."""
    files = [_open(path) for path in paths]
    for file in files:
        check_no_zeros(file)
    if options.sep_token is None:
        return iter(files)
    return with_separators(files, options.sep_token, "after")


def _open(path: str) -> PlainTokens:
    match = _HEADER.match(read_head(path, _MOST_OF_A_HEADER))
    if match is None:
        raise broken(
            path,
            "is a .npy file, but not one row of little-endian integers. Save the tokens as a 1-D "
            "array of an integer dtype.",
            expected="a 1-D array of integers",
            got=read_head(path, 128),
            offset=0,
        )
    dtype, count = np.dtype(match["dtype"].decode()), int(match["count"])
    size, whole = file_bytes(path), match.end() + count * dtype.itemsize
    if size != whole:
        what = "is truncated" if size < whole else "has trailing bytes"
        raise broken(
            path,
            f"{what}: {count} tokens of {dtype} need {whole} bytes; got {size}.",
            expected=whole,
            got=size,
            offset=min(size, whole),
        )
    return PlainTokens(path=path, dtype=dtype, offset=match.end(), num_tokens=count)
