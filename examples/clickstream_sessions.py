"""Clicks become sessions: topic `clicks` to topic `sessions`.

A session ends when a person has not clicked for ten minutes. Clicks that come more than half an hour late are left out.

    chronik topic create clicks && chronik topic create sessions
    chronik pipeline run examples/clickstream_sessions.py

`spark`, `bootstrap` and `checkpoint` are provided by `chronik pipeline run`. A restart goes on where it ended.
"""

from pyspark.sql import functions as F

SOURCE, TARGET = "clicks", "sessions"
AVAILABLE_NOW = True  # False: go on for ever

clicks = (
    spark.readStream.format("chronik")  # noqa: F821
    .option("kafka.bootstrap.servers", bootstrap)  # noqa: F821
    .option("subscribe", SOURCE)
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), "user STRING, page STRING, at TIMESTAMP").alias("click"))
    .select("click.*")
)

sessions = (
    clicks.withWatermark("at", "30 minutes")
    .groupBy("user", F.session_window("at", "10 minutes"))
    .agg(F.count("*").alias("clicks"), F.min("at").alias("began"), F.max("at").alias("ended"))
    .select(
        F.col("user").alias("key"),
        F.to_json(F.struct("user", "clicks", "began", "ended")).alias("value"),
    )
)

query = (
    sessions.writeStream.format("chronik")
    .option("kafka.bootstrap.servers", bootstrap)  # noqa: F821
    .option("topic", TARGET)
    .option("checkpointLocation", checkpoint("sessions"))  # noqa: F821
    .outputMode("append")
)
query = query.trigger(availableNow=True) if AVAILABLE_NOW else query.trigger(processingTime="2 seconds")
query.start().awaitTermination()
