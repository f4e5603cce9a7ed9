"""What the commands print and how they end, for every option and what is wrong with it, kept as text."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import digest
import numpy as np
import pandas as pd
import pytest
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from rows import Golden

from ipuperf.cli.sweep import _tell
from ipuperf.sweep import run as sweep_run
from ipuperf.sweep.work import rows

from .test_cli_compare import saved

GOLDEN = Path(__file__).parents[1] / "golden"
Run = Callable[..., Any]
PICTURES = ", ".join(sorted(FigureCanvasBase.get_supported_filetypes()))


def said_by(run: Run, folder: Path, commands: Sequence[str]) -> list[str]:
    """What each command line prints; TRACES is the folder of the traces that the tests
    keep, ``~`` a space within a word."""
    said = []
    for command in commands:
        words = [word.replace("TRACES", str(GOLDEN / "report")).replace("~", " ") for word in command.split()]
        done = run(*words, cwd=folder)
        said.append(f"$ {command} ({done.returncode})")
        for text in (done.stdout, done.stderr):
            text = text.replace(str(GOLDEN / "report"), "TRACES").replace(str(folder), "THERE")
            text = text.replace("[COMMAND]", "COMMAND").replace(PICTURES, "PICTURES")  # click's and matplotlib's
            said += digest.lines(text)
    return said


ESTIMATES = """\
estimate
estimate matmul --m 64 --k 32 --n 16
estimate matmul --m 64 --k 32 --n 16 --json
estimate matmul --m 7 --k 5 --n 3 --groups 4 --dtype f32 --pass fcfwd --chip bow --amp 0.2
estimate matmul --m 64 --k 32 --n 16 --partials f16
estimate matmul --m 64 --k 32
estimate matmul --m 0 --k 1 --n 1
estimate matmul --m 1 --k 1 --n 1 --amp 0
estimate matmul --m 1 --k 1 --n 1 --dtype f8x
estimate matmul --m 1 --k 1 --n 1 --pass up
estimate matmul --m 1 --k 1 --n 1 --chip gc3
estimate convolution --h 8 --kh 3 --cin 4 --cout 8
estimate convolution --h 8 --kh 3 --cin 4 --cout 8 --json
estimate convolution --h 8 --w 6 --kh 3 --kw 2 --cin 4 --cout 8 --b 2 --stride 2 --pad 1 --groups 2 --pass bwd
estimate convolution --h 8 --w 6 --kh 3 --kw 2 --cin 4 --cout 8 --b 2 --stride 2 --pad 1 --groups 2 --pass wu
estimate convolution --h 2 --kh 3 --cin 4 --cout 8
estimate convolution --h 8 --kh 3 --cin 4 --cout 8 --groups 3
estimate vertex --name relu
estimate vertex --name relu --json --elements 7
estimate vertex --name ScaledAdd --dtype f32
estimate vertex --name nothing
estimate vertex --name relu --elements 1,x
estimate vertex --name relu --elements -1
estimate vertex --name relu --dtype i7
estimate --csv in.csv
estimate --out out.csv
estimate --csv in.csv --out out.csv
estimate --csv in.csv --out out.csv matmul --m 1 --k 1 --n 1
estimate --csv bad.csv --out out.csv
estimate --csv none.csv --out out.csv
estimate --csv in.csv --out gone/out.csv
estimate --csv text.csv --out out.csv
""".splitlines()


def test_estimate(ipuperf_here: Run, tmp_path: Path, golden: Golden) -> None:
    head = "kind,target,dtype,partials,pass_,amp,G,M,K,N,B,H,W,kh,kw,cin,cout,stride,pad,groups\n"
    rows = ("matmul,mk2,f16,f32,fcfwd,0.6,1,64,32,16,,,,,,,,,,\n", "conv,mk1,f16,f16,fwd,0.3,,,,,2,8,8,3,3,4,8,1,1,1\n")
    (tmp_path / "in.csv").write_text(head + "".join(rows))
    (tmp_path / "bad.csv").write_text(head + rows[0].replace("64", "x"))
    (tmp_path / "text.csv").write_bytes(b"\xff\xfe\x00")
    said = said_by(ipuperf_here, tmp_path, ESTIMATES)
    golden([*said, *(tmp_path / "out.csv").read_text().splitlines()])


REPORTS = """\
compare a.ipt
compare a.ipt a.ipt a.ipt
compare a.ipt a.ipt --fail-above 0%
compare a.ipt TRACES/loop.ipt --fail-above 2%
compare a.ipt b.ipt a.ipt --json v.json --html p.html
compare a.ipt b.ipt --fail-above 1.5%
compare a.ipt b.ipt --fail-above 200%
compare b.ipt a.ipt --fail-above 1%
compare a.ipt part --fail-above 1%
compare a.ipt b.ipt --fail-above 2
compare a.ipt b.ipt --fail-above -2%
compare a.ipt b.ipt --fail-above x%
compare a.ipt b.ipt --fail-above 1.%
compare a.ipt b.ipt --fail-above 2~%
compare gone.ipt a.ipt
compare TRACES TRACES
compare empty a.ipt
compare run a.ipt
report empty
report TRACES --no-open
report run/0-a --no-open
report run/1-b --open
report a.ipt --no-open --output p.html
report a.ipt --output gone/p.html
report run --recover --why
report run --recover --open
report run --recover --output p.html
report gone
machines
machines nosuch
machines gc200-1
machines c600 --json
machines --json
""".splitlines()


@pytest.mark.heavy
def test_reports_and_machines(
    ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    saved(tmp_path / "a.ipt", 100)
    saved(tmp_path / "b.ipt", 103, 52)
    for folder in ("empty", "run/0-a", "run/1-b"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "empty":
            saved(tmp_path / folder / "trace.ipt", 100)
    opened: list[str] = []
    monkeypatch.setattr(click, "launch", opened.append)
    said = said_by(ipuperf_here, tmp_path, REPORTS)
    said += sorted(f"{path.relative_to(tmp_path)}" for path in tmp_path.rglob("*.[hj]*"))
    said += [page.replace(tmp_path.as_uri(), "file:///THERE") for page in opened]
    golden(said)


# -- sweep, tune, validate ---------------------------------------------------------------------------------------------

SWEEP = """
import sys
import popxl
from popxl import ops

