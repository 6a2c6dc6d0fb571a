"""Token files of every format: which there are, and how they become tokens and documents.

`packcore.open` finds the format by content. Each has a module of its own here, which makes
`TokenFile`s; what is built on them is the same for all. `register` adds a format.
"""

from packcore.formats.options import Options
from packcore.formats.reading import read_head
from packcore.formats.spans import Documents, PlainTokens, Separators, Span
from packcore.formats.table import Format, find_files, list_formats, register
from packcore.rawfiles import broken

__all__ = [
    "Documents",
    "Format",
    "Options",
    "PlainTokens",
    "Separators",
    "Span",
    "broken",
    "find_files",
    "list_formats",
    "read_head",
    "register",
]
