"""Partition logs on disk: segments, indexes, recovery, retention, compaction. No network, no cluster."""