ir = popxl.Ir()
with ir.main_graph:
    x = ops.exp(popxl.variable([1.0] * int(sys.argv[1]), popxl.float32))
popxl.Session(ir, "ipu_hw").__enter__().run()
"""
SWEEPS = """\
sweep s.py --factor n=4,8 --format csv --plot lines:n,cycles --plot pareto:n,seconds -- {n}
sweep s.py --json --factor n=4 -- {n}
sweep s-sweep/table.csv --plot heatmap:n,machine,cycles
sweep s-sweep/table.csv --plot lines:n,cycles --out there
sweep s-sweep/table.csv
sweep s-sweep/table.csv --plot lines:n,cycles --factor n=1
sweep s-sweep/table.csv --where n
sweep s-sweep/table.csv --plot bars:n
sweep s-sweep/table.csv --plot lines:n,gone
sweep s.py --factor n
sweep s.py --factor =3
sweep s.py --factor n= --format csv -- {n}
sweep s.py --factor n=x,true,1.5,null,[1] --format csv -- {n}
sweep s.py --factor n=4 --where m>3 --format csv -- {n}
sweep f.toml --format csv
sweep f.toml --factor n=1
sweep f.toml --where n
sweep f.toml -- x
sweep f.toml --retry --format csv
sweep gone.toml
sweep s.py --jobs 0
sweep s.py --format xlsx
sweep f.toml --format csv --out here
""".splitlines()


ROUNDED = re.compile(r'("\w*seconds?":)([\d.e-]+)')


@pytest.mark.heavy
def test_sweep(ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """The tables that are drawn have no pictures: nobody looks at them here."""
    monkeypatch.setattr(
        sweep_run, "in_processes", lambda sweep, pieces, jobs: (r for p in pieces for r in rows(sweep, p))
    )
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).write_bytes(b"a picture"))
    (tmp_path / "s.py").write_text(SWEEP)
    (tmp_path / "f.toml").write_text(
        'script = "s.py"\narguments = ["{n}"]\nplots = ["lines:n,cycles"]\n[factors]\nmachine = ["pod4"]\nn = [4, 7]\n'
    )
    (tmp_path / "there").mkdir()
    said = [line for line in said_by(ipuperf_here, tmp_path, SWEEPS) if "took_seconds" not in line or "allowed" in line]
    said = [ROUNDED.sub(lambda found: f"{found[1]}{float(found[2]):.6g}", line) for line in said]
    said = [line for line in said if '"ipuperf":' not in line]
    said += sorted(f"{path.relative_to(tmp_path)}" for path in tmp_path.rglob("*.*") if "runs" not in path.parts)
    golden(said)


def test_a_sweep_of_which_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """What it comes to: some fit, none does, some fail, all fail."""
    columns = {"n": [1, 2, 3], "machine": "pod4", "failure": None, "max_tile_bytes": 700_000, "bytes_per_tile": 638_976}
    said = []
    for fits, failures, bytes_ in (
        ([True, False, False], None, 7),
        ([False] * 3, None, [900_000, 700_000, 800_000]),
        ([False, None, None], [None, "a", "b"], 640_000),
        ([None] * 3, ["a", "b", "b"], 1),
    ):
        table = pd.DataFrame({**columns, "fits": fits, "failure": failures, "max_tile_bytes": bytes_})
        try:
            _tell(table, tmp_path, "csv")
            said.append("fine")
        except click.ClickException as error:
            said.append(error.message)
        said += "".join(capsys.readouterr()).replace(str(tmp_path), "THERE").splitlines()
    golden(said)


TUNES = """\
tune encoder --machine pod4 --global-batch 64
tune
tune encoder --like X
tune encoder --machine pod4
tune encoder --global-batch 64
tune encoder --machine pod4 --global-batch 0
tune encoder --machine pod4 --global-batch 7 x
tune encoder --machine pod4 --global-batch 64 --factor micro_batch=2,4 --factor replicas=[1,2] --json
tune encoder --machine pod4 --global-batch 64 --set recompute=none --out o --trials 3 --seed 5 --jobs 2
tune encoder --machine pod4 --global-batch 64 --set x
tune encoder --machine pod4 --global-batch 64 --factor =1
tune encoder --machine pod4 --global-batch 4 --set pipeline=[1,[2]] --factor offload=[],["optimiser"]
tune encoder --machine pod4 --global-batch 64 --factor config.schedule=grouped,1f1b --where micro_batch<3
tune s.py --machine pod4 --global-batch 8 --factor micro_batch=1,2 -- {micro_batch} {accumulation}
tune f.toml --global-batch 8
tune f.toml --global-batch 8 --machine pod16
tune f.toml --global-batch 8 --set n=4
tune f.toml --global-batch 8 x
tune nosuch --machine pod4 --global-batch 8
tune --like GONE
tune --like PRT-BB16
tune --like POPXL1-TRAIN
""".splitlines()


def test_tune(ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """What is searched, and what is printed of an answer."""

    def search(space: Any, folder: Path, **options: Any) -> str:
        click.echo(f"searches {len(space.configurations)} of {space.global_batch}, {space.names}, {folder}, {options}")
        click.echo(f"  {space.sweep.machine_of(space.configurations[0]['machine'])} {space.sweep.constraints}")
        click.echo(f"  {dict(space.sweep.factors)}")
        return "the answer"

    monkeypatch.setattr("ipuperf.cli.tune.cores", lambda: 1)
    monkeypatch.setattr("ipuperf.tuning.tune", search)
    monkeypatch.setattr("ipuperf.tuning.text_of", lambda answer, names: f"{answer} of {names}")
    monkeypatch.setattr("ipuperf.tuning.files.json_of", lambda answer: f"json of {answer}\n")
    (tmp_path / "s.py").touch()
    (tmp_path / "f.toml").write_text(
        'script = "s.py"\narguments = ["{micro_batch}"]\n[factors]\nmachine = ["pod4"]\nmicro_batch = [4, 8]\n'
    )
    golden(said_by(ipuperf_here, tmp_path, TUNES))


CASES = """
[defaults]
category = "kernel"
source = "made up"
machine = "pod4"
mode = "kernel"
model = "tile_add"
measured = { metric = "m", quantity = "cycles", value = 400, unit = "cycles" }
[[case]]
id = "ONE"
config = { tiles = 5, elements = 33 }
choices = [{ key = "config.elements", others = [40], why = "not stated" }]
calibrates = ["chip.launch"]
[[case]]
id = "TWO"
config = { tiles = 5, elements = 100 }
calibrates = ["chip.launch"]
[[case]]
id = "SLOW"
slow = true
config = { tiles = 5, elements = 64 }
[[not_expressed]]
ids = ["OTHER"]
reason = "no shapes"
"""
VALIDATIONS = """\

