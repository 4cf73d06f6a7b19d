package cellmap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	storedmessages "lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
)

// Writer writes entries. It is safe for concurrent use, also by several processes: each write replaces exactly the
// entry that it has read.
type Writer struct {
	// JetStream has the connection. Its user needs the right to write the entry, and to read it by its subject.
	JetStream jetstream.JetStream
	// Now defaults to time.Now.
	Now func() time.Time
}

// ErrConflict is wrapped by errors about entries that others change all the time.
var ErrConflict = errors.New("others change the entry at the same time: try again")

const (
	writeAttempts = 10
	writeTimeout  = 5 * time.Second
)

// PutCell writes the entry of a cell. It reports whether it changed.
func (w Writer) PutCell(ctx context.Context, cell Cell) (bool, error) {
	return w.put(ctx, key{cell: cell.Name}, cell.entry())
}

// DeleteCell removes a cell. Its requests are then refused.
func (w Writer) DeleteCell(ctx context.Context, name topology.Cell) (bool, error) {
	return w.put(ctx, key{cell: name}, stored{Deleted: true})
}

// PutOrganization moves an organization to a cell. Routers follow within milliseconds.
func (w Writer) PutOrganization(ctx context.Context, o Organization) (bool, error) {
	return w.put(ctx, key{organization: o.ID}, stored{Cell: o.Cell})
}

// DeleteOrganization removes an organization. Its requests then go to the cell that their token names.
func (w Writer) DeleteOrganization(ctx context.Context, id int64) (bool, error) {
	return w.put(ctx, key{organization: id}, stored{Deleted: true})
}

// PutMoved announces where an organization went. Only the cell that had it may do so.
func (w Writer) PutMoved(ctx context.Context, m Move) (bool, error) {
	return w.put(ctx, key{cell: m.From, organization: m.Organization}, stored{Cell: m.To, Number: m.Number})
}

// DeleteMoved removes the entry of an organization that is back.
func (w Writer) DeleteMoved(ctx context.Context, from topology.Cell, organization int64) (bool, error) {
	return w.put(ctx, key{cell: from, organization: organization}, stored{Deleted: true})
}

// PutLegacy names the cell of unknown tokens.
func (w Writer) PutLegacy(ctx context.Context, cell topology.Cell) (bool, error) {
	return w.put(ctx, key{legacy: true}, stored{Cell: cell})
}

// DeleteLegacy removes it: requests with unknown tokens are then refused.
func (w Writer) DeleteLegacy(ctx context.Context) (bool, error) {
	return w.put(ctx, key{legacy: true}, stored{Deleted: true})
}

// put writes an entry unless it is there already. It reports whether it wrote.
func (w Writer) put(ctx context.Context, k key, want stored) (bool, error) {
	subject := k.subject()
	if _, err := parseKey(subject); err != nil {
		return false, err
	}
	pause := retry.Policy{Min: 10 * time.Millisecond, Max: time.Second}.Backoff()
	for range writeAttempts {
		changed, err := w.putOnce(ctx, subject, k, want)
		if !isConflict(err) {
			return changed, err
		}
		if err := pause.Wait(ctx); err != nil {
			return false, fmt.Errorf("write %s: %w", subject, err)
		}
	}
	return false, fmt.Errorf("write %s: %w", subject, ErrConflict)
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func (w Writer) putOnce(ctx context.Context, subject string, k key, want stored) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now := time.Now
	if w.Now != nil {
		now = w.Now
	}
	reader := storedmessages.Reader{JetStream: w.JetStream, Stream: topology.StreamCells}
	last, err := reader.Last(ctx, subject)
	if err != nil {
		return false, fmt.Errorf("read the entry %s: %w", subject, err)
	}
	var sequence uint64
	var previous stored
	if last != nil {
		sequence = last.Sequence
		// A malformed entry is replaced.
		if _, content, err := parse(subject, last.Data); err == nil {
			previous = content
		}
	}
	if want.Deleted && (last == nil || previous.Deleted) {
		return false, nil
	}
	want.Generation = previous.Generation
	if previous.Generation > 0 && same(previous, want) {
		return false, nil
	}
	want.Generation = nextGeneration(previous.Generation, now())
	if err := want.validate(k); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrInvalidEntry, subject, err)
	}
	data, err := json.Marshal(want)
	if err != nil {
		return false, fmt.Errorf("encode the entry %s: %w", subject, err)
	}
	message := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{
		// Readers recognize by it that the bucket was restored.
		"ce-id": {subject + "/" + strconv.FormatInt(want.Generation, 10)},
	}}
	if _, err := w.JetStream.PublishMsg(ctx, message, jetstream.WithExpectLastSequencePerSubject(sequence)); err != nil {
		return false, fmt.Errorf("write the entry %s: %w", subject, err)
	}
	return true, nil
}

func same(a, b stored) bool {
	left, err := json.Marshal(a)
	if err != nil {
		return false
	}
	right, err := json.Marshal(b)
	return err == nil && bytes.Equal(left, right)
}

// Announcer keeps the entries of one cell in the map as the cell wants them. All replicas of a cell may run one.
type Announcer struct {
	Writer Writer
	// Cell returns what the entry should be. Required.
	Cell func() Cell
	// Changed returns a channel that is closed when Cell may return something else. Optional.
	Changed func() <-chan struct{}
	// Moves returns the organizations that the cell had and others have, and those that are back. Optional.
	Moves func(ctx context.Context) (gone []Move, back []int64, err error)
	// Interval between two checks of the entries. Defaults to 30 s.
	Interval time.Duration
	// Logger. Required.
	Logger *slog.Logger
}

const defaultInterval = 30 * time.Second

// Run keeps the entry until ctx is done, and calls ready when it is written for the first time. It waits for an
// unavailable server.
func (a Announcer) Run(ctx context.Context, ready func()) {
	interval := a.Interval
	if interval == 0 {
		interval = defaultInterval
	}
	first := sync.OnceFunc(ready)
	pause := retry.Policy{Min: 100 * time.Millisecond, Max: interval}.Backoff()
	for ctx.Err() == nil {
		var changed <-chan struct{}
		if a.Changed != nil {
			changed = a.Changed()
		}
		wrote, err := a.write(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.Logger.WarnContext(ctx, "writing the cell to the cell map failed, retrying", logkey.Error(err))
			}
			_ = pause.Wait(ctx) // it returns an error only when ctx ends
			continue
		}
		pause.Reset()
		first()
		if wrote {
			a.Logger.InfoContext(ctx, "wrote the entries of the cell to the cell map")
		}
		timer := time.NewTimer(interval)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// write writes all entries that differ, and reports whether one did.
func (a Announcer) write(ctx context.Context) (bool, error) {
	cell := a.Cell()
	wrote, err := a.Writer.PutCell(ctx, cell)
	if err != nil || a.Moves == nil {
		return wrote, err
	}
	gone, back, err := a.Moves(ctx)
	if err != nil {
		return wrote, err
	}
	for _, m := range gone {
		put, err := a.Writer.PutMoved(ctx, m)
		if err != nil {
			return wrote, err
		}
		wrote = wrote || put
	}
	for _, organization := range back {
		deleted, err := a.Writer.DeleteMoved(ctx, cell.Name, organization)
		if err != nil {
			return wrote, err
		}
		wrote = wrote || deleted
	}
	return wrote, nil
}
