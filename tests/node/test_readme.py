"""What the README tells a newcomer to type works as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.node_process import NodeProcess

README = Path(__file__).parents[2] / "README.md"
DEADLINE_S = 60.0


def block(language: str, containing: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return next(text for text in found if containing in text)


def run(node: NodeProcess, *command: str) -> str:
    environment = {**os.environ, "CHRONIK_BOOTSTRAP": node.bootstrap}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_message_of_the_readme(fresh_node: NodeProcess) -> None:
    fresh_node.start()
    script = block("sh", "chronik produce orders").replace(".venv/bin/chronik", f"{sys.executable} -m chronik")
    assert run(fresh_node, "sh", "-e", "-c", script).splitlines()[-1] == "hello"
    program = block("python", "KafkaProducer").replace("127.0.0.1:9092", fresh_node.bootstrap)
    assert run(fresh_node, sys.executable, "-c", program).strip() in ("b'hello'", 'b\'{"city": "Berlin"}\'')