--all
-k ONE
-k slow -k two
-k OTHER
-k x
--choices --json j.json
--sensitivity --figure chip.launch --json s.json
--sensitivity --figure chip.x
--leave-one-out --json l.json
--sensitivity --leave-one-out
--sensitivity --choices
--leave-one-out --plot p.svg
--figure x
--jobs 0
--jobs 65
--plot p.svg
--plot p.xyz
--json gone/j.json
--leave-one-out -k SLOW
""".splitlines()


@pytest.mark.heavy
def test_validate(ipuperf_here: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "c.toml").write_text(CASES)
    said = said_by(ipuperf_here, tmp_path, [f"validate --cases c.toml {words}".strip() for words in VALIDATIONS])
    for file in sorted(tmp_path.glob("*.json")):
        said += [file.name, *digest.lines(json.loads(file.read_text()))]
    golden(said)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [(2, "cases"), "ONE", "TWO"]),
        (["--sensitivity", "--figure", "chip.launch"], [(0, "programs"), "2", "2"]),
        (["--leave-one-out"], [(0, "fits"), "1", (2, "cases"), "ONE", "TWO"]),
    ],
)
def test_bars_of_validate(
    options: list[str], expected: list[Any], ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case is named as it ends; where the number of programs comes with the first of them, each tells it."""
    told: list[Any] = []

    @contextmanager
    def bar(*title: object) -> Any:
        told.append(title)
        yield lambda name, total="": told.append(f"{name}{total}")

    monkeypatch.setattr("ipuperf.cli.validate._bar", bar)
    (tmp_path / "c.toml").write_text(CASES)
    done = ipuperf_here(
        "validate", "--cases", "c.toml", "-k", "ONE", "-k", "TWO", "--jobs", "1", *options, cwd=tmp_path
    )
    assert (done.returncode, told) == (0, expected), done.stderr


