// kafkajs against a broker: `node client.js BOOTSTRAP TOPIC COUNT` creates the topic, writes and reads COUNT messages
// through a consumer group, and prints one line of JSON with what it saw.
const { Kafka, logLevel, CompressionTypes } = require("kafkajs");

async function main([bootstrap, topic, countText]) {
  const count = Number(countText);
  const kafka = new Kafka({ clientId: "compat", brokers: [bootstrap], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  const cluster = await admin.describeCluster();
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 1 }] });
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = [];
  for (let n = 0; n < count; n++) messages.push({ key: `k${n}`, value: `v${n}`, headers: { n: String(n) } });
  await producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages });
  await producer.disconnect();
  const offsets = await admin.fetchTopicOffsets(topic);
  const consumer = kafka.consumer({ groupId: `group-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const seen = [];
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`only ${seen.length} of ${count} messages`)), 60000);
    consumer
      .run({
        eachMessage: async ({ message }) => {
          seen.push([message.key.toString(), message.value.toString(), message.headers.n.toString()]);
          if (seen.length === count) { clearTimeout(timer); resolve(); }
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  const high = Number(offsets[0].high);
  console.log(JSON.stringify({ brokers: cluster.brokers.map((b) => b.nodeId), controller: cluster.controller, high, seen }));
}

main(process.argv.slice(2)).catch((error) => { console.error(error); process.exit(1); });
