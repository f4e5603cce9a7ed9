"""What stands around a program in its process and in those that it starts: names, signals, last words."""

import importlib.metadata
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from answers import answer
from rows import Golden

from ipuperf.runtime import children, distributions, install, keras_names, reaching, script
from ipuperf.runtime.replacing import replaced
from ipuperf.runtime.reports import uninterrupted
from ipuperf.runtime.run_context import RunContext
from ipuperf.runtime.settings import RunSettings

HERE = str(Path(children.__file__).parent)


# -- processes that a program starts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "before", "names", "paths"),
    [
        ({"a": "x.a", "b": "x.b"}, None, "a=x.a,b=x.b", [HERE]),
        ({"a": "x"}, ["/p", "", HERE, "/q"], "a=x", [HERE, "/p", "/q"]),
        ({}, ["/p", HERE], None, ["/p"]),
        ({}, [HERE], None, None),
        ({}, None, None, None),
    ],
)
def test_what_a_child_inherits(
    targets: dict[str, str], before: list[str] | None, names: str | None, paths: list[str] | None, monkeypatch: Any
) -> None:
    monkeypatch.setenv(children.VARIABLE, "old=one")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(before))
    children.announce(targets)
    assert os.environ.get(children.VARIABLE) == names
    assert os.environ.get("PYTHONPATH") == (None if paths is None else os.pathsep.join(paths))


@pytest.mark.parametrize(
    ("given", "names"), [("", None), ("a=x.a", {"a": "x.a"}), ("a=x=y,b=z", {"a": "x=y", "b": "z"})]
)
def test_what_a_child_installs(given: str, names: dict[str, str] | None, monkeypatch: Any) -> None:
    said: list[Any] = []
    monkeypatch.setattr(install, "install", lambda found, *, force: said.append((found, force)))
    monkeypatch.setenv(children.VARIABLE, given)
    children.begin()
    assert said == ([] if names is None else [(names, True)])


