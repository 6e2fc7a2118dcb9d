"""Chronik: a Kafka-compatible streaming platform. See ARCHITECTURE.md for the rooms of the house."""

__version__ = "0.1.0"
