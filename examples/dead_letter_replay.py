"""Dead letters are mended and written back to their topic.

Orders of an old program were written in single quotes, which is no JSON: they are in the table `orders__dead_letter`.
This reads them there, mends what it can, and writes them to `orders` with a header that says where they come from.

    chronik pipeline run examples/dead_letter_replay.py

`spark`, `bootstrap` and `warehouse` are provided by `chronik pipeline run`.
"""

from deltalake import DeltaTable
from pyspark.sql import functions as F

TOPIC = "orders"

letters = spark.createDataFrame(  # noqa: F821
    DeltaTable(f"{warehouse}/{TOPIC}__dead_letter").to_pyarrow_table(  # noqa: F821
        columns=["partition", "offset", "key", "value"]
    )
)

mended = (
    letters.withColumn("value", F.translate(F.col("value").cast("string"), "'", '"'))
    .where(F.col("value").startswith("{"))
    .withColumn("origin", F.format_string("%d/%d", "partition", "offset").cast("binary"))
    .select(
        "key",
        "value",
        F.array(F.struct(F.lit("replayed-from").alias("key"), F.col("origin").alias("value"))).alias("headers"),
    )
)

mended.write.format("chronik").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC).mode(  # noqa: F821
    "append"
).save()
print(f"replayed {mended.count()} of {letters.count()} dead letters")
