"""The data folder of every released format opens, with all that was written, and can be written on."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from chronik.client.cluster import Cluster
from harness.node_process import NodeProcess
from harness.released_folder import FOLDERS, SETTINGS, Written, check

VERSIONS = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir())


def copied(version: str, node: NodeProcess) -> Written:
    """Puts a copy of the folder where the node looks for its data."""
    shutil.copytree(FOLDERS / version / "node", node.data_dir)
    return msgspec.json.decode((FOLDERS / version / "written.json").read_bytes(), type=Written)


def remove_what_can_be_made_anew(logs: Path) -> None:
    """Without these a node reads and checks all records."""
    for path in [*logs.glob("*-checkpoint"), logs / ".kafka_cleanshutdown"]:
        path.unlink()
    for path in list(logs.glob("*/*")):
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()


@pytest.mark.parametrize("ended", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_data_folder_opens_with_everything_in_it(tmp_path: Path, version: str, ended: str) -> None:
    node = NodeProcess(tmp_path, settings=SETTINGS)
    written = copied(version, node)
    if ended == "killed":
        remove_what_can_be_made_anew(node.data_dir / "logs")
    try:
        node.start()
        with Cluster(node.bootstrap) as cluster:
            check(cluster, written)
    finally:
        node.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_data_folder_has_some_of_every_kind_of_file(version: str) -> None:
    names = [path.relative_to(FOLDERS / version / "node") for path in (FOLDERS / version / "node").rglob("*")]
    metadata = {path.name for path in names if path.parent == Path("metadata")}
    snapshots = [name for name in metadata if name.startswith("snapshot-") and "-0000000000." not in name]
    assert snapshots and any(name.startswith("wal-") for name in metadata), "a snapshot, and a log that goes on"
    assert {"directory.id", "cluster.id"} <= metadata
    assert {"recovery-point-offset-checkpoint"} <= {path.name for path in names if path.parent == Path("logs")}
    suffixes = {path.suffix for path in names if path.parent.name == "orders-0"}
    assert {".log", ".index", ".timeindex", ".snapshot"} <= suffixes
    assert len([path for path in names if path.parent.name == "orders-0" and path.suffix == ".log"]) > 1