def test_the_first_thing_of_a_child(tmp_path: Path, monkeypatch: Any) -> None:
    """It installs the names and runs the ``sitecustomize`` that it hides, if there is one."""
    said: list[str] = []
    monkeypatch.setattr(children, "begin", lambda: said.append("names"))
    monkeypatch.setitem(sys.modules, "said_here", SimpleNamespace(said=said))
    code = compile(Path(HERE, "sitecustomize.py").read_text(), str(Path(HERE, "sitecustomize.py")), "exec")
    monkeypatch.setattr(sys, "path", [HERE, str(tmp_path)])
    exec(code, {"__file__": str(Path(HERE, "sitecustomize.py")), "__name__": "sitecustomize"})
    (tmp_path / "sitecustomize.py").write_text("from said_here import said; said.append('theirs')")
    exec(code, {"__file__": str(Path(HERE, "sitecustomize.py")), "__name__": "sitecustomize"})
    assert said == ["names", "names", "theirs"]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """An installed package ``realone``, for which ``json`` stands."""
    (tmp_path / "realone").mkdir()
    (tmp_path / "realone" / "__init__.py").write_text("mine = 1")
    (tmp_path / "realone" / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    install.uninstall({"realone", "notthere"})
    for name in [name for name in sys.modules if name.partition(".")[0] == "realone"]:
        del sys.modules[name]


def test_the_real_package_for_a_while(package: Path) -> None:
    import json

    with install.as_installed("realone") as found:
        assert found is not None, "nothing stands for it"
        assert found.mine == 1
    install.install({"realone": "json", "notthere": "json"}, force=True)
    assert sys.modules.get("realone") is None
    assert importlib.import_module("realone.decoder") is json.decoder
    for _ in range(2):
        with install.as_installed("realone") as found:
            assert found is not None
            assert found.mine == 1
            importlib.import_module("realone.part")
            assert "realone" not in install.installed_names()
        assert importlib.import_module("realone") is json
        assert sys.modules["realone.decoder"] is json.decoder
        assert install.installed_names()["realone"] == "json"
    with install.as_installed("notthere") as found:
        assert found is None
    assert importlib.import_module("notthere") is json
    install.uninstall({"realone"})
    assert importlib.import_module("realone").mine == 1
    assert install.installed_names() == {"notthere": "json"}


def test_versions_of_packages_that_ours_stand_for(package: Path, monkeypatch: Any) -> None:
    module = ModuleType("with_version")
    module.__version__ = "3.4"
    monkeypatch.setitem(sys.modules, "with_version", module)
    install.install({"realone": "with_version", "notthere": "types"}, force=True)
    assert importlib.metadata.version("realone") == "3.4"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("notthere")
    found = distributions.StandingIn("name", "1")
    assert [found.read_text(name) is not None for name in ("METADATA", "RECORD")] == [True, False]
    assert found.locate_file("a/b") == Path(install.__file__).parents[1] / "a" / "b"


def _found(name: str) -> Any:
    if name.startswith("tf_keras.src.missing."):
        raise ModuleNotFoundError(name)
    return None if name.endswith("nothing") else object()


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("keras.engine.input_spec", "tf_keras.src.engine.input_spec"),
        ("tf_keras.layers", "tf_keras.src.layers"),
        ("keras", None),
        ("keras.src.layers", None),
        ("torch.layers", None),
        ("keras.optimizer_v2", "tf_keras.src.optimizers.legacy"),
        ("keras.optimizer_v2.adam", "tf_keras.src.optimizers.legacy.adam"),
        ("keras.optimizer_v2x", "tf_keras.src.optimizer_v2x"),
        ("keras.saving.saved_model.load", "tf_keras.src.saving.legacy.saved_model.load"),
        ("keras.nothing", None),
        ("keras.missing.part", None),
    ],
)
def test_where_a_module_of_keras_is(name: str, module: str | None, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", _found)
    assert keras_names.source_module(name) == module


def test_a_module_below_one_of_keras_sources(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", _found)
    for name, real in (("keras.engine", "tf_keras.src.engine"), ("keras.other", "keras.other")):
        monkeypatch.setitem(sys.modules, name, ModuleType(real))
    monkeypatch.setitem(sys.modules, "tf_keras.src.engine", ModuleType("tf_keras.src.engine"))
    found = [keras_names.below_source(name) for name in ("keras.engine.x", "keras.other.x", "keras.free.x")]
    assert found == ["tf_keras.src.engine.x", None, None]
    assert keras_names.below_source("tf_keras.src.engine.x") is None


def test_optimizers_name_the_earlier_classes_and_the_later_again(monkeypatch: Any) -> None:
    class Sgd:
        pass

    class Later:
        pass

    module = ModuleType("optimizers")
    vars(module).update(SGD=Later, AdamW=Later, legacy=SimpleNamespace(SGD=Sgd, VERSION=2))
    monkeypatch.setitem(sys.modules, keras_names._OPTIMIZERS[0], module)
    for name in keras_names._OPTIMIZERS[1:]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(keras_names, "_later", {})
    for _ in range(2):  # the second time nothing new is kept
        keras_names.name_earlier()
        assert (module.SGD, module.AdamW, hasattr(module, "VERSION")) == (Sgd, Later, False)
    keras_names.name_later()
    assert (module.SGD, module.AdamW, keras_names._later) == (Later, Later, {})
    assert keras_names.optimizers_spec("keras.optimizers", None) is None


def test_keras_stands_for_tensorflows_copy_and_gives_it_back(monkeypatch: Any) -> None:
    copy, part, around = ModuleType("copy"), ModuleType("part"), ModuleType("tensorflow.python")
    monkeypatch.setattr(keras_names, "_private", {})
    for name in [name for name in sys.modules if name.startswith(keras_names.PRIVATE)]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in (
        (keras_names.PRIVATE, copy),
        (f"{keras_names.PRIVATE}.a", part),
        ("tensorflow.python", around),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    names = [keras_names.PRIVATE, f"{keras_names.PRIVATE}.a", f"{keras_names.PRIVATE}x"]
    assert not any(map(keras_names.is_private, names))
    keras_names.leave_private()
    assert sys.modules[keras_names.PRIVATE] is copy
    keras_names.stand_for_private()
    assert keras_names.PRIVATE not in sys.modules
    assert [keras_names.is_private(name) for name in names] == [True, True, False]
    sys.modules[f"{keras_names.PRIVATE}.a"] = ModuleType("ours")
    keras_names.leave_private()
    assert (sys.modules[keras_names.PRIVATE], sys.modules[f"{keras_names.PRIVATE}.a"]) == (copy, part)
    assert around.keras is copy
    assert not keras_names._private


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
def test_signals_wait_for_the_end_of_a_block() -> None:
    said: list[Any] = []
    handlers = {number: lambda n, frame: said.append(n) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with uninterrupted():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "what is ignored stays so"
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            said.append("end")
        assert said == ["end", signal.SIGTERM], "the first that came is raised, once"
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        with pytest.raises(KeyError), uninterrupted():
            raise KeyError
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        for number, handler in {**before, signal.SIGHUP: ignored}.items():
            signal.signal(number, handler)


def test_other_threads_meet_no_signals() -> None:
    said: list[object] = []

    def work() -> None:
        with uninterrupted():
            said.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [signal.getsignal(signal.SIGINT)]


# -- values for a while ------------------------------------------------------------------------------------------------


def test_attributes_come_back_as_they_were_held() -> None:
    class Owner:
        kept = 1

        @classmethod
        def made(cls) -> str:
            return cls.__name__

    class Below(Owner):
        pass

    held = vars(Owner)["made"]
    with pytest.raises(KeyError), replaced(Owner, made=lambda: "other", kept=2):  # noqa: PT012
        assert (Owner.made(), Owner.kept) == ("other", 2)
        raise KeyError
    assert (vars(Owner)["made"], Owner.kept, Below.made()) == (held, 1, "Below")
    one = Owner()
    with replaced(one, kept=3):
        assert (one.kept, Owner.kept) == (3, 1)
    assert one.kept == 1


def test_what_a_process_keeps() -> None:
    context = RunContext()
    one = context.of(dict)
    assert context.of(dict) is one
    assert context.of(list) is not one
    with context.fresh(dict) as other:
        assert context.of(dict) is other is not one
    assert context.of(dict) is one
    context.clocks.append("clock")
    with pytest.raises(KeyError), context.afresh():  # noqa: PT012
        assert (context.of(dict) is one, context.clocks) == (False, [])
        raise KeyError
    assert (context.of(dict) is one, context.clocks) == (True, ["clock"])
    stack: list[int] = [1]
    with context.entered(stack, 2) as value:
        assert (value, stack) == (2, [1, 2])
        stack += [3, 4]
    assert stack == [1]


# -- programs ----------------------------------------------------------------------------------------------------------


PROGRAMS: dict[str, tuple[str, int]] = {
    "fails": ("print('x'); raise ValueError('two\\n  lines')", 0),
    "exits": ("import sys; sys.exit('the last\\nwords')", 0),
    "exits with a number": ("import sys; print('e', file=sys.stderr); sys.exit(3)", 0),
    "exits without a word": ("import sys; sys.exit(3)", 0),
    "makes none": ("print('x')", 0),
    "makes one": ("SESSION", 1),
    "runs it": ("SESSION\nsession.run()\nprint('not here')", 0),
    "catches": ("SESSION\ntry:\n    session.run()\nexcept Exception:\n    pass\nx = 1 / 0", 0),
    "makes it and exits": ("SESSION\nraise SystemExit(0)", 0),
    "makes it and fails": ("MADE\nraise SystemExit(4)", 0),
    "loads it and fails": ("SESSION\nraise SystemExit(4)", 0),
}
SESSION = """
import popxl
from popxl import ops
ir = popxl.Ir()
with ir.main_graph:
    ops.host_store(popxl.d2h_stream((), popxl.float32), popxl.variable(1.0) + 1)
session = popxl.Session(ir, "ipu_hw").__enter__()
"""
MADE = SESSION.replace(".__enter__()", "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_until_a_session(name: str, golden: Golden, tmp_path: Path, capsys: Any) -> None:
    text, session = PROGRAMS[name]
    (tmp_path / "p.py").write_text(text.replace("SESSION", SESSION).replace("MADE", MADE))
    settings = RunSettings()
    said = answer(lambda: reaching.executable_of(tmp_path / "p.py", [], settings, session).runs)
    assert capsys.readouterr() == ("", ""), "what the program prints is not shown"
    golden({"says": said.replace(str(tmp_path), ""), "sessions": len(settings.executables)})


@pytest.mark.parametrize(
    ("code", "number", "said"),
    [
        (None, 0, ""),
        (3, 3, ""),
        (True, 1, ""),
        (False, 0, ""),
        ("words", 1, "words\n"),
        ([], 1, "[]\n"),
        (2.0, 1, "2.0\n"),
    ],
)
def test_exit_codes(code: Any, number: int, said: str, capsys: Any) -> None:
    found = script._exit_code(SystemExit(code))
    assert (found, type(found), capsys.readouterr().err) == (number, int, said)


def test_a_process_without_a_main_module(monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "__main__")
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    before = list(sys.argv), list(sys.path)
    with script._process_state(["p.py", "a"], "/programs", ModuleType("main")):
        assert (sys.argv, sys.path[0], sys.modules["__main__"].__name__) == (["p.py", "a"], "/programs", "main")
        sys.path.append("/more")
        sys.excepthook = print
    assert (sys.argv, sys.path) == before
    assert "__main__" not in sys.modules
    assert sys.excepthook is sys.__excepthook__


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/programs/a.py", True), ("/programs/b/a.py", True), ("/programsx/a.py", False), ("/a.py", False),
        ("/programs/site-packages/a.py", False), ("/programs/x/dist-packages/a.py", False),
        ("/programs/lib/a.py", False), ("/programs/libx/a.py", True),
    ],
)  # fmt: skip
def test_modules_of_a_program(file: str, users: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(script, "library_folders", lambda: ("/programs/lib", "/python"))
    assert script._is_users.__wrapped__(file, "/programs") is users
    assert script._is_users.__wrapped__("/python/mine/a.py", "/python/mine") is True
