"""Runs that were measured elsewhere: a lab's JSON, and the result files of ``vllm bench serve`` and guidellm."""

from engine.imports.mark import Origin, is_imported, kind_of, origin_of
from engine.imports.reading import MAX_BYTES, read_runs

__all__ = ["MAX_BYTES", "Origin", "is_imported", "kind_of", "origin_of", "read_runs"]
