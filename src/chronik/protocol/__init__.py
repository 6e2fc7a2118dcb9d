"""The Kafka wire: message definitions, the compiled codec, record batches, error codes. No IO."""
