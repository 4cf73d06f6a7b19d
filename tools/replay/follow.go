package replay

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// followInterval is the time between two looks at the streams. People may read streams, and not receive what others
// publish.
const followInterval = 250 * time.Millisecond

// followed is a stream that is followed.
type followed struct {
	reader  stored.Reader
	subject string
	next    uint64 // the lowest sequence to read
}

var errDisconnected = fault.New(errcode.Unavailable, "NATS cannot be reached")

// Follow calls take with each message that is stored after its start, in order of each stream, until ctx ends or take
// fails. It calls begun at the start. The subject is a filter as in [Options]; if it begins with a wildcard, it follows
// all streams but DIRECTORY and DESIRED_LOG, which has a copy of every desired state. When a stream cannot be read, it
// calls outage once with the error, later continues where it was, and calls outage with nil when it reads all of them.
func Follow(
	ctx context.Context, js jetstream.JetStream, cell topology.Cell, subject string, begun func() error,
	outage func(error), take func(stored.Message) error,
) error {
	streams, err := follow(ctx, js, cell, subject)
	if err != nil {
		return err
	}
	if err := begun(); err != nil {
		return err
	}
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	var reported error
	report := func(err error) {
		if (err == nil) != (reported == nil) {
			outage(err)
		}
		reported = err
	}
	for {
		var failed error
		for _, f := range streams {
			var taken error
			err := error(errDisconnected)
			if js.Conn().IsConnected() {
				err = f.reader.Read(ctx, f.subject, f.next, math.MaxUint64, func(m stored.Message) error {
					if errors.Is(reported, errDisconnected) {
						report(nil)
					}
					f.next, taken = m.Sequence+1, take(m)
					return taken
				})
			}
			switch {
			case taken != nil:
				return taken
			case err != nil && !js.Conn().IsConnected():
				failed = errDisconnected
			case err != nil:
				failed = fault.Wrap(err, errcode.Unavailable, "stream %s cannot be read: %v", f.reader.Stream, err)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		report(failed)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// follow returns the streams of the subject, at their ends.
func follow(ctx context.Context, js jetstream.JetStream, cell topology.Cell, subject string) ([]*followed, error) {
	first, rest, _ := strings.Cut(subject, ".")
	all := first == ">" || first == "*"
	if !all {
		if _, err := streamOf(subject); err != nil {
			return nil, err
		}
	} else if rest == "" {
		rest = ">"
	}
	var streams []*followed
	for _, s := range topology.Streams() {
		switch {
		case s.Family != first && !all:
			continue
		case all && (s.Name == topology.StreamDirectory || s.Name == topology.StreamDesiredLog):
			continue
		}
		opened, err := js.Stream(ctx, s.Name)
		if err != nil {
			return nil, fault.Wrap(err, errcode.Unavailable, "read stream %s: %v", s.Name, err)
		}
		streams = append(streams, &followed{
			reader: stored.Reader{JetStream: js, Stream: s.Name}, subject: cell.Prefix(s.Family) + "." + rest,
			next: opened.CachedInfo().State.LastSeq + 1,
		})
	}
	return streams, nil
}
