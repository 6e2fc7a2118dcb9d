"""Administration of a cluster through its brokers, as thin typed functions over a `Cluster`.

`topics`, `configs`, `cluster`, `groups`, `transactions`: each module is one kind of thing. No state is kept here.
"""
