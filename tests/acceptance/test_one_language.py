"""There is one language of values: one op maker, one set of operators, one function library; read from the sources.

An *op maker* is :class:`ipuperf.ir.Builder` and what inherits from it; only it calls ``Graph.create``. What a function
like ``make`` or a front end's lowering adds stands over a builder and is named here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import nodes, tree

REPOSITORY = Path(__file__).resolve().parents[2]

#: Methods of graphs, and of builders, that make ops.
CREATE = {"create", "create_with", "create_at"}

#: Files that call ``Graph.create``, beside the op maker itself, and why.
CALLS_OF_GRAPHS = {
    "ipuperf/ir/graph.py": "Graph.create is Graph.create_at, at the line of the user's program",
}

#: Functions that take an op class and make an op of it without being methods of a builder.
OVER_A_BUILDER = {
    "ipuperf/functions/making.py": {"make", "make_all"},
    "ipuperf/ir/graph.py": {*CREATE, "operate"},
    "ipuperf/frontends/popxl/ops/operands.py": {"create", "emit"},
}

#: Classes with arithmetic that do not stand for tensors: terms of kernels, vectors over tiles, costs.
OTHER_VALUES = {"Operators", "Term", "TileVector", "Cost", "CodeBytes"}

MAKERS = {*CREATE, "op", "ops", "emit", "make", "make_all", "operate"}


class Source:
    """A file of the project as a tree."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(REPOSITORY).as_posix()
        self.nodes = nodes(tree(path))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


def _sources(*folders: str) -> list[Source]:
    return [Source(path) for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return _sources("ipuperf", "models")


def _last(node: ast.expr) -> str:
    """The last name of ``a.b.c``, of what ``a.b.c(...)`` calls, or of the class with parameters ``a.b.c[...]``."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _builders(sources: list[Source]) -> set[str]:
    """Names of the classes that inherit from ``Builder``."""
    bases: dict[str, set[str]] = {}
    for c in (c for source in sources for c in source.classes()):
        bases.setdefault(c.name, set()).update(map(_last, c.bases))
    found = {"Builder"}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found


def _methods_of(source: Source, classes: set[str]) -> set[ast.AST]:
    """All nodes inside the ``classes`` of a file."""
    return {node for c in source.classes() if c.name in classes for node in ast.walk(c)}


def _calls_of_create(source: Source) -> Iterator[ast.Call]:
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CREATE:
            yield node


#: What builders are called where they are used.
BUILDERS = {
    "builder",
    "current_builder",
    "frame",
    "routine",
    "scope",
    "outer",
    "main",
    "stage",
    "current_frame",
    "super",
}


def test_ops_are_made_by_builders(sources: list[Source]) -> None:
    builders = _builders(sources)
    found = [
        f"{source.path}:{call.lineno}: {ast.unparse(call.func)}"
        for source in sources
        for inside in [_methods_of(source, builders)]
        for call in _calls_of_create(source)
        if isinstance(call.func, ast.Attribute)
        and _last(call.func.value).lstrip("_") not in builders | BUILDERS
        and not (call in inside and _last(call.func.value) in ("self", "graph") and _own(source, call))
        and source.path not in CALLS_OF_GRAPHS
    ]
    assert found == [], "make ops with a Builder, or the functions over it"


def _own(source: Source, call: ast.Call) -> bool:
    """``self.create``; ``self.graph.create`` only in the op maker itself."""
    assert isinstance(call.func, ast.Attribute)
    return isinstance(call.func.value, ast.Name) or source.path == "ipuperf/ir/builder.py"


def test_there_is_no_second_op_maker(sources: list[Source]) -> None:
    builders = _builders(sources)
    found = [
        f"{source.path}:{node.lineno}: {node.name}"
        for source in sources
        for inside in [_methods_of(source, builders)]
        for node in source.nodes
        if isinstance(node, ast.FunctionDef)
        and node.name in MAKERS
        and node not in inside
        and any(a.annotation is not None and ast.unparse(a.annotation).startswith("type[") for a in node.args.args)
        and node.name not in OVER_A_BUILDER.get(source.path, ())
    ]
    assert found == [], "inherit from Builder, or use it"


def test_operators_are_written_once(sources: list[Source]) -> None:
    found = [
        f"{source.path}: {c.name}"
        for source in sources
        for c in source.classes()
        if c.name not in OTHER_VALUES
        and any(isinstance(node, ast.FunctionDef) and node.name in ("__add__", "__mul__") for node in c.body)
    ]
    assert found == [], "what stands for a tensor inherits from ipuperf.ir.Operators"


def test_the_builders_are_known(sources: list[Source]) -> None:
    """The rules above see what they shall see."""
    assert {"GradientBuilder", "Scope", "Routine", "Frame", "StageFrame", "_Stage"} <= _builders(sources)
    assert any(c.name == "Tensor" for s in sources for c in s.classes() if "Operators" in {_last(b) for b in c.bases})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(graph):\n    return graph.create(Add, [], [])", "graph.create"),
        ("def f(ir):\n    return ir.main_graph.create(Add, [], [])", "ir.main_graph.create"),
        ("class Low:\n    def op(self, op_class: type[Op], inputs): ...", "op"),
        ("class Value:\n    def __add__(self, other): ...", "Value"),
    ],
)
def test_the_rules_see_a_second_way(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.py").write_text(text)
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    bad = [Source(tmp_path / "bad.py")]
    failures = []
    for rule in (test_ops_are_made_by_builders, test_there_is_no_second_op_maker, test_operators_are_written_once):
        try:
            rule(bad)
        except AssertionError as error:
            failures.append(str(error))
    assert len(failures) == 1
    assert message in failures[0]
