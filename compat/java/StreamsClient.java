import java.nio.file.Files;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams with exactly-once: `StreamsClient BOOTSTRAP INPUT OUTPUT COUNT` counts words of INPUT into OUTPUT until
 * COUNT records are counted, and stops.
 */
public class StreamsClient {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("application.id", "streams-" + args[1]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        settings.put("commit.interval.ms", "200");
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("state.dir", Files.createTempDirectory("streams").toString());
        int expected = Integer.parseInt(args[3]);
        Map<String, Long> counts = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[1])
                .groupBy((key, value) -> value)
                .count()
                .toStream()
                .peek((word, count) -> {
                    counts.put(word, count);
                    if (counts.values().stream().mapToLong(Long::longValue).sum() >= expected) {
                        done.countDown();
                    }
                })
                .to(args[2], Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            System.exit(1);
            return null;
        });
        streams.start();
        if (!done.await(60, TimeUnit.SECONDS)) {
            System.err.println("of " + expected + " records only these were counted: " + counts);
            System.exit(1);
        }
        streams.close(Duration.ofSeconds(30));
        System.out.println("counted=" + counts.values().stream().mapToLong(Long::longValue).sum());
    }
}
