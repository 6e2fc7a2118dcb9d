"""Chronik beside Apache Kafka on one machine: what `make bench` runs.

Both systems are started in turn on the same disk and loaded by the same clients: Kafka's own performance tools and
librdkafka; where those cannot measure a thing (single writes without a client's overhead, coordinators, failover) it is
`chronik bench` for both. Each row of the table names its client.

| Module | What lives there |
|---|---|
| `systems` | Kafka and Chronik as processes: start, stop, kill, memory, CPU |
| `java_tools`, `rdkafka_client` | the foreign clients and what they print |
| `measures` | one function per kind of measurement |
| `rows` | the table of what is measured, as data |
| `ledger` | results on disk, so that a run can be continued |
| `report`, `chart` | `docs/benchmarks.md` and the picture in it |
| `__main__` | the order of things |
"""
