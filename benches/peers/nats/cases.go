package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// From a live registration to its time.
	delay = 3 * time.Second
	// Live registrations' first fires, which do not count.
	warmUpS = 2
	// Registrations a second that the server surely takes in: sets when a burst is due.
	intake = 30_000
	// Of the server's memory that a pending schedule takes, as measured.
	pendingBytes = 1_400
)

type measurement func(place *site, asked settings, outcome result) error

var cases = map[string]measurement{
	"burst":     burst,
	"lateness":  lateness,
	"sustained": sustained,
}

// All are due in the same millisecond; they were taken in before.
func burst(place *site, asked settings, outcome result) error {
	watching, err := place.openWitness()
	if err != nil {
		return err
	}
	defer watching.close()
	count := asked.number("count", 100_000)
	begun := time.Now()
	lead := time.Duration(count) * time.Second / time.Duration(asked.number("intake", intake))
	due := begun.Add(5*time.Second + lead).Truncate(time.Millisecond)
	for number := range count {
		if err := place.register(measured, number, due); err != nil {
			return err
		}
	}
	if err := place.settle(); err != nil {
		return err
	}
	say("registered in %v; all due in %v", time.Since(begun), time.Until(due))
	if time.Now().After(due) {
		outcome["note"] = "It was still taking registrations in when they became due."
	}
	complete := watching.await(count, asked.deadline)
	watching.tell(outcome, complete, count)
	outcome["seconds"] = watching.last.Sub(due).Seconds()
	return nil
}

// A steady rate, with others pending for later.
func lateness(place *site, asked settings, outcome result) error {
	watching, err := place.openWitness()
	if err != nil {
		return err
	}
	defer watching.close()
	begun := time.Now()
	waiting := asked.number("pending", 0)
	rate, seconds := asked.number("rate", 2_000), asked.number("seconds", 10)
	outcome["rate"], outcome["pending"], outcome["seconds"] = rate, waiting, seconds
	if needed, free := waiting*pendingBytes>>20, availableMiB(); needed > free/2 {
		outcome["skipped"] = fmt.Sprintf(
			"It keeps what is pending in memory: about %d MiB, of %d MiB free.", needed, free)
		return nil
	}
	for number := range waiting {
		due := begun.Add(rand.N(24 * time.Hour))
		if err := place.register(pending, number, due); err != nil {
			return err
		}
	}
	if err := place.settle(); err != nil {
		return err
	}
	outcome["pending_fill_s"] = time.Since(begun).Seconds()
	say("%d pending taken in after %v", waiting, time.Since(begun))

	count := rate * (warmUpS + seconds)
	live := time.Now().Add(500 * time.Millisecond)
	watching.measureFrom = live.Add(delay + warmUpS*time.Second)
	registered := make(chan error, 1)
	go func() { registered <- place.registerLive(count, rate, live) }()
	complete := watching.await(count, asked.deadline)
	if complete {
		if err := <-registered; err != nil {
			return err
		}
	}
	watching.tell(outcome, complete, count)
	took := watching.last.Sub(live.Add(delay)).Seconds()
	outcome["achieved_per_s"] = float64(len(watching.seen)) / took
	return nil
}

// Registered as fast as it goes, due soon after: the server fires while it still takes in.
func sustained(place *site, asked settings, outcome result) error {
	watching, err := place.openWitness()
	if err != nil {
		return err
	}
	defer watching.close()
	count := asked.number("count", 100_000)
	spread := time.Duration(asked.number("spread", 10)) * time.Second
	begun := time.Now()
	registered := make(chan error, 1)
	go func() {
		for number := range count {
			due := time.Now().Add(time.Second + rand.N(spread-time.Second))
			if err := place.register(measured, number, due); err != nil {
				registered <- err
				return
			}
		}
		registered <- place.settle()
	}()
	complete := watching.await(count, asked.deadline)
	if complete {
		if err := <-registered; err != nil {
			return err
		}
	}
	watching.tell(outcome, complete, count)
	took := watching.last.Sub(begun).Seconds()
	outcome["seconds"], outcome["per_s"] = took, float64(len(watching.seen))/took
	return nil
}

func (place *site) registerLive(count, rate int, from time.Time) error {
	for number := range count {
		at := from.Add(time.Duration(number) * time.Second / time.Duration(rate))
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait)
		}
		if err := place.register(measured, number, at.Add(delay)); err != nil {
			return err
		}
	}
	return place.settle()
}

// Adds what was seen to the result.
func (watching *witness) tell(outcome result, complete bool, count int) {
	outcome["count"] = count
	if len(watching.late) > 0 {
		outcome["p50_ms"] = watching.allBut(500)
		outcome["p99_ms"] = watching.allBut(10)
		outcome["p999_ms"] = watching.allBut(1)
	}
	if watching.again > 0 {
		outcome["duplicates"] = watching.again
	}
	if !complete {
		outcome["timed_out"], outcome["received"] = true, len(watching.seen)
	}
}
