"""Consumer groups: their state machines, their committed offsets, and the coordinator that keeps both in a log.

| Module | What lives there |
|---|---|
| `classic_state` | the rules and tables of the classic protocol. Pure, as what follows |
| `classic_members`, `classic_core`, `classic_rebalance`, `classic` | its members, and its machine in three layers |
| `consumer_state` | the rules of KIP-848, and a group as the sum of its records |
| `consumer_group`, `consumer_requests`, `consumer_reconcile`, `assignors`, `topic_patterns` | its machine |
| `offset_book` | committed and pending offsets of the groups of one partition. Pure |
| `records` | what is written to `__consumer_offsets`, in Kafka's formats |
| `shard_state`, `shard` | everything one partition of that topic coordinates |
| `coordinator`, `offset_service`, `group_admin` | what handlers and the node call |

Writing to and loading from partitions of the topic, deadlines, and who coordinates what are in `chronik.coordination`.
"""
