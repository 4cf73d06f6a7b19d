package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
)

// ackTimeout is how long an acknowledgement may take.
const ackTimeout = 10 * time.Second

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
			first, all = append(first, newChain(w.id, w.facts, &w.told, &w.state.Sequence)), append(all, w.facts...)
		}
	}
	for _, g := range in.envOrder {
		if len(g.facts) > 0 {
			second, all = append(second, newChain(g.id, g.facts, &g.told, &g.state.Sequence)), append(all, g.facts...)
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
	in.inscribe(ctx)
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

// publish tells chains of facts: the next one of each at once, then, when all those are acknowledged, the following ones. A workload thus never has two facts in flight.
func (in *intake) publish(ctx context.Context, chains []*chain) error {
	futures := make([]jetstream.PubAckFuture, len(chains))
	for {
		waiting := chains[:0]
		for _, c := range chains {
			if c.skip(); len(c.left()) > 0 {
				waiting = append(waiting, c)
			}
		}
		if chains = waiting; len(chains) == 0 {
			return nil
		}
		if !in.JetStream.Conn().IsConnected() {
			return errDisconnected
		}
		began := time.Now()
		for i, c := range chains {
			msg, err := c.left()[0].message(in.Cell, *c.told)
			if err != nil {
				return err
			}
			if futures[i], err = in.JetStream.PublishMsgAsync(msg); err != nil {
				return fmt.Errorf("publish a fact on %s: %w", msg.Subject, err)
			}
		}
		if err := in.collect(ctx, chains, futures); err != nil {
			return err
		}
		in.Metrics.wave(len(chains), time.Since(began))
	}
}

// collect takes the answers to one fact of each chain.
func (in *intake) collect(ctx context.Context, chains []*chain, futures []jetstream.PubAckFuture) error {
	patience := time.NewTimer(ackTimeout)
	defer patience.Stop()
	var refused []*chain
	for i, c := range chains {
		select {
		case ack := <-futures[i].Ok():
			c.refusals = 0
			t := c.left()[0]
			t.position, *c.told = int64(ack.Sequence), int64(ack.Sequence)
			c.next++
			if in.acknowledged = append(in.acknowledged, written{c.workload, t}); len(in.acknowledged) >= inscribed {
				in.inscribe(ctx)
			}
		case err := <-futures[i].Err():
			if !conflict(err) {
				return fmt.Errorf("publish a fact on %s: %w", futures[i].Msg().Subject, err)
			}
			refused = append(refused, c)
		case <-patience.C:
			return fmt.Errorf("publish a fact on %s: no acknowledgement within %s", futures[i].Msg().Subject, ackTimeout)
		case <-ctx.Done():
			return fmt.Errorf("publish a fact on %s: %w", futures[i].Msg().Subject, context.Cause(ctx))
		}
	}
	for _, c := range refused {
		if c.refusals++; c.refusals > maxRefusals {
			return fmt.Errorf("facts on %s are refused again and again: does somebody else write there?", c.filter(in.Cell))
		}
		in.Metrics.conflict()
		if err := in.scribe.wait(); err != nil { // which has the transaction
			return err
		}
		if err := in.resolve(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// conflict says whether a message was refused because another is there.
func conflict(err error) bool {
	refusal, is := errors.AsType[*jetstream.APIError](err)
	return is && (refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
