"""Puts the commands together, and turns errors into one line and an exit status.

On click: it is small, has been stable for years, checks types, completes in bash, zsh and fish, and
has a runner for tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import packcore
from packcore.cli.build import build
from packcore.cli.check import inspect, verify
from packcore.cli.convert import convert
from packcore.cli.measure import bench, plan
from packcore.cli.rearrange import merge, split
from packcore.errors import PackcoreError

__all__ = ["app", "run"]

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130

_OPTIONS = {
    "overwrite=True": "--overwrite",
    "dtype must be named": "--source-dtype must be named",
    "packcore.open(..., dtype=...)": "--source-dtype",
    "packcore.open(..., sep_token=...)": "--sep-token",
    "sep_token must be named": "--sep-token must be named",
    "another sep_token": "another --sep-token",
    "add_sep='after'": "--add-sep after",
    "add_sep='before'": "--add-sep before",
    "drop_documents=True": "--drop-documents",
    "leave out drop_documents": "leave out --drop-documents",
    'on_error="skip"': "--on-error skip",
    'tokenizer="bytes"': "--tokenizer bytes",
    "a smaller block_size": "a smaller --block-size",
    "a smaller chunk_size": "a smaller --chunk-size",
    "an id or None": "an id or 'none'",
    "None puts nothing": "'none' puts nothing",
}
"""Python's words in errors -> the command's."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(packcore.__version__, prog_name="packcore")
def app() -> None:
    """Packs text into corpora of token ids for language-model training, and looks after them.

    \b
    packcore build web/*.jsonl.gz -o corpus -t tokenizer.json
    packcore inspect corpus
    packcore plan corpus --block-size 2049 --batch 512 --ranks 8 --epochs 1

    \b
    Every command takes --help, with examples, and --json.
    Completion, for bash (also zsh, fish):
      eval "$(_PACKCORE_COMPLETE=bash_source packcore)"
    """


for _command in (build, inspect, verify, plan, merge, split, convert, bench):
    app.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: the words behind "packcore"; None for those of this process.

    Returns:
        The exit status: 0; 1 for an error, told in one line on stderr; 2 for words that make no
        command; 130 after Ctrl-C.
    """
    try:
        status = app.main(arguments, prog_name="packcore", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return _USAGE
    except click.ClickException as error:
        return _tell(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return _tell("stopped", _INTERRUPTED)
    except BrokenPipeError:  # such as `packcore inspect corpus | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except (PackcoreError, OSError) as error:
        return _tell(_describe(error))
    return status if isinstance(status, int) else 0


def _describe(error: PackcoreError | OSError) -> str:
    """Returns what is wrong, and what to do in the command's words."""
    if isinstance(error, PackcoreError):
        message = str(error)
        for word, option in _OPTIONS.items():
            message = message.replace(word, option)
        return message
    why = error.strerror or str(error)
    if error.filename is None:
        return why
    way_out = " Change its permissions, or name another." * isinstance(error, PermissionError)
    return f"{os.fsdecode(error.filename)}: {why}.{way_out}"


def _tell(message: str, status: int = _FAILED) -> int:
    click.echo(f"packcore: {' '.join(message.split())}", err=True)
    return status
