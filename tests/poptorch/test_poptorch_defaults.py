"""What modules say once, when they are imported: defaults of aten ops against PyTorch's schemas, enumerations.

Each module is executed anew, so that what it says is looked at here, not what another test imported.
"""

import enum
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import Golden

torch = pytest.importorskip("torch")


from ipuperf.poptorch.aten import table as aten  # noqa: E402

MODULES = sorted(
    {path.stem for path in Path(aten.__file__).parent.glob("*.py")} - {"__init__", "marks", "rules", "table"}
)


def fresh(name: str) -> Any:
    """A module, executed anew."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(default: Any) -> Any:
    """A default as handlers have it: one number for all axes."""
    if isinstance(default, list):
        return default[0] if default else ()
    return default


def schema_defaults(name: str, parameter: inspect.Parameter, position: int) -> list[Any]:
    """What the overloads of an aten op say of an argument."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    found = []
    for each in () if packet is None else [overload] if overload else packet.overloads():
        arguments = getattr(packet, each)._schema.arguments
        named = [a for a in arguments if a.name == parameter.name]
        if not named and parameter.kind is not parameter.KEYWORD_ONLY:
            named = arguments[position : position + 1]
        found += [plain(a.default_value) for a in named if a.has_default_value()]
    return found


def defaults(handlers: dict[str, Any]) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Op, argument, the handler's default and those of PyTorch."""
    for name, handler in handlers.items():
        if "::" in name:
            continue
        for position, parameter in enumerate(list(inspect.signature(handler).parameters.values())[1:]):
            if parameter.default is not parameter.empty:
                yield name, parameter.name, parameter.default, schema_defaults(name, parameter, position)


@pytest.mark.parametrize("stem", MODULES)
def test_defaults_are_those_of_pytorchs_schemas(stem: str) -> None:
    found = list(defaults(getattr(fresh(f"{aten.__package__}.{stem}"), "HANDLERS", {})))
    wrong = [row for row in found if row[2] not in row[3] and (row[3] or row[2] is not None)]
    assert wrong == []


@pytest.mark.parametrize("name", ["poptorch.enums", "popart.enums", "popart.locations"])
def test_enumerations_have_their_names_and_numbers(name: str, golden: Golden) -> None:
    module = fresh(f"ipuperf.frontends.{name}")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, enum.EnumMeta)]
    kinds = [kind for kind in kinds if kind.__module__ == module.__name__]
    assert kinds
    golden({kind.__name__: " ".join(f"{m.name}={m.value}" for m in kind) for kind in kinds})
