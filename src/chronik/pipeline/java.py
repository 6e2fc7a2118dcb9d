"""Looking for Java, which Spark needs and nothing else in Chronik does."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

OLDEST_JAVA = 17
_PATIENCE_S = 30.0


class JavaMissing(RuntimeError):
    """There is no Java that Spark can run on; the text has the command that installs one."""


def require_java() -> Path:
    """The `java` that Spark will use. Raises JavaMissing when there is none, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is no `java` on PATH"
        raise JavaMissing(f"Spark needs Java {OLDEST_JAVA} or newer, and {where}. Install it with: {install_command()}")
    version = _version(found)
    if version is not None and version < OLDEST_JAVA:
        raise JavaMissing(
            f"Spark needs Java {OLDEST_JAVA} or newer, {found} is Java {version}. Install it with: {install_command()}"
        )
    return Path(found)


def install_command() -> str:
    """The command that installs Java on this kind of machine."""
    if platform.system() == "Darwin":
        return "brew install openjdk@17"
    for tool, command in (
        ("apt-get", "sudo apt-get install -y openjdk-17-jre-headless"),
        ("dnf", "sudo dnf install -y java-17-openjdk-headless"),
        ("apk", "sudo apk add openjdk17-jre-headless"),
    ):
        if shutil.which(tool):
            return command
    return "the package manager of your system (a package such as openjdk-17-jre-headless)"


def _version(java: str) -> int | None:
    """The major version, or None where the answer cannot be read: then Spark is left to judge."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else None
