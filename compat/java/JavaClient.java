import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own Java client, with its defaults (so idempotence is on), against a broker:
 * `JavaClient BOOTSTRAP TOPIC COUNT REPLICATION`. Creates, describes and alters the topic, writes COUNT records with every
 * codec, reads them back by assignment, deletes the topic, and prints one `key=value` line for each thing it saw.
 */
public class JavaClient {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        short replication = Short.parseShort(args[3]);
        Properties common = new Properties();
        common.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(common)) {
            System.out.println("brokers=" + admin.describeCluster().nodes().get().stream().map(n -> n.id()).sorted().toList());
            System.out.println("controller=" + admin.describeCluster().controller().get().id());
            admin.createTopics(List.of(new NewTopic(topic, 1, replication))).all().get();
            var description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            System.out.println("partitions=" + description.partitions().size());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            var configs = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            System.out.println("retention=" + configs.get("retention.ms").value());
            int produced = 0;
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                produced += produce(common, topic, codec, count);
            }
            System.out.println("produced=" + produced);
            System.out.println("consumed=" + consume(common, topic, produced));
            admin.deleteTopics(List.of(topic)).all().get();
            System.out.println("deleted=true");
        }
    }

    private static int produce(Properties common, String topic, String codec, int count) throws Exception {
        Properties settings = new Properties();
        settings.putAll(common);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "5");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        List<Future<RecordMetadata>> pending = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int n = 0; n < count; n++) {
                pending.add(producer.send(new ProducerRecord<>(topic, 0, ("k" + n).getBytes(), (codec + n).getBytes())));
            }
            for (Future<RecordMetadata> one : pending) {
                one.get();
            }
        }
        return pending.size();
    }

    private static int consume(Properties common, String topic, int expected) {
        Properties settings = new Properties();
        settings.putAll(common);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        long next = 0;
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            TopicPartition where = new TopicPartition(topic, 0);
            consumer.assign(List.of(where));
            consumer.seekToBeginning(List.of(where));
            while (next < expected && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.offset() != next) {
                        throw new IllegalStateException("offset " + record.offset() + " where " + next + " was due");
                    }
                    next++;
                }
            }
            if (consumer.endOffsets(List.of(where)).get(where) != next) {
                throw new IllegalStateException("end offset differs from " + next);
            }
        }
        return (int) next;
    }
}
