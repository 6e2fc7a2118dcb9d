import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Two members of one group in one process: `GroupClient BOOTSTRAP TOPIC GROUP PROTOCOL ASSIGNOR COUNT`. Both subscribe;
 * once both have partitions, they read COUNT records between them, commit, and leave. Prints what each owned.
 */
public class GroupClient {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("group.protocol", args[3]);
        if (args[3].equals("classic")) {
            settings.put("partition.assignment.strategy", args[4]);
            settings.put("session.timeout.ms", "6000");
        }
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        int expected = Integer.parseInt(args[5]);
        Set<String> seen = new TreeSet<>();
        try (KafkaConsumer<String, String> first = new KafkaConsumer<>(settings);
                KafkaConsumer<String, String> second = new KafkaConsumer<>(settings)) {
            List<KafkaConsumer<String, String>> members = List.of(first, second);
            for (KafkaConsumer<String, String> member : members) {
                member.subscribe(List.of(args[1]));
            }
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            boolean shared = false;
            long reached = 0;
            while ((seen.size() < expected || !shared || reached < expected) && System.nanoTime() < deadline) {
                for (KafkaConsumer<String, String> member : members) {
                    for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(50))) {
                        seen.add(record.value());
                    }
                }
                Set<TopicPartition> both = new java.util.HashSet<>(first.assignment());
                both.addAll(second.assignment());
                shared = !first.assignment().isEmpty() && !second.assignment().isEmpty()
                        && first.assignment().size() + second.assignment().size() == both.size();
                reached = members.stream().mapToLong(GroupClient::reached).sum();
            }
            System.out.println("owned=" + (first.assignment().size() + second.assignment().size()));
            System.out.println("shared=" + shared);
            for (KafkaConsumer<String, String> member : members) {
                member.commitSync();
            }
        }
        System.out.println("seen=" + seen.size());
    }

    /** How far a member is in the partitions it owns at this moment. */
    private static long reached(KafkaConsumer<String, String> member) {
        long sum = 0;
        try {
            for (TopicPartition owned : member.assignment()) {
                sum += member.position(owned);
            }
        } catch (IllegalStateException movedMeanwhile) {
            return 0;
        }
        return sum;
    }
}
