package sink

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Status of a sink.
type Status struct {
	Name, Type string
	// Next is the sequence on DEPLOYS of the first fact that the sink is not done with; 0 while it has not begun.
	Next uint64
	// Lag is how many facts it has not taken yet, Waiting how many it has taken and is not done with.
	Lag     uint64
	Waiting int
	// Trouble is why it does not get through, since when; empty while it does. It is some seconds old.
	Trouble      string
	TroubleSince time.Time
}

// List says how the sinks are. Any replica may be asked.
func (s *Set) List(ctx context.Context) ([]Status, error) {
	list := make([]Status, 0, len(s.cfg.Entries))
	for _, e := range s.cfg.Entries {
		status := Status{Name: e.Name, Type: e.Type}
		if err := s.ailment(ctx, &status); err != nil {
			return nil, err
		}
		consumer, err := s.cfg.JetStream.Consumer(ctx, topology.StreamDeploys, consumerName(e.Name))
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
		case err != nil:
			return nil, fault.Wrap(err, errcode.Unavailable, "the position of sink %s cannot be read: %v", e.Name, err)
		default:
			info := consumer.CachedInfo()
			status.Next, status.Lag, status.Waiting = info.AckFloor.Stream+1, info.NumPending, info.NumAckPending
		}
		list = append(list, status)
	}
	return list, nil
}

func (s *Set) ailment(ctx context.Context, status *Status) error {
	var since *time.Time
	err := s.cfg.Pool.QueryRow(ctx, `SELECT trouble, trouble_since FROM sinks WHERE name = $1`, status.Name).Scan(&status.Trouble, &since)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fault.Wrap(err, errcode.Unavailable, "how sink %s is cannot be read: %v", status.Name, err)
	}
	if since != nil {
		status.TroubleSince = *since
	}
	return nil
}

// Backfill makes the sink deliver again all facts from the sequence on DEPLOYS on; 0 is the oldest there is. What it has called into being, such as
// messages, it knows, and edits. Any replica may be asked.
func (s *Set) Backfill(ctx context.Context, name string, sequence uint64) error {
	if err := s.has(name); err != nil {
		return err
	}
	if _, err := s.cfg.Pool.Exec(ctx, `DELETE FROM sink_deliveries WHERE sink = $1`, name); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "deliveries of sink %s cannot be forgotten: %v", name, err)
	}
	_, err := s.cfg.JetStream.ResetConsumerToSequence(ctx, topology.StreamDeploys, consumerName(name), max(sequence, 1))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fault.Wrap(err, errcode.FailedPrecondition, "sink %s has not begun yet", name)
	}
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "sink %s cannot be set back: %v", name, err)
	}
	return nil
}

// Resend makes the sink deliver one fact again, by its sequence on DEPLOYS, whatever its filter says. Any replica may be asked.
func (s *Set) Resend(ctx context.Context, name string, sequence uint64) error {
	if err := s.has(name); err != nil {
		return err
	}
	stream, err := s.cfg.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "%s cannot be read: %v", topology.StreamDeploys, err)
	}
	m, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fault.Wrap(err, errcode.NotFound, "there is no fact %d on %s", sequence, topology.StreamDeploys)
	}
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "fact %d of %s cannot be read: %v", sequence, topology.StreamDeploys, err)
	}
	again := &nats.Msg{Subject: s.cfg.Cell.Sink(name, m.Subject), Header: nats.Header{}, Data: m.Data}
	for header, values := range m.Header {
		if !strings.HasPrefix(header, "Nats-") {
			again.Header[header] = values
		}
	}
	if _, err := s.cfg.JetStream.PublishMsg(ctx, again); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "fact %d cannot be put on %s: %v", sequence, topology.StreamSinks, err)
	}
	return nil
}
