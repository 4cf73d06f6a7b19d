package outbox_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
)

// offering changes an entity once, as services do, and offers the message to the publisher.
func (b *bundle) offering(ctx context.Context, pool *pgxpool.Pool, p *outbox.Publisher, name string) error {
	return postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		change, err := changed(ctx, tx, name)
		if err != nil {
			return err
		}
		var batch pgx.Batch
		queued, err := p.Queue(&batch, message(name, change))
		if err != nil {
			return err
		}
		postgres.AfterCommit(tx, func() { p.Offer(queued) })
		return postgres.Later(ctx, tx, &batch, "tell")
	})
}

// leads runs the publisher and waits until it has nothing to do.
func (b *bundle) leads(p *outbox.Publisher) {
	b.t.Helper()
	idle := make(chan struct{}, 1)
	p.OnWaiting(func() {
		select {
		case idle <- struct{}{}:
		default:
		}
	})
	b.run(p)
	<-idle
}

func TestWhatIsOfferedIsPublishedWithoutBeingRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.publisher(func(c *outbox.Config) { c.Interval = time.Hour })
	b.leads(p)
	require.NoError(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		queued, err := p.Queue(&batch, message("x", 1), message("y", 1))
		require.NoError(t, err)
		require.NoError(t, tx.SendBatch(t.Context(), &batch).Close())
		p.Offer(queued) // before the commit, which nobody may: so that only the offer can be what is published
		postgres.AfterCommit(tx, func() { p.Offer(queued) })
		b.holds(map[string][]string{"fact.x": {"1"}, "fact.y": {"1"}})
		return nil
	}))
	b.published()
	require.Equal(t, map[string][]string{"fact.x": {"1"}, "fact.y": {"1"}}, b.onStream(), "and not once more")
}

func TestAnOfferDoesNotOvertakeWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.publisher(func(c *outbox.Config) { c.Interval = time.Hour })
	held, release := make(chan struct{}), make(chan struct{})
	p.OnPublish(func(_ context.Context, subject string, _ int64) {
		if subject == "fact.slow" {
			close(held)
			<-release
		}
	})
	b.leads(p)
	b.changes("slow", 1)
	<-held
	b.changes("x", 1) // by another replica, which this publisher has yet to read
	require.NoError(t, b.offering(t.Context(), b.pool, p, "x"))
	close(release)
	b.published()
	require.NoError(t, b.offering(t.Context(), b.pool, p, "x"))
	b.published()
	require.Equal(t, upTo(3), b.onStream()["fact.x"])
}

func TestOrderIsThatOfCommitsAlsoWithOffers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	replicas := []*outbox.Publisher{b.publisher(func(c *outbox.Config) { c.Batch = 3 }), b.publisher(nil), nil}
	b.leads(replicas[0])
	b.run(replicas[1])
	var writers errgroup.Group
	const entities, changes = 3, 15
	for entity := range entities {
		for _, p := range replicas {
			writers.Go(func() error {
				for i := range changes {
					if i == changes/2 && entity == 0 && p == replicas[0] {
						b.terminateLockHolder()
					}
					if err := b.offering(t.Context(), b.pool, p, strconv.Itoa(entity)); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	require.NoError(t, writers.Wait())
	b.published()
	for entity := range entities {
		require.Equal(t, upTo(len(replicas)*changes), b.onStream()["fact."+strconv.Itoa(entity)])
	}
}
