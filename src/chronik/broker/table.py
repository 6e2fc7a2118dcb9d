"""Which APIs this broker serves, and where. The dispatch table is data: to serve an API, add a line and write the
module.

A line names the module under `handlers/` and, where one is needed, the coordinator without which the API is not served.
The module defines, for an API called PRODUCE:

    def produce(request: ProduceRequest, ctx: RequestContext) -> ProduceResponse | PendingResponse | Coroutine | None
    def produce_failed(request: ProduceRequest, error: KafkaError) -> ProduceResponse | None

What `produce` returns, or awaits to when it is `async def`:
    a response          it is sent.
    None                the client expects no response.
    a PendingResponse   it is sent when it is finished; see context.py.
    a coroutine         it runs as a task, and later requests of the connection wait for it. A plain `def` may return
                        one for its slow cases.
Records are views of the received frame and die when the function returns or first awaits (connection.py, Rule 2): copy
them before. Everything else in a request is the handler's to keep.
`produce_failed` makes the response for an error that hit the request as a whole: an exception of the handler, or a
KafkaError that it raised. It must never carry error 0. None closes the connection.

Modules are imported on the first request, so a table with eighty APIs costs nothing at start-up.
"""

from __future__ import annotations

from typing import NamedTuple

from chronik.protocol.api import ApiKey


class ServedApi(NamedTuple):
    """One line of the dispatch table."""

    key: ApiKey
    module: str
    needs: str | None = None  # the entry of `Services.coordinators` that must be there


SERVED_APIS: tuple[ServedApi, ...] = (
    ServedApi(ApiKey.PRODUCE, "produce"),
    ServedApi(ApiKey.FETCH, "fetch"),
    ServedApi(ApiKey.LIST_OFFSETS, "list_offsets"),
    ServedApi(ApiKey.METADATA, "metadata"),
    ServedApi(ApiKey.OFFSET_COMMIT, "offset_commit", "groups"),
    ServedApi(ApiKey.OFFSET_FETCH, "offset_fetch", "groups"),
    ServedApi(ApiKey.FIND_COORDINATOR, "find_coordinator", "groups"),
    ServedApi(ApiKey.JOIN_GROUP, "join_group", "groups"),
    ServedApi(ApiKey.HEARTBEAT, "heartbeat", "groups"),
    ServedApi(ApiKey.LEAVE_GROUP, "leave_group", "groups"),
    ServedApi(ApiKey.SYNC_GROUP, "sync_group", "groups"),
    ServedApi(ApiKey.DESCRIBE_GROUPS, "describe_groups", "groups"),
    ServedApi(ApiKey.LIST_GROUPS, "list_groups", "groups"),
    ServedApi(ApiKey.API_VERSIONS, "api_versions"),
    ServedApi(ApiKey.CREATE_TOPICS, "create_topics"),
    ServedApi(ApiKey.DELETE_TOPICS, "delete_topics"),
    ServedApi(ApiKey.DELETE_RECORDS, "delete_records"),
    ServedApi(ApiKey.INIT_PRODUCER_ID, "init_producer_id"),
    ServedApi(ApiKey.OFFSET_FOR_LEADER_EPOCH, "offset_for_leader_epoch"),
    ServedApi(ApiKey.ADD_PARTITIONS_TO_TXN, "add_partitions_to_txn", "transactions"),
    ServedApi(ApiKey.ADD_OFFSETS_TO_TXN, "add_offsets_to_txn", "transactions"),
    ServedApi(ApiKey.END_TXN, "end_txn", "transactions"),
    ServedApi(ApiKey.WRITE_TXN_MARKERS, "write_txn_markers", "transactions"),
    ServedApi(ApiKey.TXN_OFFSET_COMMIT, "txn_offset_commit", "transactions"),
    ServedApi(ApiKey.DESCRIBE_CONFIGS, "describe_configs"),
    ServedApi(ApiKey.ALTER_CONFIGS, "alter_configs"),
    ServedApi(ApiKey.DESCRIBE_LOG_DIRS, "describe_log_dirs"),
    ServedApi(ApiKey.CREATE_PARTITIONS, "create_partitions"),
    ServedApi(ApiKey.INCREMENTAL_ALTER_CONFIGS, "alter_configs"),
    ServedApi(ApiKey.DELETE_GROUPS, "delete_groups", "groups"),
    ServedApi(ApiKey.ELECT_LEADERS, "elect_leaders", "controller"),
    ServedApi(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "partition_reassignments"),
    ServedApi(ApiKey.LIST_PARTITION_REASSIGNMENTS, "partition_reassignments"),
    ServedApi(ApiKey.OFFSET_DELETE, "offset_delete", "groups"),
    ServedApi(ApiKey.DESCRIBE_QUORUM, "describe_quorum", "quorum"),
    ServedApi(ApiKey.UPDATE_FEATURES, "cluster_admin"),
    ServedApi(ApiKey.DESCRIBE_CLUSTER, "describe_cluster"),
    ServedApi(ApiKey.DESCRIBE_PRODUCERS, "describe_producers"),
    ServedApi(ApiKey.UNREGISTER_BROKER, "cluster_admin"),
    ServedApi(ApiKey.DESCRIBE_TRANSACTIONS, "describe_transactions", "transactions"),
    ServedApi(ApiKey.LIST_TRANSACTIONS, "list_transactions", "transactions"),
    ServedApi(ApiKey.CONSUMER_GROUP_HEARTBEAT, "consumer_group_heartbeat", "groups"),
    ServedApi(ApiKey.CONSUMER_GROUP_DESCRIBE, "consumer_group_describe", "groups"),
    ServedApi(ApiKey.LIST_CONFIG_RESOURCES, "describe_configs"),
    ServedApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "describe_topic_partitions"),
    ServedApi(ApiKey.ADMINISTER, "administer", "administration"),
)
