"""Kafka messages as Python classes, one module per family of APIs. Imported on first use by `chronik.protocol.api`."""
