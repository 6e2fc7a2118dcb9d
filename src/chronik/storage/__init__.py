"""Partition logs on disk: segments, indexes, recovery, retention, compaction. No network, no cluster.

| Module | What lives there |
|---|---|
| `manager` | `LogManager`: opens, finds, creates, deletes the logs of a node |
| `partition_log` | `PartitionLog`: one log, made of `log_state`, `log_syncs`, `log_appends`, `log_reads`, `log_cuts` |
| `segment`, `indexes`, `aborted_index`, `batch_walk` | files of a log and how to find things in them |
| `producers`, `producer_snapshot`, `replay`, `epochs` | what a log remembers of producers and leaders |
| `group_commit` | syncing many logs with few threads |
| `recovery`, `checkpoints`, `checkpointing` | opening after a crash, and what makes that short |
| `housekeeping`, `retention`, `cleaner`, `compaction`, `segment_swap`, `deletion` | background work |
| `files`, `open_files`, `ranges` | the file interface, the descriptor cache, checked byte ranges |
"""

from chronik.storage.files import File, FileSystem, OsFileSystem
from chronik.storage.log_config import LogConfig
from chronik.storage.log_state import AppendInfo
from chronik.storage.manager import LogManager, RecoveryProgress
from chronik.storage.partition_log import OpenTransaction, PartitionLog, ProducerInfo

__all__ = [
    "AppendInfo",
    "File",
    "FileSystem",
    "LogConfig",
    "LogManager",
    "OpenTransaction",
    "OsFileSystem",
    "PartitionLog",
    "ProducerInfo",
    "RecoveryProgress",
]
