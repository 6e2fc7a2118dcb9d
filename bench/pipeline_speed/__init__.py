"""How fast the pipeline on Spark is, beside Spark's own Kafka connector on the same topics."""
