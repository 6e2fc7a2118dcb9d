"""`chronik bench`: load and measurements against any Kafka-compatible cluster.

Load comes from processes of their own (`fleet` starts them, `worker` is what runs in them), which speak through
`chronik.client` with batches that were built beforehand. Nothing here looks into a broker: what is measured of broker
processes is what the kernel says of them.

| Module | What lives there |
|---|---|
| `histogram` | latencies, every one of them, in buckets of one per cent |
| `batches` | record batches made in advance and stamped per send |
| `arrivals` | when messages are due: a schedule that does not wait for the broker, or as fast as possible |
| `specs`, `tally` | what a worker is told, and what it tells |
| `sender`, `reader`, `committer`, `transactor` | the kinds of worker |
| `worker`, `fleet` | the worker process, and the processes together |
| `joining` | the classic group protocol at the wire: join, sync, leave |
| `topic_creation`, `group_load`, `failover` | measurements with a course of their own |
| `broker_processes`, `machine` | CPU and memory of local brokers; what this machine is |
| `result`, `progress` | what is printed at the end, and meanwhile |
"""
