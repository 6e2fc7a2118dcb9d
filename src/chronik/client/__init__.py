"""A small blocking Kafka client of our own, for the command line, the pipeline and the tests."""
