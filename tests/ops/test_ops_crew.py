"""Large steps on several threads: the same bits as on one, errors once, nothing that waits for ever."""

import multiprocessing
import os
import sys
import threading
from contextvars import ContextVar
from functools import partial

import numpy as np
import pytest

from ipuperf.ir import IrError
from ipuperf.ops import crew, half, libraries

rng = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


X, Y, ROW = values(4, 300, 500), values(4, 300, 500), values(1, 500)
STEPS = {
    "sum": (np.add, (X, Y), X.shape),
    "row": (np.multiply, (X, ROW), X.shape),
    "transposed": (np.subtract, (X.swapaxes(1, 2), Y.swapaxes(1, 2)), (4, 500, 300)),
    "exponential": (np.exp, (X,), X.shape),
    "scalar": (np.maximum, (X, np.float32(0)[None]), X.shape),
    "long row": (np.tanh, (X.reshape(1, -1),), (1, X.size)),
    "product": (np.matmul, (values(1024, 300), values(300, 512)), (1024, 512)),
    "wide product": (np.matmul, (values(96, 600).T[:, :90], values(90, 1200)), (600, 1200)),
    "products": (np.matmul, (values(1, 12, 64, 128), values(12, 128, 200)), (1, 12, 64, 200)),
    "rows of a batch": (np.matmul, (values(3, 200, 300), values(300, 400)), (3, 200, 400)),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_step_in_pieces_gives_the_same_bits(name: str, threads: int) -> None:
    function, operands, shape = STEPS[name]
    whole, pieces = np.empty(shape, np.float32), np.empty(shape, np.float32)
    with libraries.OneThread():
        crew.divided(partial(function, *operands, out=whole))()
        with crew.working(threads):
            step = crew.divided(partial(function, *operands, out=pieces))
            step()
    assert threads == 1 or isinstance(step, crew._Together)
    np.testing.assert_array_equal(pieces, whole)
    np.testing.assert_allclose(whole, function(*(o.astype(np.float64) for o in operands)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [1, (0, 2), (2,), 2, (0, 1)])
@pytest.mark.parametrize("keep", [True, False])
def test_reduction_in_pieces(axes: int | tuple[int, ...], keep: bool) -> None:
    expected = np.add.reduce(X, axes, np.float64, keepdims=keep)
    outs = [np.empty(expected.shape, np.float32) for _ in range(2)]
    for out, threads in zip(outs, (1, 3)):
        with crew.working(threads):
            step = crew.divided(partial(np.add.reduce, X, axes, None, out, keep))
            assert isinstance(step, crew._Together)
            step()
    np.testing.assert_array_equal(*outs)
    np.testing.assert_allclose(outs[0], expected, rtol=1e-4, atol=1e-3)


def test_operand_that_overlaps_its_result_is_not_cut() -> None:
    line = np.arange(1 << 18, dtype=np.float32)
    expected = line[1:] + line[:-1]
    with crew.working(4):
        crew.divided(partial(np.add, line[1:], line[:-1], line[1:]))()
        same = np.ones(1 << 18, np.float32)
        crew.divided(partial(np.add, same, same, out=same))()
    np.testing.assert_array_equal(line[1:], expected)
    assert (same == 2).all()


@pytest.mark.parametrize("kinds", [(np.float16, np.float32), (np.float32, np.float16)])
def test_conversion_in_pieces(kinds: tuple[type, type]) -> None:
    source = values(3, 100_000).astype(kinds[0])
    out = np.empty(source.shape, kinds[1])
    with crew.working(2):
        half.copy(out, source)()
    np.testing.assert_array_equal(out, source.astype(kinds[1]))


def test_first_error_of_several_is_raised_once_when_all_pieces_are_through() -> None:
    through: list[int] = []

    def fail(number: int) -> None:
        through.append(number)
        raise ValueError(f"piece {number}")

    with crew.working(3):
        step = crew.together(
            [partial(through.append, 0), partial(fail, 1), partial(fail, 2), partial(through.append, 3)]
        )
        for _ in range(20):
            through.clear()
            with pytest.raises(ValueError, match="piece 1"):
                step()
            assert sorted(through) == [0, 1, 2, 3]


def test_pieces_see_the_callers_context_and_run_side_by_side() -> None:
    setting: ContextVar[str] = ContextVar("setting", default="none")
    meeting = threading.Barrier(2, timeout=60)
    seen = []

    def piece() -> None:
        meeting.wait()  # passes only when two threads are here
        seen.append((setting.get(), np.geterr()["divide"], threading.get_ident()))

    setting.set("caller")
    with crew.working(2), np.errstate(divide="raise"):
        crew.together([piece, piece])()
    assert {(value, state) for value, state, _ in seen} == {("caller", "raise")}
    assert len({thread for *_, thread in seen}) == 2


def test_pieces_within_pieces_and_callers_side_by_side() -> None:
    count: list[int] = []

    def deep(depth: int) -> None:
        crew.together([partial(deep, depth - 1)] * 3 if depth else [partial(count.append, 1)] * 3)()

    def caller() -> None:
        with crew.working(2):
            deep(4)

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert len(count) == 3 * 3**5


def _in_child() -> None:
    step = crew.divided(partial(np.add, X, Y, np.empty_like(X)))
    for _ in range(3):
        step()
    sys.exit(7 if isinstance(step, crew._Together) else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_goes_on_alone() -> None:
    with crew.working(2):
        crew.divided(partial(np.add, X, Y, np.empty_like(X)))()
        child = multiprocessing.get_context("fork").Process(target=_in_child)
        child.start()
    child.join(120)
    assert child.exitcode == 7


def test_threads_are_the_cores_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPUPERF_THREADS", raising=False)
    assert crew.threads() == crew.cores() >= 1
    monkeypatch.setenv("IPUPERF_THREADS", "3")
    assert crew.threads() == 3


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_number_of_threads_is_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("IPUPERF_THREADS", text)
    with pytest.raises(IrError, match=f"IPUPERF_THREADS='{text}'; a positive integer is needed"):
        crew.threads()


# -- the libraries' own threads ----------------------------------------------------------------------------------------


def test_runs_leave_pytorch_its_threads() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    seen: list[int] = []
    meeting = threading.Barrier(2, timeout=60)

    def piece() -> None:
        meeting.wait()
        seen.append(torch.get_num_threads())

    try:
        with libraries.OneThread(), crew.working(2):
            crew.together([piece, piece])()
        assert seen == [1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_one_thread_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with libraries.OneThread():
        assert sys.modules["torch"] is None


def test_blas_gets_its_threads_back_after_the_last_of_several_runs() -> None:
    functions = libraries.blas()
    if functions is None:
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    count, change = functions
    before = count()
    change(2)
    try:
        first, second = libraries.OneThread(), libraries.OneThread()
        first.__enter__(), second.__enter__()
        assert count() == 1
        first.__exit__()
        assert count() == 1
        second.__exit__()
        assert count() == 2
    finally:
        change(before)
