"""An install without `chronik[pipeline]`: every command that needs it says so, and how to install it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import chronik

SOURCES = Path(chronik.__file__).parents[1]
EXTRA = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "deltalake")
DEADLINE_S = 60.0


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """What is installed here, without what only the extra brings."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(EXTRA):
            (folder / entry.name).symlink_to(entry)
    return folder


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-m", "chronik", *arguments],  # -S: nothing but the folders named below
        env={"PYTHONPATH": f"{SOURCES}:{packages}", "PATH": "", "CHRONIK_ENGINES": str(packages.parent / "engines")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        ("sql", "SELECT 1"),
        ("sql",),
        ("pipeline", "tables", "--once"),
        ("pipeline", "connect"),
        ("pipeline", "run", "job.py"),
        ("pipeline", "run", "job.sql"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_the_extra_names_it_and_how_to_install_it(
    packages: Path, command: tuple[str, ...]
) -> None:
    ended = run(packages, *command)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr == (
        "chronik: SQL and the pipeline need the extra chronik[pipeline], of which pyspark, pyarrow, numpy, pandas, "
        "deltalake are not installed. Install it with: pip install 'chronik[pipeline]'\n"
    )


def test_the_rest_works_without_it(packages: Path) -> None:
    assert run(packages, "pipeline", "--help").returncode == 0
    assert run(packages, "sql", "--stop").stdout.startswith("no engine is running for 127.0.0.1:9092, warehouse ")
