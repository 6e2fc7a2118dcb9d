"""The edge where Kafka requests become calls: listener, connection, router, handlers."""
