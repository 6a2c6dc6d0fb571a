"""The errors that packcore raises. Each is a standard exception too.

PackcoreError
├── ArgumentError      (ValueError)         an argument breaks a rule
├── ArgumentTypeError  (TypeError)          an argument is of a type that has no meaning there
├── FormatError        (ValueError)         a file is not what its name or its header says
│   └── MismatchError                       files of one set disagree
├── NoDataError        (FileNotFoundError)  there is nothing to open
├── TokenError         (ValueError)         an id does not fit the dtype or the vocabulary
├── OverwriteError     (FileExistsError)    a build would replace files
├── WriteError         (OSError)            the disk refused; earlier chunks are whole
├── ClosedError        (ValueError)         a closed builder or loader was used
├── StateError         (ValueError)         a saved state belongs to something else
├── WorkerError        (RuntimeError)       a process of a build was killed
└── MissingExtraError  (ImportError)        an optional package is not installed

Every error takes one message, so that it survives a pipe between processes; facts are
keyword attributes, None where they do not apply.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ClosedError",
    "FormatError",
    "MismatchError",
    "MissingExtraError",
    "NoDataError",
    "OverwriteError",
    "PackcoreError",
    "StateError",
    "TokenError",
    "WorkerError",
    "WriteError",
]


class PackcoreError(Exception):
    """The base of every error that packcore raises on purpose."""


class ArgumentError(PackcoreError, ValueError):
    """An argument's value breaks a rule. `name` and `value` say which.

    Examples:
        >>> raise ArgumentError("block_size must be at least 1; got 0.", name="block_size", value=0)
        Traceback (most recent call last):
        packcore.errors.ArgumentError: block_size must be at least 1; got 0.
    """

    def __init__(self, message: str, *, name: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class ArgumentTypeError(PackcoreError, TypeError):
    """An argument is of a type that has no meaning there. `name` and `value` say which."""

    def __init__(self, message: str, *, name: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class FormatError(PackcoreError, ValueError):
    """A file is not what its name or its header says.

    `path` names the file, `offset` the byte where it goes wrong, `expected` and `got` what
    should stand there and what does.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.got = got


class MismatchError(FormatError):
    """Two files of one set disagree, in dtype or chunk_size for example."""


class NoDataError(PackcoreError, FileNotFoundError):
    """There is nothing to open: no such file, an empty list, a folder without chunks."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class TokenError(PackcoreError, ValueError):
    """An id does not fit.

    `index` is its place in the array that was added, `value` the id, `low` and `high` the
    smallest and largest id that fit.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        value: object = None,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        super().__init__(message)
        self.index = index
        self.value = value
        self.low = low
        self.high = high


class OverwriteError(PackcoreError, FileExistsError):
    """A build would replace files that are there already. `path` is the first of them."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class WriteError(PackcoreError, OSError):
    """The operating system refused a write. `path` names the file, `errno` the reason."""

    def __init__(self, message: str, *, path: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError keeps errno outside of __dict__, where pickle does not look for it.
        return type(self), self.args, {**self.__dict__, "errno": self.errno}


class ClosedError(PackcoreError, ValueError):
    """A builder or loader was used after it was closed."""


class StateError(PackcoreError, ValueError):
    """A saved state belongs to other data, another seed, order or version.

    `field` is the first field that differs, `expected` this object's value, `got` the state's.
    """

    def __init__(
        self, message: str, *, field: str | None = None, expected: object = None, got: object = None
    ) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.got = got


class WorkerError(PackcoreError, RuntimeError):
    """A process that worked for this one was killed, by the system or for want of memory."""


class MissingExtraError(PackcoreError, ImportError):
    """An optional package is not installed; the message has the pip command."""
