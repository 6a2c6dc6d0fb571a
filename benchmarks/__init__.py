"""Throughput of packcore beside the technique it replaces, in the same run on the same files."""
