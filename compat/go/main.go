// franz-go against a broker: `go-client BOOTSTRAP TOPIC COUNT` creates the topic, writes COUNT messages with every
// codec, reads them back from an assigned partition, and prints one line of JSON with what it saw.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type report struct {
	Brokers    []int32  `json:"brokers"`
	Controller int32    `json:"controller"`
	End        int64    `json:"end"`
	Seen       []string `json:"seen"`
}

func run(bootstrap, topic string, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, 1, -1, nil, topic); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	out := report{Controller: metadata.Controller}
	for _, broker := range metadata.Brokers {
		out.Brokers = append(out.Brokers, broker.NodeID)
	}
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for number, codec := range codecs {
		producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ProducerBatchCompression(codec))
		if err != nil {
			return err
		}
		for i := 0; i < count; i++ {
			record := &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(fmt.Sprintf("%d-%d", number, i))}
			producer.Produce(ctx, record, func(_ *kgo.Record, failure error) {
				if failure != nil {
					fmt.Fprintln(os.Stderr, "produce:", failure)
				}
			})
		}
		if err := producer.Flush(ctx); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		producer.Close()
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	end, _ := ends.Lookup(topic, 0)
	out.End = end.Offset
	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return err
	}
	defer consumer.Close()
	for int64(len(out.Seen)) < out.End {
		fetches := consumer.PollFetches(ctx)
		if failures := fetches.Errors(); len(failures) > 0 {
			return failures[0].Err
		}
		fetches.EachRecord(func(record *kgo.Record) { out.Seen = append(out.Seen, string(record.Value)) })
	}
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func main() {
	count, err := strconv.Atoi(os.Args[3])
	if err == nil {
		err = run(os.Args[1], os.Args[2], count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
