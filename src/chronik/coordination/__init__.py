"""What the coordinators of groups and of transactions share: state that lives in partitions of an internal topic.

| Module | What lives there |
|---|---|
| `topic_access` | which partition a key belongs to, who leads it, and how the topic comes to be |
| `loader` | reading a partition when this node begins to lead it |
| `log_writer` | writing to it while this node leads it |
| `timers` | one heap of deadlines for all that a coordinator looks after |
"""
