"""``ipuperf run --fault``: what is refused before the script starts, in one line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "3"], "--seed is for --samples N"),
        (["--samples", "3"], "--samples is for a machine with faults"),
        (["--samples", "3", "--machine", "pod4"], "--samples is for a machine with faults"),
        (["--fault", "ipu 0 at 2"], "a rate of 2, allowed: above 0 and at most 1"),
        (["--machine", "pod4", "--fault", "ipu 4 at 0.5"], "there is no IPU 4, the IPUs are 0 to 3"),
        (["--machine", "gc200-1", "--fault", "link ipu0-ipu1 down"], "no link ipu0->ipu1"),
    ],
)
def test_refused(tmp_path: Path, words: list[str], message: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(9)\n", encoding="utf-8")
    done = CliRunner().invoke(cli, ["run", *words, str(script)])
    assert done.exit_code not in (0, 9)
    assert message in done.output + str(done.exception)
