"""Consensus: a pure core, its own write-ahead log, the peer transport and the driver that joins them."""
