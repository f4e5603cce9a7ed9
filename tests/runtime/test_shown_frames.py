"""Tracebacks of every short way through a program, ipuperf and a library: which frames are shown.

The oracle says the rule a second time, over letters: ``p`` is a frame of the program, ``i`` of ipuperf, ``l`` of an
installed library, ``s`` of what starts programs.
"""

import re
from collections.abc import Callable
from itertools import product

import pytest

from ipuperf.ir import IrError
from ipuperf.runtime import tracebacks
from ipuperf.runtime.tracebacks import calling_line, is_about_the_program, is_below, shorten

FILES = {
    "p": "/programs/train.py",
    "i": f"{tracebacks._PACKAGE}/ir/graph.py",
    "l": "/python/site-packages/torch/nn.py",
    "s": tracebacks._STARTERS[0],
}


def failing(way: str, error: BaseException) -> BaseException:
    """``error`` as it is raised through frames of these files, the outermost first."""

    def end() -> None:
        raise error

    act: Callable[[], None] = end
    for number, letter in reversed(list(enumerate(way, start=1))):
        scope = {"inner": act}
        exec(compile("\n" * number + "def outer(): inner()", FILES[letter], "exec"), scope)
        act = scope["outer"]
    try:
        act()
    except BaseException as caught:
        chain = caught.__traceback__
        assert chain is not None
        frames = [frame for frame in tracebacks._frames(chain) if frame.tb_frame.f_code.co_filename in FILES.values()]
        return caught.with_traceback(tracebacks._joined(frames))
    raise AssertionError


def shown(error: BaseException) -> str:
    """The letters of the frames that are left."""
    letters = {file: letter for letter, file in FILES.items()}
    return "".join(letters[frame.tb_frame.f_code.co_filename] for frame in tracebacks._frames(error.__traceback__))


def expected(way: str, on_purpose: bool) -> str:
    """Libraries between the program's frames show only where ipuperf has no part in them. Behind the last of those all
    shows, unless ipuperf raised it on purpose: then all from its first frame on is hidden. Below a function that
    ipuperf calls, libraries that raise something of their own are hidden."""
    way = way.replace("s", "")
    if "p" not in way:
        return way
    runs = re.findall(r"p+|[il]+", way)
    before = [run if run[0] == "p" or "i" not in run else "" for run in runs[:-1]]
    within, last = any("i" in run for run in runs[:-1]), runs[-1]
    if on_purpose and "i" in last:
        last = "" if within else last[: last.index("i")]
    elif last[0] != "p" and within and last[-1] != "i":
        last = ""
    return "".join([*before, last])


WAYS = ["".join(way) for length in range(1, 6) for way in product("pil", repeat=length)]
WAYS += ["s", "sp", "spip", "psi", "spsip"]


@pytest.mark.parametrize("error", [IrError, ValueError])
def test_frames_that_are_shown(error: type[Exception]) -> None:
    on_purpose = error is IrError
    wrong = {}
    for way in WAYS:
        made = failing(way, error("text"))
        shorten(made)
        if shown(made) != expected(way, on_purpose):
            wrong[way] = shown(made), expected(way, on_purpose)
    assert not wrong


def test_debug_shows_all_but_what_starts_programs() -> None:
    for way in WAYS[-30:]:
        made = failing(way, IrError("text"))
        shorten(made, debug=True)
        assert shown(made) == way.replace("s", "")


def test_causes_and_parts_are_shortened_too() -> None:
    first, second, third = (failing("pip", IrError("text")) for _ in range(3))
    first.__cause__, second.__context__ = second, third
    third.__cause__ = first  # a circle
    group = failing("pi", IrError("whole"))
    group.exceptions = (first, failing("pipi", IrError("part")))
    shorten(group)
    assert [shown(e) for e in (group, first, second, third, group.exceptions[1])] == ["p", "pp", "pp", "pp", "pp"]


@pytest.mark.parametrize(
    ("way", "line"),
    [("pi", 2), ("ppi", 3), ("spi", 3), ("pipi", 4), ("pli", 2), ("pil", 2), ("p", 0), ("pl", 0), ("i", 0), ("pip", 0)],
)
def test_the_line_that_called_ipuperf(way: str, line: int) -> None:
    assert calling_line(failing(way, ValueError())) == (f"{FILES['p']}:{line}" if line else "")


def test_what_is_about_the_program() -> None:
    graphed = ValueError()
    graphed.ag_error_metadata = None
    assert [is_about_the_program(e) for e in (IrError(), graphed, ValueError())] == [True, True, False]


@pytest.mark.parametrize(
    ("path", "folder", "below"),
    [("/a/b", "/a", True), ("/a", "/a", True), ("/ab", "/a", False), ("/a", "/a/b", False), ("/a/b", "/", True)],
)
def test_a_path_below_a_folder(path: str, folder: str, below: bool) -> None:
    assert is_below(path, folder) is below
