// Measures the message schedules of NATS JetStream: `nats <case> key=value...`.
//
// This process registers and witnesses; the server is this program in another process, in its other
// part: `nats server <folder>`. The last line on standard output is the result, in JSON; what goes
// on is told on standard error.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const grace = 30 * time.Second

// What the caller asked for.
type settings struct {
	name     string
	values   map[string]string
	deadline time.Time
}

// The JSON object that ends a run.
type result map[string]any

func main() {
	if os.Args[1] == "server" {
		serve(os.Args[2])
		return
	}
	asked := parse(os.Args[1], os.Args[2:])
	// A case ends at the deadline by itself, unless a client waits for what never comes.
	time.AfterFunc(time.Until(asked.deadline.Add(grace)), func() {
		outcome := newResult(asked)
		outcome["timed_out"], outcome["received"] = true, 0
		outcome.print()
		os.Exit(0)
	})
	outcome := newResult(asked)
	if err := run(asked, outcome); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
	outcome.print()
}

func newResult(asked settings) result {
	return result{"peer": "nats", "version": server.VERSION, "case": asked.name}
}

func (outcome result) print() {
	line, err := json.Marshal(outcome)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func run(asked settings, outcome result) error {
	measure, known := cases[asked.name]
	if !known {
		outcome["skipped"] = "The driver knows no such case."
		return nil
	}
	folder := filepath.Join(asked.values["work"], fmt.Sprintf("nats-%d", os.Getpid()))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	running, err := startServer(folder)
	if err != nil {
		return err
	}
	defer running.stop()
	place, err := openSite(running.url, asked.number("partitions", 4), asked.number("payload", 300))
	if err != nil {
		return err
	}
	defer place.close()
	if err := measure(place, asked, outcome); err != nil {
		return err
	}
	outcome["rss_mb"] = running.peakRSSMiB()
	return nil
}

func parse(name string, arguments []string) settings {
	asked := settings{name: name, values: map[string]string{"work": os.TempDir()}}
	for _, argument := range arguments {
		key, value, found := strings.Cut(argument, "=")
		if !found {
			fmt.Fprintln(os.Stderr, "not key=value:", argument)
			os.Exit(2)
		}
		asked.values[key] = value
	}
	asked.deadline = time.Now().Add(time.Duration(asked.number("deadline", 300)) * time.Second)
	return asked
}

func (asked settings) number(key string, ours int) int {
	value, given := asked.values[key]
	if !given {
		return ours
	}
	number, err := strconv.Atoi(value)
	if err != nil {
		fmt.Fprintln(os.Stderr, "not a number:", key, value)
		os.Exit(2)
	}
	return number
}

func say(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "driver: "+format+"\n", arguments...)
}
