import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An application with the usual settings: `SteadyClient BOOTSTRAP TOPIC` writes numbers and reads them back in a group
 * until its standard input ends. Prints `reading` when it has read something, and in the end what it wrote and read,
 * what is in the topic more than once, and every error that reached it.
 */
public class SteadyClient {
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private final Properties settings = new Properties();
    private final String topic;
    private final List<String> errors = Collections.synchronizedList(new ArrayList<>());
    private final Set<String> written = ConcurrentHashMap.newKeySet();
    private final Map<String, String> read = new ConcurrentHashMap<>();
    private final AtomicInteger twice = new AtomicInteger();
    private volatile boolean stopping = false;

    private SteadyClient(String bootstrap, String topic) {
        this.topic = topic;
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
    }

    public static void main(String[] args) throws Exception {
        SteadyClient client = new SteadyClient(args[0], args[1]);
        Thread writer = client.start(client::write);
        Thread reader = client.start(() -> client.consume(writer));
        client.awaitEndOfInput();
        client.stopping = true;
        writer.join();
        reader.join();
        System.out.println("written=" + client.written.size());
        System.out.println("missing=" + client.written.stream().filter(value -> !client.read.containsKey(value)).count());
        System.out.println("twice=" + client.twice.get());
        System.out.println("errors=" + client.errors);
    }

    private Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                errors.add(error.toString());
            }
        });
        thread.start();
        return thread;
    }

    private void awaitEndOfInput() throws IOException {
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private void write() throws InterruptedException {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; !stopping; number++) {
                String value = Integer.toString(number);
                producer.send(new ProducerRecord<>(topic, value, value), (where, error) -> {
                    if (error != null) {
                        errors.add(error.toString());
                    } else {
                        written.add(value);
                    }
                });
                Thread.sleep(5);
            }
        }
    }

    private void consume(Thread writer) {
        long deadline = Long.MAX_VALUE;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (System.nanoTime() < deadline && (writer.isAlive() || !read.keySet().containsAll(written))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    if (read.isEmpty()) {
                        System.out.println("reading");
                    }
                    String place = record.partition() + ":" + record.offset();
                    if (!place.equals(read.getOrDefault(record.value(), place))) {
                        twice.incrementAndGet();
                    }
                    read.put(record.value(), place);
                }
                if (stopping && deadline == Long.MAX_VALUE) {
                    deadline = System.nanoTime() + PATIENCE.toNanos();
                }
            }
        }
    }

    private interface Work {
        void run() throws Exception;
    }
}
