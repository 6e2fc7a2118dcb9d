"""Health, metrics, the admin API and the console. Imported after the Kafka listener is up."""
