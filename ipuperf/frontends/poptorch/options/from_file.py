"""``Options.loadFromFile``: one option per line, written as a call without ``options.`` in front; and the environment
variable ``POPTORCH_DEFAULT_OPTIONS``: a JSON object of options and their arguments.

Lines are parsed, not executed: arguments are literals, enumeration members (``poptorch.OutputMode.All``), torch types
(``torch.half``) and calls of the API's own classes (``poptorch.PipelinedExecution("B1", "B2")``). In JSON these stand
in strings; where an option takes an enumeration, the name of the member or its value is enough.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from .. import enums
from ..errors import Error


class ConfigFileError(Error):
    """A line of an options file that is not an option; the message names file, line and text."""


def load_options(options: Any, path: str | Path, classes: Mapping[str, Any]) -> None:
    """Set on ``options`` what the file at ``path`` says; ``classes`` are the names below ``poptorch`` it may use.

    Empty lines and lines that begin with ``#`` are left out.
    """
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            call = ast.parse(text, mode="eval").body
            if not isinstance(call, ast.Call):
                raise ValueError("not a call")
            _option(options, call.func)(*_arguments(call, classes), **_keywords(call, classes))
        except (SyntaxError, ValueError, AttributeError, TypeError) as error:
            raise ConfigFileError(f"{path}, line {number}: {text!r} is not an option of poptorch: {error}") from error


VARIABLE = "POPTORCH_DEFAULT_OPTIONS"


def load_environment(options: Any, classes: Mapping[str, Any]) -> None:
    """Set on new ``options`` what the environment variable says: ``{"deviceIterations": 2, "Precision.NAME": true}``.

    The names are those below ``poptorch.Options()``. An option of several arguments takes a list of them.

    Raises:
        ConfigFileError: no JSON object, or an entry that is not an option.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    try:
        entries = json.loads(text)
        if not isinstance(entries, dict):
            raise ValueError("a JSON object of options is needed")
    except ValueError as error:
        raise ConfigFileError(f"the environment variable {VARIABLE} is {text!r}: {error}") from error
    for name, value in entries.items():
        try:
            setter = reduce(getattr, name.split("."), options)
            arguments = list(_json_arguments(setter, value, classes))
        except (SyntaxError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigFileError(f"{VARIABLE}: {name!r} with {value!r} is not an option: {error}") from error
        setter(*arguments)


def _json_arguments(setter: Callable[..., Any], value: Any, classes: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments of an option that JSON describes."""
    parameters = list(inspect.signature(setter).parameters.values())
    values = value if isinstance(value, list) and len(parameters) > 1 else [value]
    if len(values) > len(parameters):
        raise ValueError(f"{len(values)} arguments for {len(parameters)}")
    for parameter, argument in zip(parameters, values, strict=False):
        kind = getattr(enums, str(parameter.annotation).partition(" ")[0], None)
        if inspect.isclass(kind) and issubclass(kind, Enum):
            yield _member_of(kind, argument)
        elif isinstance(argument, str) and argument.startswith(("poptorch.", "torch.")):
            yield _value(ast.parse(argument, mode="eval").body, classes)
        else:
            yield argument


def _member_of(kind: type[Enum], member: Any) -> Enum:
    """A member by its name, with or without those of the module and the enumeration, or by its value."""
    return kind[member.rpartition(".")[2]] if isinstance(member, str) else kind(member)


def _option(options: Any, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return getattr(options, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_option(options, node.value), node.attr)
    raise ValueError(f"{ast.unparse(node)} is not a name")


def _arguments(call: ast.Call, classes: Mapping[str, Any]) -> list[Any]:
    return [_value(argument, classes) for argument in call.args]


def _keywords(call: ast.Call, classes: Mapping[str, Any]) -> dict[str, Any]:
    return {word.arg: _value(word.value, classes) for word in call.keywords if word.arg}


def _value(node: ast.expr, classes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Call):
        return _function(node.func, classes)(*_arguments(node, classes), **_keywords(node, classes))
    if isinstance(node, ast.Attribute):
        return _member(ast.unparse(node), classes)
    return ast.literal_eval(node)


def _function(node: ast.expr, classes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        return getattr(_value(node.value, classes), node.attr)  # Stage("B1").ipu(0)
    return _member(ast.unparse(node), classes)


def _member(name: str, classes: Mapping[str, Any]) -> Any:
    module, _, path = name.partition(".")
    class_name, _, member = path.partition(".")
    if module == "torch" and isinstance(dtype := getattr(torch, path, None), torch.dtype):
        return dtype
    if module == "poptorch" and member and hasattr(getattr(enums, class_name, None), member):
        return getattr(getattr(enums, class_name), member)
    if module == "poptorch" and class_name in classes and not member:
        return classes[class_name]
    raise ValueError(f"{name} is not known here")
