"""Exports kept on disk: found again by content, in other processes too; never a wrong one."""

import os
import random
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.lowering import Again  # noqa: E402
from ipuperf.lowering.compilation import Compilation  # noqa: E402
from ipuperf.lowering.stored import stored  # noqa: E402
from ipuperf.poptorch.executor import archive  # noqa: E402
from ipuperf.poptorch.export import cache as export_cache  # noqa: E402
from ipuperf.poptorch.export import module as export  # noqa: E402
from ipuperf.runtime.run_context import RUN  # noqa: E402

FACTOR = 2.0


def scaled(x: Any) -> Any:
    return x * FACTOR


class Model(torch.nn.Module):
    def __init__(self, offset: float = 0.5, *, width: int = 3) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, width)
        self.offset = offset
        self.table = torch.arange(float(width))
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x: Any) -> Any:
        with poptorch.Block("first", ipu_id=0):
            x = scaled(self.linear(x)) + self.table + self.offset
            self.seen.add_(1)
            return {"x": x, "loss": poptorch.identity_loss(x * x, "mean")}


@pytest.fixture
def traces(monkeypatch: Any) -> list[int]:
    """One entry for each export that was made; what this process knew before counts as unknown."""
    made: list[int] = []
    export_cache.forget()
    inner = export.trace

    def counted(*arguments: Any) -> Any:
        made.append(1)
        return inner(*arguments)

    monkeypatch.setattr(export, "trace", counted)
    return made


def run(folder: Any, module: Any, *, batch: int = 2, training: bool = True, **options: Any) -> Any:
    made = poptorch.Options().enableExecutableCaching(folder and str(folder)).showCompilationProgressBar(False)
    for name, value in options.items():
        getattr(made, name)(value)
    model = poptorch.trainingModel(module, made) if training else poptorch.inferenceModel(module, made)
    return model(torch.ones(batch * made.device_iterations, 3))


def test_the_second_program_is_lowered_from_the_file(tmp_path: Path, traces: list[int]) -> None:
    torch.manual_seed(3)
    first, second = Model(), Model()
    run(tmp_path, first)
    assert len(list(tmp_path.iterdir())) == 1
    wanted = second(torch.ones(2, 3))
    second.seen.zero_()
    found = run(tmp_path, second)
    assert len(traces) == 1
    torch.testing.assert_close(found["x"], wanted["x"].detach())
    torch.testing.assert_close(found["loss"], wanted["loss"].detach())
    assert second.seen.tolist() == [1, 1, 1]
    run(tmp_path, Model(), deviceIterations=3)
    assert len(traces) == 1


def test_a_process_exports_once_without_a_folder(traces: list[int], tmp_path: Path) -> None:
    run(None, Model(), batch=6)
    second = Model()
    wanted = second(torch.ones(6, 3))
    found = run(None, second, batch=6)
    torch.testing.assert_close(found["x"], wanted["x"].detach())
    assert len(traces) == 1
    run(tmp_path, Model(), batch=6)
    assert len(traces) == len(list(tmp_path.iterdir())) == 1


def test_what_is_kept_does_not_change_with_the_module(traces: list[int]) -> None:
    first, second = Model(), Model()
    wanted = second(torch.ones(2, 3))
    run(None, first)
    first.table.fill_(100.0)
    found = run(None, second)
    assert len(traces) == 1
    torch.testing.assert_close(found["x"], wanted["x"].detach())


@pytest.mark.heavy
def test_what_matters_makes_another_export(tmp_path: Path, traces: list[int], monkeypatch: Any) -> None:
    run(tmp_path, Model())
    changes = [
        lambda: run(tmp_path, Model(0.75)),
        lambda: run(tmp_path, Model(), batch=4),
        lambda: run(tmp_path, Model(), training=False),
        lambda: run(tmp_path, Model(width=5)),
    ]
    for number, change in enumerate(changes):
        change()
        assert len(traces) == 2 + number
    for name, value in (("FACTOR", 3.0), ("scaled", lambda x: x - 1)):
        monkeypatch.setitem(globals(), name, value)
        module = Model()
        found = run(tmp_path, module, training=False)
        torch.testing.assert_close(found["x"], module(torch.ones(2, 3))["x"].detach())
    changed = Model()
    changed.table = torch.ones(3)
    run(tmp_path, changed, training=False)
    assert len(traces) == 8


