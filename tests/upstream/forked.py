"""The vendor's tests of TensorFlow applications: each file in a child of one process that has imported TensorFlow.

    python tests/upstream/forked.py FOLDER --json REPORT

``FOLDER`` is that of ``check.py``. Importing TensorFlow takes longer than most of these files. Names that a program
only mentions (trackers, data sets of the network, MPI) are empty objects, as in the runner. ``REPORT`` has its form: by
suite and ``file::function``, the outcome (the worst of its parameters) and a message.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

CNNS = (
    *("batch_config", "batch_norm", "callbacks_ordering", "checkpoint_callback", "cifar_resnet_models"),
    *("compilation_time_callback", "configs", "custom_wandb_callbacks", "data_remover_callback", "dataset_benchmark"),
    *("distributed_batch_norm", "eight_bit_transfer", "fp_exceptions", "gradient_normalization", "logging_callbacks"),
    *("losses", "lr_schedulers", "metrics", "model_editor", "models", "optimizers", "precision"),
    *("stochastic_rounding", "throughput_estimator_callback"),
)
BERT = ("batch_config", "callback_checkpoint", "enqueuer", "model_optimization", "optimizer_scaling", "options")
GNN = ("grouped_gather_scatter", "scatter_gathers")


class Suite(NamedTuple):
    """An application's tests."""

    place: str
    """The application's folder."""
    tests: str
    """The folder of tests in it."""
    files: tuple[str, ...]
    """The files that run: those that need no data of the network and start no program."""
    needs: tuple[str, ...] = ("tensorflow_addons",)
    """Packages without which it does not run."""


SUITES = {
    "tf-cnns": Suite("examples/vision/cnns/tensorflow2", "test", CNNS),
    "tf-bert": Suite(
        "examples/nlp/bert/tensorflow2",
        "tests",
        BERT,
        ("tensorflow_addons", "transformers.modeling_tf_utils", "pydantic"),
    ),
    "tf-gnn": Suite("examples/gnn/message_passing/tensorflow2", "tests", GNN),
}
MENTIONED = ("ogb", "tensorflow_datasets", "tensorflow_serving")
"""Packages beside those of the runner whose names are empty objects."""
MAKE = '#!/bin/sh\n[ "$1" = clean ] || touch custom_grouped_gather_scatter.so\n'
"""Stands for ``make`` where tests compile an op in C++: ops are known by their source, an empty library is enough."""
SECONDS = 300
RANK = ("passed", "skipped", "failed", "error")


class Outcomes:
    """A plug-in of pytest that keeps the worst outcome of each function."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: dict[str, tuple[str, str]] = {}

    def note(self, name: str, outcome: str, text: str) -> None:
        """Keep an outcome if it is worse than the one so far."""
        key, lines = f"{self.file.name}::{name}", text.strip().splitlines()
        if key not in self.found or RANK.index(outcome) > RANK.index(self.found[key][0]):
            self.found[key] = (outcome, lines[-1][:300] if lines else "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Setup and teardown count where they fail."""
        if report.when == "call" or not report.passed:
            self.note(report.nodeid.rpartition("::")[2].partition("[")[0], report.outcome, report.longreprtext)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported is one error."""
        if report.failed:
            self.note("import", "error", report.longreprtext)


def outcomes(file: Path, application: Path, paths: list[str]) -> dict[str, tuple[str, str]]:
    """Those of a file of tests, in a child."""
    answer, said = os.pipe()
    child = os.fork()
    if not child:
        os.close(answer)
        try:
            os.write(said, json.dumps(_run(file, application, paths)).encode())
        finally:
            os._exit(0)
    os.close(said)
    with os.fdopen(answer, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {f"{file.name}::import": ("error", "the process ended without an answer")}


def _run(file: Path, application: Path, paths: list[str]) -> dict[str, tuple[str, str]]:
    import pytest

    signal.alarm(SECONDS)  # ends a child that waits for the network
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    os.chdir(application)
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    kept = Outcomes(file)
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "-c", os.devnull, "--rootdir", str(application)]
    pytest.main([*options, str(file)], plugins=[kept])
    return kept.found


def runnable(suite: Suite) -> bool:
    """Whether the packages that a suite needs are there."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in suite.needs)
    except ModuleNotFoundError:  # of `a.b`, `a` is not there
        return False


def _runner(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("upstream_runner", folder / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stand_for_make(programs: Path) -> None:
    programs.mkdir()
    (programs / "make").write_text(MAKE, encoding="utf-8")
    (programs / "make").chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", "")])


def main() -> None:
    """Run the files and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    names: dict[str, Any] = {}
    exec(_runner(arguments.folder).PLUGIN, names)  # the runner gives this text to pytest as a plug-in
    names["_Finder"].roots += MENTIONED
    import tensorflow  # noqa: F401
    from tensorflow.python import ipu  # noqa: F401

    report = {}
    with tempfile.TemporaryDirectory() as temporary:
        _stand_for_make(Path(temporary) / "programs")
        for name, suite in SUITES.items():
            if not runnable(suite):
                continue
            application = Path(temporary) / suite.place
            shutil.copytree(arguments.folder / suite.place, application)
            paths = [str(application), str(application / suite.tests), str(arguments.folder / "examples/utils")]
            found: dict[str, tuple[str, str]] = {}
            for file in (application / suite.tests / f"test_{part}.py" for part in suite.files):
                found.update(outcomes(file, application, paths))
            passed = sum(outcome == "passed" for outcome, _ in found.values())
            skipped = sum(outcome == "skipped" for outcome, _ in found.values())
            print(f"{name}: {passed} of {len(found) - skipped} passed ({skipped} skip themselves)")
            report[name] = found
    arguments.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
