"""Modules that stand for modules of ops in C++, by the digests of their sources (:mod:`..sources`)."""

from __future__ import annotations

from pathlib import Path

from ..sources import digest

#: The file that stands for a source. Names do not decide: ops of the same name compute different things.
FILES = {
    # LLaMA's and Dolly's: graphcore/examples, nlp/llama/popxl/modelling/rotary_pos_embed and nlp/dolly/...
    "f047418b157507d3ef8d56a0daf89075daaa518effcccf5ff91fb771a81f02da": "rotary_halves.py",
}


def binding_of(source: str | Path) -> Path | None:
    """Return the Python file that stands for a source in C++; None for one that is not known."""
    name = FILES.get(digest(source)) if Path(source).is_file() else None
    return None if name is None else Path(__file__).with_name(name)


__all__ = ["FILES", "binding_of"]
