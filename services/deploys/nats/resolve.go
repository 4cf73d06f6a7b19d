package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/postgres"
)

// resolve finds out why a fact was refused, and brings the chain to where it can go on.
func (in *intake) resolve(ctx context.Context, c *chain) error {
	stream, err := in.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fmt.Errorf("open stream %s: %w", topology.StreamDeploys, err)
	}
	p := &public{js: in.JetStream, cell: in.Cell, stream: stream, store: in.Store, db: in.tx}
	tail, err := p.after(ctx, c.filter(in.Cell), *c.told)
	if err != nil {
		return err
	}
	for i := range tail {
		left := c.left()
		if len(left) > 0 && left[0].same(&tail[i]) {
			left[0].adopt(&tail[i])
			*c.told = tail[i].position
			c.next++
			// Whoever told it may have counted differently: what is left counts on from there.
			c.renumber(tail[i].fact.Sequence + 1)
		}
	}
	left := c.left()
	if len(left) == 0 {
		return nil // what comes after them on the stream is what comes next
	}
	var last told
	if len(tail) > 0 {
		last = tail[len(tail)-1]
	} else if last, err = p.last(ctx, c.filter(in.Cell)); err != nil {
		return err
	}
	if last.fact.Sequence >= left[0].fact.Sequence {
		in.Logger.WarnContext(ctx, "the stream knows facts that the database does not: it was restored from an older copy, or read what the stream no longer has",
			"subject", c.filter(in.Cell), "last_sequence", last.fact.Sequence, "sequence", left[0].fact.Sequence)
		in.Metrics.divergence()
		c.renumber(last.fact.Sequence + 1)
	}
	position, again, err := p.retell(ctx, c.workload, last, int64(left[0].fact.Sequence))
	if err != nil {
		return err
	}
	maps.Copy(in.located, again)
	if len(again) > 0 {
		in.Logger.WarnContext(ctx, "the stream was restored from an older copy: facts were told again", "subject", c.filter(in.Cell), "facts", len(again))
		in.Metrics.retold(len(again))
	}
	*c.told = position
	return nil
}

// public is the stream DEPLOYS, and what the database knows of it.
type public struct {
	js     jetstream.JetStream
	cell   topology.Cell
	stream jetstream.Stream
	store  *postgres.Store
	db     postgres.Querier
}

// after are the messages of a filter after a position.
func (p *public) after(ctx context.Context, filter string, position int64) ([]told, error) {
	var found []told
	for next := uint64(position) + 1; ; {
		m, err := p.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read what was told on %s: %w", filter, err)
		}
		found = append(found, readTold(m))
		next = m.Sequence + 1
	}
}

// last is the last message of a filter; one that says nothing when there is none.
func (p *public) last(ctx context.Context, filter string) (told, error) {
	m, err := p.stream.GetLastMsgForSubject(ctx, filter)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return told{}, nil
	}
	if err != nil {
		return told{}, fmt.Errorf("read what was told on %s: %w", filter, err)
	}
	return readTold(m), nil
}

// retell tells again what the database knows of a workload and the stream lacks: what follows its last message, below a sequence. It returns the
// position of the last message then, and where the facts are. What the stream has dropped by its limits is not told again.
func (p *public) retell(ctx context.Context, workload uuid.UUID, last told, below int64) (int64, map[string]int64, error) {
	facts, err := p.store.FactsBetween(ctx, p.db, workload, int64(last.fact.Sequence), below, time.Now().Add(-publicMemory()))
	if err != nil {
		return 0, nil, err
	}
	position, again := last.position, map[string]int64{}
	first := int64(p.stream.CachedInfo().State.FirstSeq)
	for i := range facts {
		if f := &facts[i]; f.StreamSequence == postgres.TooOld || last.position == 0 && f.StreamSequence > 0 && f.StreamSequence < first {
			continue
		}
		fact, err := readFact(&facts[i])
		if err != nil {
			return 0, nil, err
		}
		msg, err := (&telling{fact: fact}).message(p.cell, position)
		if err != nil {
			return 0, nil, err
		}
		ack, err := p.js.PublishMsg(ctx, msg)
		if err != nil {
			return 0, nil, fmt.Errorf("tell fact %s again: %w", facts[i].ID, err)
		}
		position = int64(ack.Sequence)
		again[facts[i].ID] = position
	}
	return position, again, nil
}

func readFact(f *postgres.Fact) (events.DeployFact, error) {
	var fact events.DeployFact
	if err := json.Unmarshal([]byte(f.Data), &fact); err != nil {
		return events.DeployFact{}, fmt.Errorf("read fact %s: %w", f.ID, err)
	}
	return fact, nil
}
