"""Ops in C++ that record themselves: their source, compiled with headers that note what it asks for.

The headers beside this module have the names of Poplar, PopLibs and PopART that public ops use. A program compiled with
them computes nothing. It gives the shapes of its results, the gradient ops, and the calls that it would have made of
PopLibs (:mod:`ipuperf.ops.recorded` says what these compute and cost). The system's ``g++`` compiles, or the compiler
that ``CXX`` names. This runs the user's own C++ in this process, as the SDK does.

Sources: ``popart: willow/include/popart``, ``poplibs: include`` for names and argument orders.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipuperf.ir import Graph, IrError, Tensor, TensorSpec
from ipuperf.ops.recorded import RecordedOp, Recording, RecordingSource, recorded_class
from ipuperf.runtime.cache import cache_folder, use
from ipuperf.runtime.custom_ops import CppOpError

HERE = Path(__file__).parent
_VENDORS = "popart|poplar|poplin|popnn|popops|poprand|popsparse|poputil|gcl|snap|onnx|poprithms|pybind11"
#: An include of the vendor's, or of what its ops use besides.
_VENDOR = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*[<"]((?:{_VENDORS})/[^">]+)[">]', re.MULTILINE)
_LOCAL = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_LISTED = re.compile(r"""cfg\s*\[\s*['"]sources['"]\s*\]\s*=\s*\[([^\]]*)\]""")
#: A codelet: a class that runs on a tile, which is no part of the host's program.
_CODELET = re.compile(r'#\s*include\s*[<"]poplar/Vertex\.hpp[">]')
_UNDEFINED = "undefined reference"
_ERROR = re.compile(r"^.*(?:error|undefined reference).*$", re.MULTILINE)
#: Asserts of a program are errors of its ops, and do not end the process.
_ASSERT = (
    '#undef assert\n#include <stdexcept>\n#define assert(x) ((x) ? (void)0 : throw std::logic_error("assert " #x))\n'
)


class CompileError(CppOpError):
    """A source that the compiler does not take."""


def compiler() -> str | None:
    """The compiler, or None where there is none."""
    return shutil.which(os.environ.get("CXX") or "g++")


def is_vendors(text: str) -> bool:
    """Whether a C++ source includes the vendor's headers."""
    return any(not header.startswith(("pybind11/", "onnx/")) for header in _VENDOR.findall(text))


def records(source: Path) -> bool:
    """Whether the ops of a source can record themselves here."""
    return compiler() is not None and not _CODELET.search(_text(source))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def parts(source: Path) -> list[Path]:
    """The files that make one library with ``source``: those that its comment for cppimport lists, itself first."""
    listed = _LISTED.search(_text(source))
    names = re.findall(r"""['"]([^'"]+)['"]""", listed[1]) if listed else []
    return list(dict.fromkeys([source, *(source.parent / name for name in names)]))


def beside(source: Path) -> list[Path]:
    """``source`` and the other files of its folder that are no codelets."""
    others = [path for path in sorted(source.parent.glob("*.c*")) if path.suffix in (".cpp", ".cc", ".cxx")]
    return [source, *(path for path in others if path != source and not _CODELET.search(_text(path)))]


def with_headers(sources: Iterable[Path]) -> Iterator[Path]:
    """The files and the headers that they include by relative paths."""
    seen: set[Path] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path not in seen and path.is_file():
            seen.add(path)
            waiting += [(path.parent / name).resolve() for name in _LOCAL.findall(_text(path))]
            yield path


@dataclass(frozen=True)
class RecordedCode:
    """A compiled library; the same on every machine for the same sources.

    Attributes:
        name: of the first of its files.
        digest: of its sources.
    """

    name: str
    digest: str

    @property
    def path(self) -> str:
        """Where the shared library lies."""
        return _PLACES[self][0]

    @property
    def source(self) -> str:
        """Where the first of its files lies, for errors."""
        return _PLACES[self][1]

    @property
    def contents(self) -> dict[str, Any]:
        """The ops that it registers, ``[type, domain, version]``, and its bindings, ``[class.method, arguments]``."""
        contents: dict[str, Any] = json.loads(_functions(self.path).ipuperf_contents())
        return contents

    def function(self, name: str) -> int:
        """The address of a function; 0 where there is none."""
        try:
            function = getattr(_functions(self.path), name)
        except AttributeError:
            return 0
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def answer(self, request: Any) -> dict[str, Any]:
        """What the library says to a request."""
        text = _written(request)
        answer: dict[str, Any] = json.loads(_functions(self.path).ipuperf_record(text, len(text)))
        return answer


_PLACES: dict[RecordedCode, tuple[str, str]] = {}


@functools.cache
def _functions(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.ipuperf_contents.restype = library.ipuperf_record.restype = ctypes.c_char_p
    library.ipuperf_record.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def _written(value: Any) -> bytes:
    """A value as ``entry.cpp`` reads it."""
    if isinstance(value, str):
        text = value.encode()
        return b"s %d %s" % (len(text), text)
    if isinstance(value, (bool, int)):
        return b"i %d " % value
    if isinstance(value, float):
        return f"f {value!r} ".encode()
    return b"l %d " % len(value) + b"".join(_written(each) for each in value)


def compiled(sources: Sequence[Path]) -> RecordedCode:
    """The library of these files, from the cache where it was compiled before.

    Raises:
        CompileError: the compiler does not take them; its first error.
    """
    command = [
        compiler() or "g++",
        "-std=c++17",
        "-w",
        "-O0",
        "-fPIC",
        "-shared",
        "-DONNX_NAMESPACE=onnx",
        "-include",
        "stddef.h",
    ]
    command += ["-fmax-errors=1", "-fvisibility-inlines-hidden"]
    if sys.platform == "linux":
        # Each library has registers of its own.
        command += ["-fno-gnu-unique", "-Wl,--no-undefined"]
    own = sorted(path for path in HERE.rglob("*") if path.suffix in (".hpp", ".cpp"))
    files = sorted(with_headers([path.resolve() for path in sources]))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    code = RecordedCode(sources[0].name, digest.hexdigest())
    digest.update(repr((command, files)).encode() + b"".join(path.read_bytes() for path in own))
    folder = cache_folder() or _folder_of_process()
    library = folder / f"{digest.hexdigest()}.so"
    if library.is_file():
        use(library)
    else:
        _compile(command, [path.resolve() for path in sources], files, library)
    _PLACES[code] = (str(library), str(sources[0]))
    return code


@functools.cache
def _folder_of_process() -> Path:
    # A library stays loaded until the process ends, so nothing is removed before.
    return Path(tempfile.mkdtemp(prefix="ipuperf-"))


def _compile(command: list[str], sources: Sequence[Path], files: Sequence[Path], library: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in files:
            for header in _VENDOR.findall(_text(path)):
                target = folder / "include" / header
                target.parent.mkdir(parents=True, exist_ok=True)
                stem = "pybind11" if header.startswith("pybind11/") else "popart"
                target.write_text(f'#include "{stem}.hpp"\n')
        for header in ("assert.h", "cassert"):
            (folder / "include").mkdir(exist_ok=True)
            (folder / "include" / header).write_text(_ASSERT)
        main = folder / "main.cpp"
        main.write_text(f'#include "{HERE / "entry.cpp"}"\n#include "{sources[0]}"\n')
        places = [folder / "include", HERE / "include", *dict.fromkeys(path.parent for path in sources)]
        built = folder / library.name
        done = subprocess.run(
            [*command, *(f"-I{place}" for place in places), str(main), *map(str, sources[1:]), "-o", str(built)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            error = _ERROR.search(done.stderr)
            raise CompileError(
                f"{sources[0]} does not compile with ipuperf's headers of Poplar and PopART: "
                f"{error[0].strip() if error else done.stderr.strip()[-300:]}; correct it, or describe its op in "
                "Python (docs/how-to/adding-a-custom-op.md)"
            )
        library.parent.mkdir(parents=True, exist_ok=True)
        # The file appears whole, as several processes may compile it.
        whole = library.with_name(f".{library.name}.{os.getpid()}")
        shutil.copyfile(built, whole)
        with suppress(OSError):
            os.replace(whole, library)


# -- ops ---------------------------------------------------------------------------------------------------------------

_Specs = tuple[tuple[tuple[int, ...], str], ...]


def _specs(tensors: Iterable[Any]) -> _Specs:
    return tuple((tuple(tensor.shape), tensor.dtype.name) for tensor in tensors)


@dataclass(frozen=True)
class LibraryOp(RecordingSource):
    """An op of a library: the request for it, but for its operands.

    Attributes:
        recorder: the library.
        kind: ``op``, ``binding``, ``build`` or ``build_grad``.
        name: what the kind calls it by.
        values: its own values.
        groups: where operands come in groups, how many each has.
        forward: for a gradient op the operands of its op.
        levels: the number of the gradient op, and the operands of it if it is differentiated in turn.
    """

    recorder: RecordedCode
    kind: str
    name: tuple[Any, ...]
    values: Any
    groups: tuple[int, ...] = ()
    forward: _Specs = ()
    levels: tuple[tuple[int, _Specs], ...] = ()

    def record(self, op: RecordedOp) -> Recording:
        """The recording for the operands of ``op``.

        Raises:
            IrError: the library refuses them, or runs vertices that nobody knows.
        """
        recording = _recorded(self, _specs(op.inputs))
        if isinstance(recording, str):
            raise IrError(f"{op.where()}: {self.recorder.source}: {recording}")
        return recording

    def gradient(self, number: int, forward: RecordedOp) -> LibraryOp:
        """The source of a gradient op."""
        specs = _specs(forward.inputs)
        levels = (*self.levels[:-1], (self.levels[-1][0], specs)) if self.levels else ()
        return LibraryOp(
            self.recorder,
            self.kind,
            self.name,
            self.values,
            forward=self.forward or specs,
            levels=(*levels, (number, ())),
        )


@functools.lru_cache(4096)
def _recorded(source: LibraryOp, specs: _Specs) -> Recording | str:
    """The recording, or what is wrong."""
    levels: Any = ()
    operands: Any = specs
    if source.levels:
        levels, operands = (*source.levels[:-1], (source.levels[-1][0], specs)), source.forward
    if source.groups:
        parts_of, first = [], 0
        for count in source.groups:
            parts_of.append(specs[first : first + count])
            first += count
        operands = tuple(parts_of)
    # A function is called by its address, which another process finds elsewhere.
    name: Any = source.name
    if source.kind in ("build", "build_grad"):
        name = (source.recorder.function(name[0]), *name)
    answer = source.recorder.answer([source.kind, name, source.values, operands, levels])
    if "error" in answer:
        return str(answer["error"])
    try:
        recording = Recording.of(answer)
    except (IrError, KeyError) as error:
        return f"{error}"
    for step in recording.steps:
        if step.call == "vertex":
            return (
                f"its codelet {step.args!r} is C++ for the tiles, which has neither values nor cycles here; describe "
                "the op in Python (docs/how-to/adding-a-custom-op.md, in TensorFlow docs/how-to/tensorflow.md)"
            )
        if step.call == "program":
            return f"poplar::program::{step.args} depends on data and is not recorded; describe the op in Python"
    return recording


def library_of(source: Path, others: Sequence[Path] = ()) -> RecordedCode:
    """The library of a source: with the files that it lists and ``others``, if these go together, or with all of its
    folder where it needs them.

    Raises:
        CompileError: the compiler takes neither.
    """
    together = list(dict.fromkeys([*parts(source), *others]))
    if len(together) > len(parts(source)):
        with suppress(CompileError):
            return compiled(together)
    try:
        return compiled(parts(source))
    except CompileError as error:
        if len(beside(source)) == len(parts(source)) or _UNDEFINED not in str(error):
            raise
        return compiled(beside(source))


def described_by(recorder: RecordedCode, name: str, domain: str, version: int) -> type[RecordedOp]:
    """The class of an op of PopART that a library registers; it takes any attributes."""
    return op_class(name, LibraryOp(recorder, "op", (domain, name, version), ()))


@functools.cache
def op_class(name: str, source: LibraryOp) -> type[RecordedOp]:
    """A class of recorded ops whose attributes are values of the library's op."""

    def made(
        self: RecordedOp,
        graph: Graph,
        op_id: int,
        inputs: Sequence[Tensor],
        attributes: Mapping[str, Any],
        location: str = "",
        *,
        settled: bool = False,
    ) -> None:
        if not settled:
            values = tuple((key, plain(value)) for key, value in attributes.items())
            attributes = {"source": replace(source, values=values)}
        RecordedOp.__init__(self, graph, op_id, inputs, attributes, location, settled=settled)

    return recorded_class(name, made)


def specs_of(recording_source: LibraryOp, specs: _Specs) -> list[TensorSpec]:
    """The results for operands of these shapes and types; IrError as :meth:`LibraryOp.record`."""
    recording = _recorded(recording_source, specs)
    if isinstance(recording, str):
        raise IrError(f"{recording_source.recorder.source}: {recording}")
    return [TensorSpec(recording.nodes[n].shape, recording.nodes[n].dtype) for n in recording.results]


def plain(value: Any) -> Any:
    """A value of a program as the library takes it.

    Raises:
        TypeError: it is no number, text or list of these.
    """
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(plain(each) for each in value)
    if hasattr(value, "item"):
        return plain(value.item())
    raise TypeError(f"{value!r} is no number, text or list of these, so an op in C++ cannot be recorded with it")


__all__ = ["CompileError", "LibraryOp", "RecordedCode", "beside", "compiled", "compiler", "described_by", "is_vendors"]
__all__ += ["library_of", "op_class", "parts", "plain", "records", "specs_of", "with_headers"]
