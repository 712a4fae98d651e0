// Runs kafka-message-scheduler as its own program does, but quietly and on loopback addresses.
//
// Law: the scheduler is the published module, unchanged. This prints "ready" when it has its
// partitions, and ends when standard input closes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/etf1/kafka-message-scheduler/config"
	runner "github.com/etf1/kafka-message-scheduler/runner/kafka"
	log "github.com/sirupsen/logrus"
)

func main() {
	// It logs several lines a message below this level.
	log.SetLevel(log.ErrorLevel)
	go func() {
		if err := runner.DefaultRunner().Start(); err != nil {
			log.Fatalf("the scheduler failed: %v", err)
		}
	}()
	if err := awaitPartitions(); err != nil {
		log.Fatalf("the scheduler got no partitions: %v", err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// The group is stable when its only member knows its partitions.
func awaitPartitions() error {
	admin, err := kafka.NewAdminClient(&kafka.ConfigMap{
		"bootstrap.servers": config.BootstrapServers(),
	})
	if err != nil {
		return err
	}
	defer admin.Close()
	for {
		groups, err := admin.DescribeConsumerGroups(context.Background(), []string{config.GroupID()})
		if err != nil {
			return err
		}
		group := groups.ConsumerGroupDescriptions[0]
		if group.State == kafka.ConsumerGroupStateStable {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
