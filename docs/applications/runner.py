"""Run applications of graphcore/examples as their pages here say, each in a copy of its folder.

    python docs/applications/runner.py --examples EXAMPLES                         # what each one needs
    python docs/applications/runner.py --examples EXAMPLES nlp/gpt2/pytorch ...    # runs these
    python docs/applications/runner.py --examples EXAMPLES --eager nlp/gpt2/pytorch

The files and commands are the blocks of the folder's section (``poptorch.md``, ``popxl.md``, ``tensorflow.md``), after
those of ``index.md``. Nothing is installed: what an application needs and Python does not find is printed, and that
application is left out. ``--eager`` trains a copy of each PopTorch model in PyTorch beside it and prints both losses
(``beside_eager.py``). What came out is in ``folders.csv``, from which ``index.md`` has its table.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGES = ("popxl.md", "poptorch.md", "tensorflow.md")
BESIDE = "index.md"
"""Its files make what programs would download."""
DATA = "make_data.py"

_SECTION = re.compile(r"^## [^\n]*\(`([\w/.-]+)`\)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LAUNCHER = """#!{python}
import sys
sys.path.insert(0, {here!r})
from beside_eager import watch
from ipuperf.cli import main
if __name__ == "__main__":
    watch()
    main()
"""
_PLAIN = """#!{python}
from ipuperf.cli import main
if __name__ == "__main__":
    main()
"""


def folders() -> list[dict[str, str]]:
    """The rows of ``folders.csv``."""
    with (HERE / "folders.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sections() -> dict[str, str]:
    """The text of each application's section, by its folder."""
    texts = ((HERE / page).read_text(encoding="utf-8") for page in PAGES)
    return {folder: text for page in texts for folder, text in _SECTION.findall(page) if _BLOCK.search(text)}


def missing(needs: str) -> list[str]:
    """Which of these modules, separated by spaces, Python does not find."""

    def there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # of `a.b`, `a` is not there
            return False

    return [name for name in needs.split() if not there(name)]


def blocks(text: str) -> Iterator[tuple[str, str, str, int]]:
    """Language, title, text and exit code of each block."""
    for block in _BLOCK.finditer(text):
        title, code = re.search(r'title="([^"]+)"', block["info"]), re.search(r"exit=(\d+)", block["info"])
        yield block["language"], title[1] if title else "", block["text"], int(code[1]) if code else 0


def run(folder: str, examples: Path, into: Path, eager: bool) -> bool:
    """Run the commands of an application's section in a copy; whether each ended as the page says."""
    copy, programs = into / folder, into / "programs"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(examples / folder, copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    shutil.copyfile(HERE / DATA, copy / DATA)
    programs.mkdir(exist_ok=True)
    launcher = programs / "ipuperf"
    launcher.write_text(
        (_LAUNCHER if eager else _PLAIN).format(python=sys.executable, here=str(HERE)), encoding="utf-8"
    )
    launcher.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    # The checkout itself would put its `models` before a program's folder of that name without an __init__.py.
    package = into / "packages" / "ipuperf"
    package.parent.mkdir(exist_ok=True)
    if not package.is_symlink():
        package.symlink_to(HERE.parents[1] / "ipuperf", target_is_directory=True)
    packages = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    environment = {"OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg", "WANDB_MODE": "disabled"}
    environment = {**environment, **os.environ, "PATH": path, "PYTHONPATH": packages}
    for language, title, text, expected in blocks((HERE / BESIDE).read_text(encoding="utf-8") + sections()[folder]):
        if title:
            (copy / title).parent.mkdir(parents=True, exist_ok=True)
            (copy / title).write_text(text, encoding="utf-8")
        elif language == "sh":
            print(text, flush=True)
            ended = subprocess.run(["bash", "-c", "set -e\n" + text], cwd=copy, env=environment, check=False)
            if ended.returncode != expected:
                print(f"{folder}: exit code {ended.returncode}, expected {expected}")
                return False
    return True


def main() -> int:
    """Run the command line; 1 if an application did not end as its page says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="all that the pages have a section of, if --all is given")
    parser.add_argument("--examples", type=Path, required=True, help="a checkout of graphcore/examples")
    parser.add_argument("--into", type=Path, default=Path("applications"), help="where the copies are made")
    parser.add_argument("--eager", action="store_true", help="train beside PyTorch and print both losses")
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    rows = {row["folder"]: row for row in folders()}
    chosen = list(sections()) if given.all else given.folders
    if unknown := sorted(set(chosen) - set(sections())):
        parser.error(f"no page has a section of {', '.join(unknown)}; there are {', '.join(sections())}")
    if not chosen:
        for folder, row in rows.items():
            absent = missing(row["needs"])
            state = (
                row["stops"] if folder not in sections() else f"not found: {', '.join(absent)}" if absent else "ready"
            )
            print(f"{folder}: {state}")
        return 0
    given.into.mkdir(parents=True, exist_ok=True)
    good = True
    for folder in chosen:
        if absent := missing(rows[folder]["needs"]):
            print(f"{folder}: left out, install {', '.join(absent)}")
            continue
        ended = run(folder, given.examples, given.into.resolve(), given.eager)
        print(f"{folder}: {'ran' if ended else 'failed'}", flush=True)
        good &= ended
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
