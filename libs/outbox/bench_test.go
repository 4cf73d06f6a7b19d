package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
)

// BenchmarkPublish publishes an outbox whose rows have one subject, some subjects, or one subject per row.
func BenchmarkPublish(b *testing.B) {
	for _, subjects := range []int{1, 100, 1_000_000} {
		b.Run(fmt.Sprintf("subjects=%d", subjects), func(b *testing.B) {
			db := newFixture(b)
			data := make([]byte, 256)
			messages := make([]*nats.Msg, b.N)
			for i := range messages {
				messages[i] = &nats.Msg{
					Subject: fmt.Sprintf("fact.%d", i%subjects), Data: data, Header: nats.Header{"ce-id": {"some-event-id"}},
				}
			}
			require.NoError(
				b,
				postgres.InTx(b.Context(), db.pool, func(tx pgx.Tx) error { return outbox.Insert(b.Context(), tx, messages...) }),
			)
			empty := make(chan struct{}, 1)
			p := db.publisher(nil)
			p.OnWaiting(func() {
				select {
				case empty <- struct{}{}:
				default:
				}
			})
			b.ResetTimer()
			stop := db.run(p)
			<-empty
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			b.StopTimer()
			stop()
			require.Zero(b, db.waiting())
		})
	}
}
