"""Looks after packed corpora that are there: what is in one, is it whole, join and split them.

Making one of text is for `packcore.pipeline`.
"""

from packcore.corpora.manifests import find_manifests
from packcore.corpora.merging import merge
from packcore.corpora.splitting import split
from packcore.corpora.summary import Lengths, Summary, summarize
from packcore.corpora.verifying import Problem, Verified, verify

__all__ = [
    "Lengths",
    "Problem",
    "Summary",
    "Verified",
    "find_manifests",
    "merge",
    "split",
    "summarize",
    "verify",
]
