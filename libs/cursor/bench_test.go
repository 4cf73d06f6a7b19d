package cursor_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/postgres"
)

const (
	benchKeys  = 20_000
	benchBatch = 1000
	upsert     = `
		INSERT INTO rows (key, data) SELECT key, data FROM unnest($1::text[], $2::bytea[]) AS given (key, data)
		ON CONFLICT (key) DO UPDATE SET data = excluded.data, changes = rows.changes + 1`
)

var benchData = bytes.Repeat([]byte("0123456789"), 24) //nolint:gochecknoglobals // a constant

func benchKey(i int) string { return fmt.Sprintf("lockstep.local.fact.%d", i%benchKeys) }

func createRows(b *testing.B, db *fixture) {
	b.Helper()
	_, err := db.pool.Exec(
		b.Context(),
		`CREATE TABLE rows (key text COLLATE "C" PRIMARY KEY, data bytea NOT NULL, changes int NOT NULL DEFAULT 0)`,
	)
	require.NoError(b, err)
}

// BenchmarkRawUpsert measures upserts without a stream. It is the baseline for BenchmarkIngest.
func BenchmarkRawUpsert(b *testing.B) {
	db := newFixture(b)
	createRows(b, db)
	keys, data := make([]string, benchBatch), make([][]byte, benchBatch)
	conn, err := db.pool.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	b.ResetTimer()
	for done := 0; done < b.N; done += benchBatch {
		for i := range benchBatch {
			keys[i], data[i] = benchKey(done+i), benchData
		}
		require.NoError(b, postgres.InTx(b.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(b.Context(), upsert, keys, data)
			return err
		}))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkIngest consumes a stream into the same table.
func BenchmarkIngest(b *testing.B) {
	db := newFixture(b)
	createRows(b, db)
	for i := range b.N {
		_, err := db.js.PublishMsgAsync(
			&nats.Msg{Subject: benchKey(i), Data: benchData, Header: nats.Header{"ce-id": {"some-event-id"}}},
		)
		require.NoError(b, err)
		if i%benchBatch == 0 {
			<-db.js.PublishAsyncComplete()
		}
	}
	<-db.js.PublishAsyncComplete()
	cfg := db.config(b)
	keys, data := make([]string, 0, benchBatch), make([][]byte, 0, benchBatch)
	handled, reached := 0, make(chan struct{})
	cfg.Handle = func(ctx context.Context, tx pgx.Tx, batch []cursor.Message[string]) error {
		keys, data = keys[:0], data[:0]
		for i := range batch {
			keys, data = append(keys, batch[i].Subject), append(data, batch[i].Data)
		}
		_, err := tx.Exec(ctx, upsert, keys, data)
		handled += len(batch)
		return err
	}
	c, err := cursor.New(cfg)
	require.NoError(b, err)
	c.OnCommitted(func() error {
		if handled == b.N {
			close(reached)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { ended <- c.Run(ctx) }()
	<-reached
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.StopTimer()
	cancel()
	require.NoError(b, <-ended)
}
