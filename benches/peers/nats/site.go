package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What a registration is for, which its id's first letter says.
type kind byte

const (
	// Counts.
	measured kind = 'm'
	// Is only there to be pending.
	pending kind = 'p'
)

// Acknowledgements that may be outstanding.
const inFlight = 20_000

// When a registration is due, in ms since the epoch.
const dueHeader = "Due"

// Where one measurement takes place: streams, as many as a Kafka peer has partitions, because a
// stream's schedules are fired by one goroutine; and a connection for each way.
type site struct {
	streams   int
	registrar *nats.Conn
	publisher jetstream.JetStream
	witness   *nats.Conn
	payload   []byte
	refused   atomic.Pointer[error]
}

func openSite(url string, streams, payloadBytes int) (*site, error) {
	place := &site{streams: streams, payload: payload(payloadBytes)}
	var err error
	if place.registrar, err = nats.Connect(url); err != nil {
		return nil, err
	}
	if place.witness, err = nats.Connect(url); err != nil {
		return nil, err
	}
	place.publisher, err = jetstream.New(
		place.registrar,
		jetstream.WithPublishAsyncMaxPending(inFlight),
		jetstream.WithPublishAsyncErrHandler(
			func(_ jetstream.JetStream, _ *nats.Msg, err error) { place.refused.Store(&err) },
		),
	)
	if err != nil {
		return nil, err
	}
	for number := range streams {
		_, err := place.publisher.CreateStream(context.Background(), jetstream.StreamConfig{
			Name: stream(number),
			Subjects: []string{
				fmt.Sprintf("at.%d.*", number),
				fired(number),
			},
			Storage:           jetstream.FileStorage,
			AllowMsgSchedules: true,
		})
		if err != nil {
			return nil, err
		}
	}
	return place, nil
}

func (place *site) close() {
	place.registrar.Close()
	place.witness.Close()
}

// Registers without waiting for the acknowledgement; settle waits for all.
func (place *site) register(of kind, number int, due time.Time) error {
	partition := number % place.streams
	id := fmt.Sprintf("%c%08d", of, number)
	message := &nats.Msg{
		Subject: fmt.Sprintf("at.%d.%s", partition, id),
		Header: nats.Header{
			// The client's own option would cut the time to the second.
			"Nats-Schedule":        {"@at " + due.UTC().Format(time.RFC3339Nano)},
			"Nats-Schedule-Target": {fired(partition)},
			dueHeader:              {strconv.FormatInt(due.UnixMilli(), 10)},
		},
		Data: place.payload,
	}
	_, err := place.publisher.PublishMsgAsync(message)
	for errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
		_, err = place.publisher.PublishMsgAsync(message)
	}
	return err
}

// Waits until the server has acknowledged all.
func (place *site) settle() error {
	<-place.publisher.PublishAsyncComplete()
	if refused := place.refused.Load(); refused != nil {
		return fmt.Errorf("a registration was refused: %w", *refused)
	}
	return nil
}

func stream(number int) string {
	return fmt.Sprintf("TIMELINE-%d", number)
}

// The subject into which a stream's schedules fire.
func fired(number int) string {
	return fmt.Sprintf("fired.%d", number)
}

// Text that compresses about as well as the JSON of real payloads.
func payload(bytes int) []byte {
	text := make([]byte, bytes)
	for at := range text {
		text[at] = byte('a' + at*at%26)
	}
	return text
}
