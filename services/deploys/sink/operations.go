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
	// Next is the sequence on DEPLOYS of the first unfinished fact; 0 before the sink has started.
	Next uint64
	// Lag is the number of facts that wait on the stream. Pending is the number of facts that a replica has received and
	// not finished.
	Lag     uint64
	Pending int
	// LastError is the last error and LastErrorSince the time since when deliveries fail; empty while they succeed. Both
	// may be some seconds old.
	LastError      string
	LastErrorSince time.Time
}

// List returns the status of every sink. Call it on any replica.
func (s *Set) List(ctx context.Context) ([]Status, error) {
	list := make([]Status, 0, len(s.cfg.Entries))
	for _, e := range s.cfg.Entries {
		status := Status{Name: e.Name, Type: e.Type}
		if err := s.loadError(ctx, &status); err != nil {
			return nil, err
		}
		consumer, err := s.cfg.JetStream.Consumer(ctx, topology.StreamDeploys, consumerName(e.Name))
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound):
		case err != nil:
			return nil, fault.Wrap(err, errcode.Unavailable, "read the position of sink %s: %v", e.Name, err)
		default:
			info := consumer.CachedInfo()
			status.Next, status.Lag, status.Pending = info.AckFloor.Stream+1, info.NumPending, info.NumAckPending
		}
		list = append(list, status)
	}
	return list, nil
}

func (s *Set) loadError(ctx context.Context, status *Status) error {
	var since *time.Time
	row := s.cfg.Pool.QueryRow(ctx, `SELECT trouble, trouble_since FROM sinks WHERE name = $1`, status.Name)
	if err := row.Scan(&status.LastError, &since); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fault.Wrap(err, errcode.Unavailable, "read the last error of sink %s: %v", status.Name, err)
	}
	if since != nil {
		status.LastErrorSince = *since
	}
	return nil
}

// Backfill delivers all facts from a sequence on DEPLOYS again; 0 means the oldest. The sink edits the external objects
// that it created before, such as messages. Call it on any replica.
func (s *Set) Backfill(ctx context.Context, name string, sequence uint64) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	if _, err := s.cfg.Pool.Exec(ctx, `DELETE FROM sink_deliveries WHERE sink = $1`, name); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "delete the deliveries of sink %s: %v", name, err)
	}
	_, err := s.cfg.JetStream.ResetConsumerToSequence(ctx, topology.StreamDeploys, consumerName(name), max(sequence, 1))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fault.Wrap(err, errcode.FailedPrecondition, "sink %s has not started yet", name)
	}
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "reset the position of sink %s: %v", name, err)
	}
	return nil
}

// Resend delivers one fact again, by its sequence on DEPLOYS, even if the filter does not select it. Call it on any
// replica.
func (s *Set) Resend(ctx context.Context, name string, sequence uint64) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	stream, err := s.cfg.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "open stream %s: %v", topology.StreamDeploys, err)
	}
	m, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fault.Wrap(err, errcode.NotFound, "fact %d does not exist on %s", sequence, topology.StreamDeploys)
	}
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "read fact %d of %s: %v", sequence, topology.StreamDeploys, err)
	}
	request := &nats.Msg{Subject: s.cfg.Cell.Sink(name, m.Subject), Header: nats.Header{}, Data: m.Data}
	for header, values := range m.Header {
		if !strings.HasPrefix(header, "Nats-") {
			request.Header[header] = values
		}
	}
	if _, err := s.cfg.JetStream.PublishMsg(ctx, request); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "publish fact %d on %s: %v", sequence, topology.StreamSinks, err)
	}
	return nil
}
