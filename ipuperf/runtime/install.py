"""Making ``import popxl`` find ``ipuperf.popxl``.

:func:`install` puts a finder at the head of ``sys.meta_path``. When a program imports ``popxl``, ``popxl.ops`` or any
deeper module, the finder imports ``ipuperf.popxl``, ``ipuperf.popxl.ops`` ... and answers with that very module, so
both names stand for one object: ``sys.modules["popxl.ops"] is ipuperf.popxl.ops``. Nothing is imported before the
program imports it. TensorFlow is the real package: the finder adds only the IPU port's modules (:data:`_BESIDE`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from ipuperf.runtime import beside_tensorflow, keras_names, libraries, moved_names
from ipuperf.runtime.aliases import alias_spec
from ipuperf.runtime.children import announce

if TYPE_CHECKING:
    from importlib.abc import MetaPathFinder
    from importlib.metadata import Distribution, DistributionFinder
else:
    MetaPathFinder = object  # importlib.abc imports much that nobody here needs

FRONT_ENDS = (
    *("popxl", "popxl_addons", "poptorch", "poptorch_geometric"),
    *("popart", "popdist", "cppimport", "pva", "tensorflow"),
)
_PACKAGE = "ipuperf.frontends"
#: Modules beside PopART that a program gets, with their submodules, if it has none of its own.
_STAND_INS = {
    "test_util": "ipuperf.frontends.popart.test_util",
    "libpvti": "ipuperf.frontends.popart.trace_points",
    "examples_utils": "ipuperf.frontends.cppimport.examples_utils",
    "horovod": "ipuperf.frontends.popdist.horovod_standin",
    "poptorch_experimental_addons": "ipuperf.frontends.poptorch.experimental_addons",
}
#: Front ends that add modules to an installed package: each module's stand-in, which covers its submodules too.
_BESIDE = {"tensorflow": beside_tensorflow.MODULES}
#: Names whose stand-in passes anything that is not for the IPU on to the real package, so both may be installed.
_IN_FRONT = frozenset({"cppimport"})
_IN_PART = {
    "popart": "the names of popart that PopXL and PopTorch programs use are here, its native modules are not",
    "popdist": "popdist and its modules popart, poptorch and tensorflow are here",
    "horovod": "Horovod is not installed; for one process horovod.torch and horovod.tensorflow are here",
    "poptorch_experimental_addons": "it is not installed; autograd_proxy, distance_matrix and collectives are here",
    "examples_utils": "it is not installed; load_lib, parse_yaml_config and its parsing are here",
}


class InstallError(RuntimeError):
    """The upstream package of a front end is installed or already imported, and ``force`` was not given."""


class AliasFinder(MetaPathFinder):
    """Finds the modules whose top-level name is in ``targets`` (upstream name -> module that stands for it)."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self.displaced: dict[str, ModuleType] = {}  # modules that force=True took out of sys.modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec that leads to the target, or ``None`` if the name is not ours or there is no such module."""
        top, dot, _ = fullname.partition(".")
        # Both variables must be set before TensorFlow itself is imported, which happens next.
        if fullname in _BESIDE and fullname in self.targets:
            os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras on the IPU is Keras 2
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides messages on this machine's processors and GPUs
        # Submodules follow their package: ours only if the package that was imported is ours.
        if dot and top in _STAND_INS and sys.modules.get(top) is sys.modules.get(_STAND_INS[top], self):
            return alias_spec(fullname, _STAND_INS)
        if "tensorflow" in self.targets and top in keras_names.TOP:
            if keras_names.is_private(fullname):
                return alias_spec(fullname, {keras_names.PRIVATE: "keras"})
            if (source := keras_names.below_source(fullname)) is not None:
                return alias_spec(fullname, {fullname: source})
            if (spec := keras_names.optimizers_spec(fullname, path)) is not None:
                return spec
            if fullname == "tf_keras":
                return keras_names.spec_ending_with(moved_names.answer, fullname, path)
            if fullname == "tensorflow.keras":
                return keras_names.spec_ending_with(keras_names.with_ipu, fullname, path)
        return alias_spec(fullname, _modules_of(self.targets))

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """Give the package that the context names, with the version of ours (this satisfies ``poptorch>=3.3``)."""
        name = (getattr(context, "name", None) or "").replace("-", "_")
        ours = name in self.targets and name not in _BESIDE
        version = getattr(importlib.import_module(self.targets[name]), "__version__", None) if ours else ""
        if version:
            from .distributions import StandingIn  # importlib.metadata takes long to import, and few programs need it

            yield StandingIn(name, version)


def _modules_of(targets: Mapping[str, str]) -> dict[str, str]:
    """The modules that stand for others while front ends ``targets`` are installed, the deeper ones first."""
    return _deeper_first(tuple(targets.items()))


