package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/services/deploys/postgres"
)

// ackTimeout is how long an acknowledgement may take.
const ackTimeout = 10 * time.Second

// window is how many facts are in flight at most: as many as keep the stream busy, and fewer than what a large batch concerns, so that the first workloads can be
// stored while others are told of.
const window = 256

// maxRefusals is how often in a row a fact may be refused before everything is tried again.
const maxRefusals = 5

var errDisconnected = errors.New("NATS is not connected")

// tell publishes what follows from the batch: first the facts of workloads, then those of environments, which follow from them.
func (in *intake) tell(ctx context.Context) error {
	if in.silent {
		return nil
	}
	if err := in.recognize(ctx); err != nil {
		return err
	}
	var first, second []*chain
	var all []*telling
	for _, w := range in.order {
		if len(w.facts) > 0 {
			c := newChain(w.id, w.facts, &w.told, &w.state.Sequence)
			c.store = func(writing *postgres.Writing) error { return in.storeWorkload(writing, w) }
			first, all = append(first, c), append(all, w.facts...)
		}
	}
	for _, g := range in.envOrder {
		if len(g.facts) > 0 {
			c := newChain(g.id, g.facts, &g.told, &g.state.Sequence)
			c.store = func(writing *postgres.Writing) error { return in.storeGroup(writing, g) }
			second, all = append(second, c), append(all, g.facts...)
		}
	}
	if err := writeAll(in.Cell, all); err != nil {
		return err
	}
	defer in.scribe.wait() //nolint:errcheck // asked for below, where nothing else has failed
	for _, chains := range [][]*chain{first, second} {
		if err := in.publish(ctx, chains); err != nil {
			return err
		}
	}
	return in.scribe.wait()
}

// recognize finds facts that the database has although it has no state of their workloads: they were told, maybe longer ago than the stream remembers.
func (in *intake) recognize(ctx context.Context) error {
	var ids []string
	var workloads []uuid.UUID
	strangers := map[uuid.UUID]*chain{}
	note := func(id uuid.UUID, stored bool, facts []*telling, at *int64, sequence *int) {
		if stored || len(facts) == 0 {
			return
		}
		strangers[id] = newChain(id, facts, at, sequence)
		workloads = append(workloads, id)
		for _, t := range facts {
			ids = append(ids, t.id())
		}
	}
	for _, w := range in.order {
		note(w.id, w.stored, w.facts, &w.told, &w.state.Sequence)
	}
	for _, g := range in.envOrder {
		note(g.id, g.stored, g.facts, &g.told, &g.state.Sequence)
	}
	if len(ids) == 0 {
		return nil
	}
	known, last, err := in.Store.Known(ctx, in.tx, ids, workloads)
	if err != nil {
		return err
	}
	for id, c := range strangers {
		if _, told := last[id]; !told {
			continue
		}
		for _, t := range c.tellings {
			t.known = known[t.id()]
		}
		c.skip()
		c.renumber(int(last[id]) + 1)
	}
	return nil
}

// flight is a fact on its way.
type flight struct {
	chain *chain
	began time.Time
	ack   jetstream.PubAckFuture
}

// publish tells chains of facts. The next one of a chain goes when the one before is acknowledged: a workload thus never has two facts in flight.
func (in *intake) publish(ctx context.Context, chains []*chain) error {
	var flying []flight // in the order in which they were sent, in which they are acknowledged
	patience := time.NewTimer(ackTimeout)
	defer patience.Stop()
	for next := 0; next < len(chains) || len(flying) > 0; {
		var c *chain
		if next < len(chains) && len(flying) < window {
			c = chains[next]
			next++
		} else {
			c = flying[0].chain
			patience.Reset(ackTimeout)
			if err := in.land(ctx, &flying[0], patience.C); err != nil {
				return err
			}
			flying = flying[1:]
		}
		if c.skip(); len(c.left()) == 0 {
			in.finished = append(in.finished, c)
			continue
		}
		f, err := in.send(c)
		if err != nil {
			return err
		}
		flying = append(flying, f)
	}
	return nil
}

// send sends the next fact of a chain.
func (in *intake) send(c *chain) (flight, error) {
	if !in.JetStream.Conn().IsConnected() {
		return flight{}, errDisconnected
	}
	msg, err := c.left()[0].message(in.Cell, *c.told)
	if err != nil {
		return flight{}, err
	}
	f := flight{chain: c, began: time.Now()}
	if f.ack, err = in.JetStream.PublishMsgAsync(msg, jetstream.WithStallWait(ackTimeout)); err != nil {
		return flight{}, fmt.Errorf("publish a fact on %s: %w", msg.Subject, err)
	}
	return f, nil
}

// land takes the answer to a fact.
func (in *intake) land(ctx context.Context, f *flight, patience <-chan time.Time) error {
	c := f.chain
	select {
	case ack := <-f.ack.Ok():
		c.refusals = 0
		t := c.left()[0]
		t.position, *c.told = int64(ack.Sequence), int64(ack.Sequence)
		c.next++
		in.Metrics.told(time.Since(f.began))
		in.acknowledged = append(in.acknowledged, written{c.workload, t})
		if len(in.acknowledged) >= inscribed && in.scribe.free() {
			in.inscribe(ctx)
		}
		return nil
	case err := <-f.ack.Err():
		if !conflict(err) {
			return fmt.Errorf("publish a fact on %s: %w", f.ack.Msg().Subject, err)
		}
	case <-patience:
		return fmt.Errorf("publish a fact on %s: no acknowledgement within %s", f.ack.Msg().Subject, ackTimeout)
	case <-ctx.Done():
		return fmt.Errorf("publish a fact on %s: %w", f.ack.Msg().Subject, context.Cause(ctx))
	}
	if c.refusals++; c.refusals > maxRefusals {
		return fmt.Errorf("facts on %s are refused again and again: does somebody else write there?", c.filter(in.Cell))
	}
	in.Metrics.conflict()
	if err := in.scribe.wait(); err != nil { // which has the transaction
		return err
	}
	return in.resolve(ctx, c)
}

// conflict says whether a message was refused because another is there.
func conflict(err error) bool {
	refusal, is := errors.AsType[*jetstream.APIError](err)
	return is && (refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
