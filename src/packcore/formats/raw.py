"""Raw tokens without a header, as nanoGPT and OLMo write them: only the user knows the dtype.

nanoGPT's `.bin` has no index at all. Its `meta.pkl`, where there is one, says the size of the
vocabulary, which shows a wrong dtype; it is never unpickled.
"""

from __future__ import annotations

import os
import pickletools
from collections.abc import Iterator, Sequence

import numpy as np

from packcore.errors import ArgumentError, FormatError
from packcore.formats.options import Options
from packcore.formats.reading import read_head
from packcore.formats.spans import PlainTokens, with_separators
from packcore.rawfiles import broken, file_bytes, map_array, opened

__all__ = ["check_no_zeros", "find", "open_files", "open_raw", "read_vocab_size"]

_ENOUGH_ZEROS = 4096
"""Zero bytes at the end of a file that no text would leave there."""
_MOST_OF_A_PICKLE = 2**24
_MAGICS = (
    *(b"\x93NUMPY", b"PAR1", b"ARROW1", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"version https"),
    *(b"LITPKDS", b"MMIDIDX", b"TNTIDX", b"HUFFIDX"),
)


def find(path: str, options: Options) -> str | None:  # noqa: ARG001 - every format's signature
    """Returns `path` if it is a .bin without an index beside it and without another's magic."""
    indexes = path.removesuffix(".bin") + ".idx", os.path.join(os.path.dirname(path), "index.json")
    if not path.endswith(".bin") or not os.path.isfile(path) or any(map(os.path.isfile, indexes)):
        return None
    return None if read_head(path).startswith(_MAGICS) else path


def open_files(paths: Sequence[str], options: Options) -> Iterator[PlainTokens]:
    """Yields the tokens of each file."""
    files = [open_raw(path, options, hint="nanoGPT writes uint16") for path in paths]
    for file in files:
        check_no_zeros(file)
        _check_vocab_size(file)
    if options.sep_token is None:
        return iter(files)
    return with_separators(files, options.sep_token, "after")


def open_raw(path: str, options: Options, *, hint: str) -> PlainTokens:
    """Returns all of a file as tokens.

    Args:
        path: the file.
        options: with the dtype that the user named.
        hint: what is likely, for the message that asks for it.

    Raises:
        ArgumentError: the user has named no dtype.
        FormatError: the file is empty, or its size is no whole number of tokens.
    """
    size = file_bytes(path)
    if not size:
        raise broken(path, "is empty; expected tokens.", expected=1, got=0, offset=0)
    if options.dtype is None or options.dtype.kind not in "iu":
        raise ArgumentError(
            f"dtype must be named for {path}, an integer one: raw tokens do not say it. {hint}: "
            "packcore.open(..., dtype=...).",
            name="dtype",
            value=options.dtype,
        )
    itemsize = options.dtype.itemsize
    if size % itemsize:
        raise broken(
            path,
            f"has {size} bytes; expected a multiple of {itemsize}, as dtype is {options.dtype}. It "
            "is truncated, or the dtype is another one.",
            expected=size // itemsize * itemsize,
            got=size,
            offset=size // itemsize * itemsize,
        )
    return PlainTokens(path=path, dtype=options.dtype, num_tokens=size // itemsize)


def check_no_zeros(file: PlainTokens) -> None:
    """Refuses tokens that were never written: a killed writer leaves a whole file of zeros.

    Raises:
        FormatError: the tokens are all 0, or the last 4096 bytes of them are.
    """
    size = file.num_tokens * file.dtype.itemsize
    count = min(size, _ENOUGH_ZEROS)
    tail = map_array(file.path, np.dtype(np.uint8), file.offset + size - count, count)
    if tail.any():
        return
    what = "all zeros" if count == size else f"zeros in its last {count} bytes"
    raise broken(
        file.path,
        f"is {what}: whoever wrote it stopped before the end, or there was no document. Make it "
        "again, or leave it out.",
        expected="tokens",
        got=0,
        offset=file.offset + size - count,
    )


def _check_vocab_size(file: PlainTokens) -> None:
    """Compares a sample with the vocabulary of the `meta.pkl` beside the file, if there is one."""
    vocab_size = read_vocab_size(os.path.join(os.path.dirname(file.path), "meta.pkl"))
    tokens = file.map()[:_ENOUGH_ZEROS]
    if vocab_size is not None and int(tokens.max()) >= vocab_size:
        raise broken(
            file.path,
            f"has id {tokens.max()}, but the meta.pkl beside it says that there are {vocab_size}. "
            f"The dtype is not {file.dtype}, or the file is of another data set.",
            expected=vocab_size,
            got=int(tokens.max()),
        )


def read_vocab_size(path: str) -> int | None:
    """Returns the vocabulary's size of a nanoGPT `meta.pkl`; None if it says none.

    The pickle is read as a list of instructions, none of which is carried out.

    Raises:
        FormatError: it is no pickle.
    """
    if not os.path.isfile(path):
        return None
    with opened(path) as file:
        content = file.read(_MOST_OF_A_PICKLE)
    is_next = False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if is_next and isinstance(argument, int) and opcode.name.startswith(("BININT", "LONG")):
                return argument
            if "PUT" not in opcode.name and opcode.name != "MEMOIZE":
                is_next = argument == "vocab_size"
    except Exception as error:  # whatever pickletools raises on a damaged file
        raise FormatError(f"{path} is not a pickle: {error}.", path=path) from error
    return None