@functools.cache
def _deeper_first(targets: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Order the modules; cached, as every import of a program needs the order."""
    modules: dict[str, str] = {}
    for name, target in targets:
        modules.update(_BESIDE.get(name, {name: target}))
    # Reverse alphabetical order puts ``a.b`` before ``a``, so the first match is the deepest.
    return dict(sorted(modules.items(), reverse=True))


class _LastFinder(MetaPathFinder):
    """Stands last in ``sys.meta_path`` and finds stand-ins for modules that no other finder found.

    For a missing part of PopART or of a stand-in, its error says which parts are here.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if "popart" in installed_names() and (spec := alias_spec(fullname, _STAND_INS)) is not None:
            return spec
        if "tensorflow" in installed_names() and (source := keras_names.source_module(fullname)) is not None:
            return alias_spec(fullname, {fullname: source})
        if "tensorflow" in installed_names() and fullname in moved_names.MODULES:
            return alias_spec(fullname, moved_names.MODULES)
        package, dot, _ = fullname.partition(".")
        if dot and package in _IN_PART:
            raise ModuleNotFoundError(f"No module named {fullname!r}: {_IN_PART[package]}", name=fullname)
        return None


def install(names: Iterable[str] | Mapping[str, str] | None = None, *, force: bool = False) -> None:
    """Let the upstream ``names`` resolve to ipuperf's front ends until :func:`uninstall`, in this process and in Python
    processes that it starts (:mod:`~ipuperf.runtime.children`).

    ``names`` are top-level names; ``popxl`` resolves to ``ipuperf.popxl``. A mapping gives the target of each name
    itself. The default is :data:`FRONT_ENDS`; ``tensorflow`` adds ``tensorflow.python.ipu`` to the installed
    TensorFlow, which then has Keras 2 where it is not imported yet. Installing again is harmless and may add names.
    Raises :class:`InstallError` if a package of such a name is installed or imported; with ``force=True`` it is hidden
    instead (and shown again by :func:`uninstall`). A real ``cppimport`` is no error: ours stands in front of it and
    refuses the C++ of PopART's ops, the rest it hands on (:func:`as_installed`).
    """
    targets = _targets(FRONT_ENDS if names is None else names)
    finder = _installed_finder()
    known = finder.targets if finder else {}
    # Names that are installed already keep their modules.
    new = {name: target for name, target in targets.items() if known.get(name) != target}
    for name in new:
        # Known names are ours already. Stand-ins in front of and beside a package need the real one.
        real = None if name in known or name in _IN_FRONT or name in _BESIDE else _real_package(name)
        if real is not None and not force:
            raise InstallError(
                f"cannot let {name!r} stand for {new[name]!r}: a package of that name is already there ({real}); "
                "use an environment without it, or pass force=True to hide it from this process"
            )
    if not new:
        return
    if finder is None:
        finder = AliasFinder()
        # First in the list: the front ends must be found before any package of the same name.
        sys.meta_path.insert(0, finder)
        # Last in the list: a program's own module takes precedence over a stand-in.
        sys.meta_path.append(_LastFinder())
    # Modules that were imported under these names before would hide ours.
    taken_out = _take_out(_modules_of(new))
    finder.displaced.update({entry: module for entry, module in taken_out.items() if _top(entry) not in known})
    finder.targets.update(new)
    libraries.watch("cppimport" in finder.targets)
    if "tensorflow" in new:
        keras_names.name_earlier()
        moved_names.answer()
    announce(finder.targets)


def uninstall(names: Iterable[str] | Mapping[str, str] | None = None) -> None:
    """Undo :func:`install` for ``names``, or for all that is installed; names that are not installed are ignored.

    Modules that a program already holds keep working; ``sys.modules`` forgets their upstream names.
    """
    finder = _installed_finder()
    if finder is None:
        return
    given_up = {
        name: finder.targets[name] for name in (finder.targets if names is None else names) if name in finder.targets
    }
    _take_out(_modules_of(given_up))
    for name in given_up:
        del finder.targets[name]
    names_back = {_top(entry) for entry in _modules_of(given_up)}
    for displaced in [known for known in finder.displaced if _top(known) in names_back]:
        sys.modules[displaced] = finder.displaced.pop(displaced)
    if "tensorflow" in given_up:
        keras_names.name_later()
        moved_names.forget()
        keras_names.leave_private()
    if "popart" not in finder.targets:
        for name, ours in _STAND_INS.items():
            if name in sys.modules and sys.modules[name] is sys.modules.get(ours):
                _take_out({name})
    libraries.watch("cppimport" in finder.targets)
    announce(finder.targets)
    if not finder.targets:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder | _LastFinder)]


@contextlib.contextmanager
def as_installed(name: str) -> Iterator[ModuleType | None]:
    """Give the real package ``name`` under its own name within the ``with`` block, or ``None`` if it is not installed.

    Afterwards the stand-in has the name again. Modules of the real package are kept.
    """
    finder = _installed_finder()
    # Without its target, the finder no longer answers for this name.
    target = finder.targets.pop(name, None) if finder else None
    ours = _take_out({name}) if target is not None else {}
    if finder is not None:
        sys.modules.update({known: finder.displaced[known] for known in finder.displaced if _top(known) == name})
    try:
        yield importlib.import_module(name) if importlib.util.find_spec(name) is not None else None
    finally:
        if finder is not None and target is not None:
            finder.displaced.update(_take_out({name}))
            finder.targets[name] = target
            sys.modules.update(ours)


def installed_names() -> dict[str, str]:
    """The upstream names that are installed now, and what each stands for."""
    finder = _installed_finder()
    return dict(finder.targets) if finder else {}


def _targets(names: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    targets = dict(names) if isinstance(names, Mapping) else {name: f"{_PACKAGE}.{name}" for name in names}
    for name in targets:
        if not name.isidentifier():
            raise ValueError(f"install({name!r}): expected top-level module names such as {FRONT_ENDS}")
    return targets


def _installed_finder() -> AliasFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, AliasFinder)), None)


def _real_package(name: str) -> str | None:
    """Where the package ``name`` is, if there is one other than ours."""
    module = sys.modules.get(name)
    if module is not None:
        return str(getattr(module, "__file__", None) or "imported by this program")
    spec = importlib.util.find_spec(name)
    return None if spec is None else str(spec.origin or list(spec.submodule_search_locations or ()))


def _top(name: str) -> str:
    """The package that a module is in."""
    return name.partition(".")[0]


def _take_out(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove these modules and those below them from ``sys.modules``; returns what was there."""
    module_names = set(names)
    below = tuple([f"{name}." for name in module_names])
    entries = [known for known in sys.modules if known in module_names or known.startswith(below)]
    return {entry: sys.modules.pop(entry) for entry in entries}