class Surrounded(torch.nn.Module):
    """What ``forward`` does depends on what stands around the module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Softsign()

    def forward(self, x: Any) -> Any:
        factor = float(os.environ.get("IPUPERF_TEST_FACTOR", "1"))
        return torch.nn.functional.softplus(self.layer(x)) * factor


def test_what_stands_around_a_module_makes_another_export(traces: list[int], monkeypatch: Any) -> None:
    def check() -> None:
        x, model = torch.randn(2, 3), Surrounded()
        torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))

    check()
    monkeypatch.setenv("IPUPERF_TEST_FACTOR", "3")
    check()
    monkeypatch.setattr(torch.nn.Softsign, "forward", lambda self, x: x * 4)
    check()
    monkeypatch.setattr(torch.nn.functional, "softplus", lambda x: x - 1)
    check()
    with torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 2):
        check()
    assert len(traces) == 5
    check()
    assert len(traces) == 5


def test_what_drew_random_numbers_of_the_host_is_not_kept(tmp_path: Path, traces: list[int]) -> None:
    class Drawn(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * random.random() + np.random.rand()  # noqa: NPY002

    class Dropped(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if random.random() < 0.0 else x * 2

    options = poptorch.Options().enableExecutableCaching(str(tmp_path))
    first, second = (poptorch.inferenceModel(Drawn(), options)(torch.ones(3)) for _ in range(2))
    assert not torch.equal(first, second)
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        poptorch.inferenceModel(Dropped(), options)(torch.ones(3))
    assert len(list(tmp_path.iterdir())) == 1
    assert len(traces) == 6


def test_an_export_that_is_kept_hides_no_hook(traces: list[int]) -> None:
    """Hooks that would not be called are refused, whatever was exported before."""
    run(None, Model())
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        module = Model()
        getattr(module.linear.weight, register)(lambda gradient: None)
        with pytest.raises(poptorch.Error, match=r"hook of a parameter's gradient \(linear.weight\) is unsupported"):
            run(None, module)
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(poptorch.Error, match="hook of the step of SGD is unsupported"):
        poptorch.trainingModel(module, optimizer=optimizer)


def test_modules_without_python_code_are_refused() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(3, 3))
    for module in (torch.jit.script(plain), torch.nn.Sequential(torch.jit.trace(plain, torch.ones(1, 3)))):
        with pytest.raises(poptorch.Error, match=r"is one of torch.jit.script or torch.jit.trace, which cannot be"):
            poptorch.inferenceModel(module)


class Pipelined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        with poptorch.Block("one", ipu_id=0):
            x = torch.relu(self.one(x))
        with poptorch.Block("two", ipu_id=1):
            return poptorch.identity_loss(self.two(x) ** 2, "mean")


@pytest.mark.heavy
def test_another_accumulation_is_neither_exported_nor_lowered_again(traces: list[int], monkeypatch: Any) -> None:
    lowered: list[int] = []
    inner = Compilation.__init__
    monkeypatch.setattr(Compilation, "__init__", lambda *args: lowered.append(1) or inner(*args))
    for accumulation, iterations in ((7, 1), (9, 1), (17, 1), (9, 3), (19, 4)):
        options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
        options.Training.gradientAccumulation(accumulation)
        images = torch.ones(accumulation * iterations, 8)
        executable = poptorch.compile_offline(Pipelined(), options, images).executable
        lowering = replace(executable.lowering, again=False)
        found, wanted = executable.device_program, executable.on(executable.machine, lowering=lowering)
        assert found.describe() == wanted.device_program.describe()
        assert found.memory.variables == wanted.device_program.memory.variables
        assert executable.trace.summary() == wanted.trace.summary()
    assert len(traces) == 1
    assert len(lowered) == 2 + 5  # with one device iteration and with several; five times to compare


def test_damaged_files_and_those_of_another_version_are_written_anew(
    tmp_path: Path, traces: list[int], monkeypatch: Any
) -> None:
    run(tmp_path, Model())
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    for content in (b"", b"no zip", good[: len(good) // 2]):
        path.write_bytes(content)
        export_cache.forget()
        run(tmp_path, Model())
        assert path.read_bytes() == good
    assert len(traces) == 4
    with monkeypatch.context() as other:
        other.setattr(archive, "_NUMBER", archive._NUMBER + 1)
        export_cache.forget()
        run(tmp_path, Model())
    assert path.read_bytes() != good
    export_cache.forget()
    run(tmp_path, Model())
    assert (len(traces), path.read_bytes()) == (6, good)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "new"))
    assert poptorch.Options().cache_dir == str(tmp_path / "new")
    assert poptorch.Options().enableExecutableCaching("other").cache_dir == "other"
    assert poptorch.Options().enableExecutableCaching(None).cache_dir is None
    with pytest.raises(AssertionError, match="expected a path"):
        poptorch.Options().enableExecutableCaching(3)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    run(tmp_path / "file", Model())
    assert "cannot be kept" in caplog.text


def test_an_object_that_cannot_be_seen_is_told_and_not_kept(tmp_path: Path, caplog: Any) -> None:
    module = Model()
    module.lock = open(os.devnull)  # noqa: SIM115 - something with hidden state
    with module.lock:
        run(tmp_path, module)
    assert "is not kept" in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
def test_another_process_finds_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            from ipuperf import poptorch
            from ipuperf.poptorch import export

            if sys.argv[2] == "found":
                export.trace = None

            class Model(torch.nn.Module):
                names = {"relu", "gelu", "tanh", "silu"}

                def __init__(self):
                    super().__init__()
                    self.linear = torch.nn.Linear(3, 2)
                    self.act = torch.nn.functional.gelu

                def forward(self, x):
                    return self.act(self.linear(x)) if "gelu" in self.names else x

            torch.manual_seed(0)
            options = poptorch.Options().enableExecutableCaching(sys.argv[1])
            print(poptorch.inferenceModel(Model(), options)(torch.ones(1, 3)).tolist())
            """
        )
    )
    printed = [
        subprocess.run(
            [sys.executable, str(program), str(tmp_path / "kept"), how], capture_output=True, text=True, check=True
        ).stdout
        for how in ("new", "found")
    ]
    assert printed[0] == printed[1]


