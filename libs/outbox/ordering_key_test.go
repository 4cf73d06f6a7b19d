package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
)

// byEntity orders the messages of an entity across their subjects fact.<entity>.<event>.
func byEntity(c *outbox.Config) { c.OrderingKey = `^fact[.]([^.]+)[.]` }

// publishEvents changes an entity once and inserts a message for each event.
func (f *fixture) publishEvents(ctx context.Context, entity string, events ...string) error {
	return postgres.InTx(ctx, f.pool, func(tx pgx.Tx) error {
		change, err := changed(ctx, tx, entity)
		if err != nil {
			return err
		}
		for _, event := range events {
			m := &nats.Msg{Subject: "fact." + entity + "." + event, Data: []byte(strconv.Itoa(change))}
			if err := outbox.Insert(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// entityEvents returns the events of an entity with their changes, in the order of the stream.
func (f *fixture) entityEvents(entity string) []string {
	f.t.Helper()
	var found []string
	for _, m := range f.messages() {
		var of, event string
		_, err := fmt.Sscanf(m.Subject, "fact.%1s.%s", &of, &event)
		require.NoError(f.t, err, m.Subject)
		if of == entity {
			found = append(found, event+" "+string(m.Data))
		}
	}
	return found
}

func (f *fixture) capture(subjects ...string) {
	f.t.Helper()
	_, err := f.js.UpdateStream(f.t.Context(), jetstream.StreamConfig{Name: stream, Subjects: subjects, AllowDirect: true})
	require.NoError(f.t, err)
}

func TestMessagesOfAKeyWaitForOneThatFails(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.capture("fact.*.updated")
	for _, entity := range []string{"x", "y"} {
		require.NoError(t, b.publishEvents(t.Context(), entity, "updated"))
		require.NoError(t, b.publishEvents(t.Context(), entity, "created", "updated"))
		require.NoError(t, b.publishEvents(t.Context(), entity, "updated", "created"))
	}
	require.NoError(t, b.publishEvents(t.Context(), "z", "updated"))
	waits := make(chan struct{})
	p := b.publisher(func(c *outbox.Config) { byEntity(c); c.Batch = 3 })
	p.OnWaiting(func() {
		select {
		case waits <- struct{}{}:
		default:
		}
	})
	b.run(p)
	for range 10 {
		<-waits // after the first failures and retries
	}
	require.Equal(t, []string{"updated 1"}, b.entityEvents("x"), "no message overtakes the one that fails")
	require.Equal(t, []string{"updated 1"}, b.entityEvents("z"), "another key is not delayed")

	b.capture("fact.>")
	b.awaitEmpty()
	for _, entity := range []string{"x", "y"} {
		require.Equal(t, []string{"updated 1", "created 2", "updated 2", "updated 3", "created 3"}, b.entityEvents(entity))
	}
}

// Publishers crash between acknowledgement and removal, so that the other one takes over, and NATS restarts.
func TestOrderOfAKeyIsTheOrderOfCommitsAcrossTakeoversAndOutages(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	for i := range 2 {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		p := b.publisher(func(c *outbox.Config) {
			byEntity(c)
			c.Batch, c.AckTimeout = 7, 500*time.Millisecond
		})
		p.OnAcknowledged(func() error {
			if rng.IntN(20) == 0 {
				return errors.New("crashed")
			}
			return nil
		})
		b.run(p)
	}
	const changes, restarts = 120, 3
	events := []string{"created", "updated", "removed"}
	var writers errgroup.Group
	restart := make(chan struct{})
	for i, entity := range []string{"x", "y", "z"} {
		writers.Go(func() error {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for n := range changes {
				order := rng.Perm(len(events))
				if err := b.publishEvents(t.Context(), entity, events[order[0]], events[order[1]]); err != nil {
					return err
				}
				if i == 0 && n%(changes/restarts) == 0 {
					restart <- struct{}{}
				}
			}
			return nil
		})
	}
	for range restarts {
		<-restart
		b.restart()
	}
	require.NoError(t, writers.Wait())
	b.awaitEmpty()
	for i, entity := range []string{"x", "y", "z"} {
		rng := rand.New(rand.NewPCG(2, uint64(i)))
		var want []string
		for n := range changes {
			order := rng.Perm(len(events))
			for _, at := range order[:2] {
				want = append(want, events[at]+" "+strconv.Itoa(n+1))
			}
		}
		require.Equal(t, want, b.entityEvents(entity))
	}
}
