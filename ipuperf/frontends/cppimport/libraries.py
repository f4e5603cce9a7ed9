"""Libraries of C++ ops: ops of known sources stand for what a program loads, or its sources are recorded.

Whichever way a program loads a library (``examples_utils.load_lib``, ``ctypes``), its sources decide. Sources that are
known by their digest register the ops that are built in for them. Patterns of PopART alone are without effect. Other
ops record themselves (:mod:`.recorder`), unless they were described in Python before. Where there is no compiler, each
has to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ipuperf.ops.base import Op
from ipuperf.ops.selection.suppression import Nms
from ipuperf.ops.transfers.remap import CopyTensor, Remap
from ipuperf.ops.updates.moving_average import ExpMovAvg
from ipuperf.runtime.custom_ops import Identifier, register, registered
from ipuperf.runtime.effects import tell

from . import refused
from .recorder import described_by, is_vendors, library_of, records
from .sources import digest, without_comments

_REMAP: Mapping[Identifier, type[Op]] = {("RemapCE", "ai.graphcore", 1): Remap}

#: By the digest of its sources (:mod:`.sources`), the ops of a library. Names do not decide: ops of the same name
#: compute different things. All of graphcore/examples, v3.3.
KNOWN: Mapping[str, Mapping[Identifier, type[Op]]] = {
    # vision/mae, vision/swin, speech/conformer, nlp/gpt2
    "73c8bc43d91c93b448f38046f8d094209cf8adb84da32d7f23a57ac63133e1cc": _REMAP,
    "ba7e663f326bc16b0c8572aaaf2ffc0a64952d462210168db39be140aae0c21f": _REMAP,
    "ed4817f9867159577be4a1997fcd24bfd2861a227f0c111c016fc7c90ef7b056": _REMAP,
    "99d900ad767146ece96882069f4ecf341dae6513044f32baea3e5246230a7c2f": _REMAP,
    # vision/dino
    "d2f2e8bdb88c4eed103ceab88ee8aca51e07d2d812f6d8957e5d485f8f3ee8c1": {("ExpMovAvg", "com.acme", 1): ExpMovAvg},
    # vision/yolo_v4
    "198d0fa3528bbd0c3ca5fbaafc238e14e0ffdfe12e3f2347c9d5bb005c83844e": {("CopyTensor", "ai.graphcore", 1): CopyTensor},
    "e3b9ed08dd121e34d36c84ad635d62ef4daa7de611bce0b30771643e9dc0087f": {("Nms", "ai.graphcore", 1): Nms},
}

_OP = re.compile(r"\bOpCreator\s*<|\bOpxCreator\s*<|\bPYBIND11_MODULE\b")
_PATTERN = re.compile(r"\bPatternCreator\s*<")
#: The identifiers of a library, ``name = {"domain", "op", version}``, and those that it registers as ops.
_IDENTIFIER = re.compile(r'\b(\w+)\s*=?\s*\{\s*"([\w.]+)"\s*,\s*"(\w+)"\s*,\s*(\d+)\s*\}')
_DEFINITION = re.compile(r"\bOpDefinitions\s*\(\s*\{\s*\{\s*(?:\w+\s*::\s*)*(\w+)")
#: A library lies beside its sources, or above their folders, or in a folder of this name there.
_BUILT = "build"
_BELOW = ("*.cpp", "*/*.cpp", "*/*/*.cpp")


def load(source: Path, others: Sequence[Path] = ()) -> None:
    """Let the ops of a C++ source be found by ``poptorch.custom_op``.

    Args:
        others: files of the same library.

    Raises:
        CppOpError: it may compute something that is neither known nor described in Python.
    """
    text = without_comments(source.read_text(encoding="utf-8", errors="replace"))
    if not _OP.search(text):
        if not _PATTERN.search(text):
            raise refused(source.stem, str(source))
        tell(
            f"loading {source.name!r} is without effect: it is a pattern of PopART, which rewrites PopART's graph and "
            "computes the same"
        )
        return
    known = KNOWN.get(digest(source))
    if known is not None:
        for identifier, op_class in known.items():
            register(identifier, op_class)
        return
    identifiers = identifiers_of(source)
    missing = [name for name, domain, version in identifiers if registered((name, domain, version)) is None]
    if not missing and identifiers:
        return
    if not records(source):
        raise refused(", ".join(missing) or source.stem, str(source))
    recorder = library_of(source, others)
    for name, domain, version in recorder.contents["ops"]:
        # A description in Python counts more.
        if registered((name, domain, version)) is None:
            register((name, domain, version), described_by(recorder, name, domain, version))


def identifiers_of(source: Path) -> list[Identifier]:
    """Return the ops that a source registers, as far as it and the files beside it say their identifiers."""
    files = [path for path in sorted(source.parent.iterdir()) if path.suffix in (".cpp", ".hpp", ".h")]
    text = "\n".join(without_comments(path.read_text(encoding="utf-8", errors="replace")) for path in files)
    by_name = {name: (op, domain, int(version)) for name, domain, op, version in _IDENTIFIER.findall(text)}
    return [by_name[name] for name in dict.fromkeys(_DEFINITION.findall(text)) if name in by_name]


def answer(library: Path) -> bool:
    """Load the sources of a library that is not there, or that no linker takes; False where it has none near it.

    Raises:
        CppOpError: as :func:`load`.
    """
    sources = _sources_near(library)
    for source in sources:
        load(source, [other for other in sources if other.parent == source.parent])
    return bool(sources)


def _sources_near(library: Path) -> list[Path]:
    """The C++ sources of PopART's ops and patterns that belong to a library, by where they lie."""
    folder = library.absolute().parent
    return [path for path in _cpp_below(folder.parent if folder.name == _BUILT else folder) if _registers(path)]


def _cpp_below(folder: Path) -> Iterable[Path]:
    if folder.is_dir():
        for pattern in _BELOW:
            yield from sorted(folder.glob(pattern))


def _registers(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    return is_vendors(text) and bool(_OP.search(text) or _PATTERN.search(text))


__all__ = ["KNOWN", "answer", "identifiers_of", "load"]