# -- demo --------------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.usefixtures("upstream_names")
def test_a_step_of_the_demo_is_that_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its data, the loss of the first step and the accuracy on whole test batches, of the network in NumPy."""
    from ipuperf.cli import demo
    from ipuperf.models import mnist_mlp

    generator = np.random.default_rng(3)
    for part, count in (("train", 300), ("t10k", 170)):
        images, labels = generator.integers(0, 256, (count, 28, 28)), generator.integers(0, 10, count)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images.astype(np.uint8)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
        if part == "t10k":
            wanted = ((images / 255 - 0.1307) / 0.3081).astype(np.float32)
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path))
    source, train, test = demo._data()
    assert source == f"MNIST from {tmp_path}"
    assert (train[0].shape, test[0].shape, test[0].dtype, test[1].dtype) == ((300, 28, 28), (170, 28, 28), "f4", "i4")
    np.testing.assert_allclose(test[0], wanted, rtol=1e-5, atol=1e-6)

    programs, first = [], {}
    plain = mnist_mlp.training_session

    def kept(options: Any) -> Any:
        programs.append(plain(options))
        first.update(values(programs[0]))
        return programs[0]

    def values(program: Any) -> dict[str, np.ndarray]:
        found = program.session.get_tensors_data(program.variables.tensors)
        return {tensor.name: np.array(data, np.float64) for tensor, data in found.items()}

    def logits(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
        x = images.reshape(-1, 784).astype(np.float64)
        for layer in range(1, 5):
            x = x @ weights[f"fc{layer}.weight"] + weights[f"fc{layer}.bias"]
            x = x if layer == 4 else 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        return x

    tested = []
    inference = mnist_mlp.inference_session
    monkeypatch.setattr(mnist_mlp, "inference_session", lambda *a: tested.append(inference(*a)) or tested[0])
    monkeypatch.setattr(mnist_mlp, "training_session", kept)
    np.random.seed(5)  # noqa: NPY002 - the factories of the model draw from it
    accuracy = demo._train(train, test, 1, np.random.default_rng(11))
    chosen = np.random.default_rng(11).integers(0, 300, 256)
    before = logits(first, train[0][chosen])
    exponents = np.exp(before - before.max(axis=1, keepdims=True))
    losses = -np.log(exponents[np.arange(256), train[1][chosen]] / exponents.sum(axis=1))
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(losses.mean(), abs=2e-4)
    right = logits(values(programs[0]), test[0][:160]).argmax(axis=1) == test[1][:160]
    assert accuracy == pytest.approx(right.mean(), abs=1.5 / 160)
    trained, used = values(programs[0]), values(tested[0])
    assert set(used) <= set(trained)
    assert all(np.array_equal(used[name], trained[name]) for name in used), "the weights that were trained are tested"


@pytest.mark.usefixtures("upstream_names")
def test_the_demo_trains_on_the_one_and_tests_on_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ipuperf.cli import demo

    train, test = (np.zeros((3, 28, 28)),), (np.zeros((2, 28, 28)),)
    asked: list[Any] = []
    monkeypatch.setattr(demo, "_data", lambda: ("nowhere", train, test))
    monkeypatch.setattr(demo, "_train", lambda *given: asked.extend(given) or 0.25)
    monkeypatch.setattr(demo, "_tables", asked.append)
    demo.demo.callback(7, "pod4", 1)
    assert (asked[0] is train, asked[1] is test, asked[2], asked[4]) == (True, True, 7, "pod4")
    assert capsys.readouterr().out.split("\n")[:2] == ["data: nowhere", "accuracy on 2 test images: 25.00%"]


@pytest.mark.usefixtures("upstream_names")
def test_tables_of_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ipuperf.cli import demo
    from ipuperf.scenarios import rts_mnist

    live = {"baseline": 1.234e6, "peak": 56.789e6, "always_live": 9.996e6}
    monkeypatch.setattr(rts_mnist, "run", lambda machine: ([machine], {"one": "a trace"}))
    monkeypatch.setattr(rts_mnist, "table", lambda rows: f"table of {rows}")
    monkeypatch.setattr(rts_mnist, "liveness", lambda trace: live if trace == "a trace" else {})
    demo._tables("pod4")
    table, blank, said, head, line = capsys.readouterr().out.splitlines()
    assert (table, blank) == ("table of ['pod4']", "")
    assert said.startswith("memory per IPU in MB, not always live")
    assert (head.split(), line.split()) == (
        ["placement", "between", "bumps", "peak", "always", "live"],
        ["one", "1.23", "56.79", "10.00"],
    )
    assert [len(head), len(line)] == [34 + 15 + 8 + 13] * 2
