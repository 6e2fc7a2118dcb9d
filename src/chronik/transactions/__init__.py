"""Transactions: their state machine, the coordinator that keeps it in a log, and the markers that end them.

| Module | What lives there |
|---|---|
| `state` | every state and rule of a transactional id. Pure |
| `records` | what is written to `__transaction_state`, in Kafka's format |
| `shard` | the ids of one partition of that topic |
| `coordinator` | what handlers and the node call; timeouts, completion |
| `marker_delivery`, `marker_writer` | markers, at the coordinator and at the leaders of partitions |
| `membership` | leaders ask the coordinator whether a partition is in a transaction |
"""