def test_files_hold_no_code(tmp_path: Path) -> None:
    run(tmp_path, Model())
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as file:
        assert {name.partition("/")[0] for name in file.namelist()} == {"document.json", "tensors"}


@pytest.mark.parametrize("names", [{}, {"__name__": "mine"}], ids=["no name", "a name"])
def test_code_without_a_module_is_looked_at(names: Any) -> None:
    """What ``exec`` makes calls itself built in where there is no name."""
    source = """
import torch
def change(x):
    return x + {0}
class Model(torch.nn.Module):
    def forward(self, x):
        return change(x) * {1}
"""
    results = []
    for numbers in ((1, 1), (2, 1), (2, 3)):
        made = dict(names)
        exec(source.format(*numbers), made)
        results.append(poptorch.inferenceModel(made["Model"]())(torch.ones(1)).item())
    assert results == [2.0, 3.0, 9.0]


def test_a_class_that_forward_names_counts_by_its_code() -> None:
    source = """
import torch
class Scale:
    @staticmethod
    def of(x):
        return x * {0}
class Model(torch.nn.Module):
    def forward(self, x):
        return Scale.of(x)
"""
    results = []
    for number in (2, 3):
        made = {"__name__": "mine"}
        exec(source.format(number), made)
        results.append(poptorch.inferenceModel(made["Model"]())(torch.ones(1)).item())
    assert results == [2.0, 3.0]


def test_a_model_that_keeps_the_handles_of_its_hooks_is_kept(tmp_path: Path, traces: list[int]) -> None:
    """Found again however many hooks the process made in between; another hook is another program."""

    def hooked(factor: float) -> Model:
        torch.manual_seed(0)
        model = Model()
        model.handles = [model.linear.register_forward_hook(lambda module, inputs, result: result * factor)]
        return model

    first = run(tmp_path, hooked(2.0))
    torch.nn.Identity().register_forward_hook(lambda *_: None)
    torch.testing.assert_close(run(tmp_path, hooked(2.0)), first)
    assert len(traces) == 1
    run(tmp_path, hooked(3.0))
    assert len(traces) == 2


class Trained(torch.nn.Module):
    """Two stages with lookups, a convolution, norms and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.convolution = torch.nn.Embedding(16, 8), torch.nn.Conv1d(8, 8, 3, padding=1)
        self.norm, self.dropout, self.last = torch.nn.LayerNorm(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 16)

    def forward(self, tokens: Any) -> Any:
        with poptorch.Block("one", ipu_id=0):
            x = self.norm(self.convolution(self.table(tokens).transpose(1, 2)).transpose(1, 2))
        with poptorch.Block("two", ipu_id=1):
            logits = self.last(self.dropout(torch.relu(x)))
            return poptorch.identity_loss(
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()), "mean"
            )


@pytest.mark.heavy
def test_values_times_and_memory_are_the_same_from_the_lowered_program_on_disk(
    tmp_path: Path, monkeypatch: Any
) -> None:
    lowered: list[int] = []
    inner = Compilation.__init__
    monkeypatch.setattr(Compilation, "__init__", lambda *args: lowered.append(1) or inner(*args))
    found = []
    for folder in (None, tmp_path, tmp_path):
        with RUN.fresh(Again):
            export_cache.forget()
            torch.manual_seed(5)
            options = poptorch.Options().enableExecutableCaching(folder and str(folder)).randomSeed(7)
            options.showCompilationProgressBar(False).replicationFactor(2).Training.gradientAccumulation(7)
            options.TensorLocations.setOptimizerLocation(
                poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
            )
            module = Trained()
            optimiser = poptorch.optim.AdamW(module.parameters(), lr=1e-3)
            model = poptorch.trainingModel(module, options, optimizer=optimiser)
            losses = [model(torch.arange(14 * 6).reshape(14, 6) % 16).tolist() for _ in range(2)]
            executable = model.compiled_model.executable
            found.append((losses, executable.trace, *stored(executable.device_program)))
            model.destroy()
    assert len(lowered) == 2
    assert len(list(tmp_path.iterdir())) == 2
    for losses, trace, document, tables in found[1:]:
        assert losses == found[0][0]
        assert trace == found[0][1]
        assert document == found[0][2]
        assert all((tables[name] == table).all() for name, table in found[0][3].items())
