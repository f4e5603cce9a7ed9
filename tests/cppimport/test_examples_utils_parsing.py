"""The stand-in for ``examples_utils.parsing``: configurations from files, presets and the command line."""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipuperf.runtime.install import install, uninstall

TOOLS = "examples_utils.parsing.simple_parsing_tools"
PRESETS = {
    "release": {
        "small": {"name": "s", "model": {"layers": 3, "precision": "half", "attention": {"heads": 8, "gone": 3}}},
        "large": {},
    }
}


@pytest.fixture
def tools() -> Iterator[Any]:
    pytest.importorskip("simple_parsing")
    pytest.importorskip("yaml")
    install(force=True)
    yield importlib.import_module(TOOLS)
    uninstall()


@pytest.fixture
def whole(tools: Any) -> Any:
    """A configuration as the applications write them, with a configuration as a field's default.

    This file does not postpone annotations: simple-parsing would not find the names of this function.
    """

    class Precision(tools.Choice):
        float = 32
        half = 16

    @dataclass
    class Attention(tools.Config):
        heads: int = 4

    @dataclass
    class Model(tools.Config):
        layers: int = 2
        precision: Precision = Precision.float
        fast: bool = tools.flag(False)
        slow: bool = tools.flag(True)
        shares: tuple[float, ...] = (0.1, 0.2)
        attention: Attention = Attention()  # noqa: RUF009  # as the applications do

    @dataclass
    class Whole(tools.Config):
        model: Model = Model()  # noqa: RUF009
        name: str = "none"

    return Whole


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    """YAML reads JSON."""
    file = tmp_path / "presets.yml"
    file.write_text(json.dumps(PRESETS))
    return file


def configured(tools: Any, whole: Any, file: Path, words: str) -> dict[str, Any]:
    config, options = tools.parse_args_with_presets(whole, file, "release", "small", None, words.split())
    assert options.whole is config
    said: dict[str, Any] = config.to_dict()
    return {"config": options.config, "name": said["name"], **said["model"]}


SMALL = {
    "config": "small", "name": "s", "layers": 3, "precision": "half", "fast": False, "slow": True,
    "shares": [0.1, 0.2], "attention": {"heads": 8},
}  # fmt: skip
LARGE = SMALL | {"config": "large", "name": "none", "layers": 2, "precision": "float", "attention": {"heads": 4}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", SMALL),
        ("--config large", LARGE),
        ("--layers 7 --config large --precision half", LARGE | {"layers": 7, "precision": "half"}),
        ("--heads 2 --name n --shares 0.5 0.6 0.7", SMALL | {"attention": {"heads": 2}, "name": "n",
                                                            "shares": [0.5, 0.6, 0.7]}),
        ("--fast --slow", SMALL | {"fast": True}),
        ("--fast False --slow False", SMALL | {"slow": False}),
    ],
)  # fmt: skip
def test_a_preset_and_the_command_line(tools: Any, whole: Any, presets: Path, words: str, expected: Any) -> None:
    config = configured(tools, whole, presets, words)
    assert {**config, "shares": list(config["shares"])} == expected
    # A preset is the default of one command line alone.
    assert whole().model.layers == 2


def test_the_file_of_a_configuration(tools: Any, whole: Any, tmp_path: Path) -> None:
    file = tmp_path / "configuration.yml"
    file.write_text(json.dumps(PRESETS["release"]["small"]))
    config = tools.parse_args_with_config_file(whole, ["--config", str(file), "--layers", "5"])
    assert (config.name, config.model.layers, config.model.precision.value) == ("s", 5, 16)
    assert tools.parse_args_with_config_file(whole, []) == whole()
    assert whole.loads_yaml(config.dumps_yaml()) == config


def test_options_of_a_program_and_of_the_process(
    tools: Any, whole: Any, presets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--hf_model", "None", "--config", "large"])

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--hf_model")

    config, options = tools.parse_args_with_presets(whole, str(presets), "release", "small", add)
    assert (config, options.hf_model, options.config) == (whole(), "None", "large")
    assert tools.parse_args_with_config_file(whole, ["--name", "m"]).name == "m"
    # The command line of a notebook's process is the kernel's.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    monkeypatch.setattr(sys, "argv", ["kernel", "--port", "1"])
    assert tools.parse_args_with_presets(whole, presets, "release", "large")[0] == whole()


@pytest.mark.parametrize("words", ["--config none", "--layers many", "--unknown 1", "--precision quarter"])
def test_a_command_line_that_does_not_fit(
    tools: Any, whole: Any, presets: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        configured(tools, whole, presets, words)
    assert error.value.code == 2
    assert f"{words.split()[0]}" in capsys.readouterr().err


def test_the_help_names_presets(tools: Any, whole: Any, presets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        configured(tools, whole, presets, "--help")
    assert "--config {small,large}" in capsys.readouterr().out


def test_presets_that_are_not_there(tools: Any, whole: Any, presets: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"presets\.yml has no 'debug'; it has release"):
        tools.parse_args_with_presets(whole, presets, "debug", "small", None, [])
    with pytest.raises(ValueError, match=r"presets\.ini: presets are read from \.yml, \.yaml and \.json"):
        tools.parse_args_with_presets(whole, tmp_path / "presets.ini", "", "small", None, [])
    flat = tmp_path / "presets.json"
    flat.write_text('{"only": {"name": "f"}}')
    assert tools.parse_args_with_presets(whole, flat, "", "only", None, [])[0].name == "f"


def test_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    install(force=True)
    monkeypatch.setitem(sys.modules, "simple_parsing", None)
    for name in [name for name in sys.modules if name.endswith("simple_parsing_tools")]:
        monkeypatch.delitem(sys.modules, name)
    try:
        with pytest.raises(ModuleNotFoundError, match=r"examples_utils\.parsing needs \w+.*: .*install"):
            importlib.import_module(TOOLS)
    finally:
        uninstall()


def test_a_yaml_file_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    install(force=True)
    try:
        parse_yaml_config = importlib.import_module("examples_utils").parse_yaml_config
    finally:
        uninstall()
    file = tmp_path / "configs.yml"
    file.write_text("resnet:\n  depth: 8\n  splits: [a, b]\n  rate: 0.5\n")
    parser = argparse.ArgumentParser()
    for name, options in {"config": {}, "config-path": {"default": str(file)}, "depth": {"type": int, "default": 50},
                          "splits": {"nargs": "*"}, "rate": {"type": float}}.items():  # fmt: skip
        parser.add_argument(f"--{name}", **options)  # type: ignore[arg-type]

    def parsed(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["script", *words])
        return parse_yaml_config(parser.parse_args(), parser)

    assert parsed("--depth", "1").depth == 1
    with pytest.raises(ValueError, match=r"configs\.yml has no configuration 'vgg'; it has resnet"):
        parsed("--config", "vgg")
    options = parsed("--config", "resnet", "--rate", "2")
    assert (options.depth, options.splits, options.rate, options.config) == (8, ["a", "b"], 2.0, "resnet")
