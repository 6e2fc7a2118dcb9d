"""Apache Kafka's own command-line tools against one real node and against its files."""

from __future__ import annotations

from collections.abc import Callable

from harness.node_process import NodeProcess

TOOLS = "org.apache.kafka.tools"


def test_kafka_topics_creates_describes_alters_and_deletes(
    node: NodeProcess, java: Callable[..., str], topic: str
) -> None:
    tool = (f"{TOOLS}.TopicCommand", "--bootstrap-server", node.bootstrap)
    java(*tool, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1")
    assert topic in java(*tool, "--list").split()
    described = java(*tool, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described and "Leader: 1" in described
    java(*tool, "--alter", "--topic", topic, "--partitions", "4")
    assert "PartitionCount: 4" in java(*tool, "--describe", "--topic", topic)
    java(*tool, "--delete", "--topic", topic)
    assert topic not in java(*tool, "--list").split()


def test_kafka_configs_alters_topics_and_brokers(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    java(f"{TOOLS}.TopicCommand", "--bootstrap-server", node.bootstrap, "--create", "--topic", topic)
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", node.bootstrap)
    java(*tool, "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=7200000")
    assert "retention.ms=7200000" in java(*tool, "--describe", "--entity-type", "topics", "--entity-name", topic)
    java(*tool, "--alter", "--entity-type", "topics", "--entity-name", topic, "--delete-config", "retention.ms")
    assert "retention.ms=" not in java(*tool, "--describe", "--entity-type", "topics", "--entity-name", topic)
    all_settings = java(*tool, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert "default.replication.factor=" in all_settings and "num.partitions=" in all_settings


def test_the_console_tools_and_get_offsets(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    java(f"{TOOLS}.TopicCommand", "--bootstrap-server", node.bootstrap, "--create", "--topic", topic)
    lines = "".join(f"line {n}\n" for n in range(50))
    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", node.bootstrap, "--topic", topic, text_in=lines)
    consumer = (f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", node.bootstrap, "--topic", topic)
    read = java(*consumer, "--partition", "0", "--offset", "earliest", "--max-messages", "50", "--timeout-ms", "30000")
    assert read == lines
    offsets = java(f"{TOOLS}.GetOffsetShell", "--bootstrap-server", node.bootstrap, "--topic", topic)
    assert offsets.strip() == f"{topic}:0:50"


def test_dump_log_reads_what_the_node_wrote(node: NodeProcess, java: Callable[..., str], topic: str) -> None:
    java(f"{TOOLS}.TopicCommand", "--bootstrap-server", node.bootstrap, "--create", "--topic", topic)
    lines = "".join(f"line {n}\n" for n in range(20))
    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", node.bootstrap, "--topic", topic, text_in=lines)
    segment = next(node.data_dir.rglob(f"{topic}-0/00000000000000000000.log"))
    dumped = java("kafka.tools.DumpLogSegments", "--files", str(segment), "--print-data-log")
    assert "isvalid: true" in dumped and "isvalid: false" not in dumped
    assert dumped.count("payload: line ") == 20
