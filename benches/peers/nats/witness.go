package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A fire that was received.
type sighting struct {
	number int
	of     kind
	due    time.Time
	at     time.Time
}

// A consumer of all streams. A fire counts when it has been received here, and once.
type witness struct {
	sightings chan sighting
	stop      []func()
	seen      map[int]struct{}
	late      []time.Duration
	last      time.Time
	again     int
	// How late counts from fires due then on.
	measureFrom time.Time
}

func (place *site) openWitness() (*witness, error) {
	watching := &witness{sightings: make(chan sighting, 100_000), seen: map[int]struct{}{}}
	reader, err := jetstream.New(place.witness)
	if err != nil {
		return nil, err
	}
	for number := range place.streams {
		consumer, err := reader.CreateConsumer(
			context.Background(),
			stream(number),
			jetstream.ConsumerConfig{
				FilterSubject: fired(number),
				AckPolicy:     jetstream.AckNonePolicy,
				MemoryStorage: true,
			},
		)
		if err != nil {
			return nil, err
		}
		consuming, err := consumer.Consume(watching.receive, jetstream.PullMaxMessages(10_000))
		if err != nil {
			return nil, err
		}
		watching.stop = append(watching.stop, consuming.Stop)
	}
	return watching, nil
}

func (watching *witness) close() {
	for _, stop := range watching.stop {
		stop()
	}
}

// Waits until so many measured ones have come, and says whether they came in time.
func (watching *witness) await(count int, deadline time.Time) bool {
	timeout := time.After(time.Until(deadline))
	for len(watching.seen) < count {
		select {
		case seen := <-watching.sightings:
			watching.count(seen)
		case <-timeout:
			return false
		}
	}
	return true
}

// All but so many in a thousand came sooner, in ms.
func (watching *witness) allBut(perThousand int) float64 {
	slices.Sort(watching.late)
	at := len(watching.late) - 1 - len(watching.late)*perThousand/1_000
	return float64(watching.late[max(at, 0)].Microseconds()) / 1e3
}

func (watching *witness) receive(message jetstream.Msg) {
	headers := message.Headers()
	subject := headers.Get("Nats-Scheduler")
	id := subject[strings.LastIndexByte(subject, '.')+1:]
	number, err := strconv.Atoi(id[1:])
	if err != nil {
		panic(err)
	}
	due, err := strconv.ParseInt(headers.Get(dueHeader), 10, 64)
	if err != nil {
		panic(err)
	}
	watching.sightings <- sighting{number, kind(id[0]), time.UnixMilli(due), time.Now()}
}

func (watching *witness) count(seen sighting) {
	if seen.of != measured {
		return
	}
	if _, before := watching.seen[seen.number]; before {
		watching.again++
		return
	}
	watching.seen[seen.number] = struct{}{}
	watching.last = seen.at
	if !seen.due.Before(watching.measureFrom) {
		watching.late = append(watching.late, seen.at.Sub(seen.due))
	}
}
