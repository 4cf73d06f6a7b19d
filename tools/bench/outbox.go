package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/pg"
)

const (
	outboxRounds   = 5
	outboxMessages = 5000
	outboxEntities = 500
	outboxPayload  = 512
	outboxPerTx    = 50
	benchCell      = topology.Cell("bench")
)

// outboxBed is a database, a NATS server with the streams, and a publisher between them.
type outboxBed struct {
	pool *pgxpool.Pool
	js   jetstream.JetStream
	run  int
}

func outboxFigures(ctx context.Context) (figures []Figure, err error) {
	database, err := pg.Start(ctx, pg.Options{})
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	defer func() { err = errors.Join(err, database.Stop(context.WithoutCancel(ctx))) }()
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	conn, err := nats.Connect(server.ClientURL())
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	defer conn.Close()
	pool, err := postgres.Open(postgres.Config{URL: database.URL(), Schema: "bench"})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	defer pool.Close()
	bed := &outboxBed{pool: pool}
	if bed.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1000)); err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if err := topology.Ensure(ctx, bed.js, benchCell, topology.Options{StorageBytes: 1 << 30}); err != nil {
		return nil, fmt.Errorf("make the streams: %w", err)
	}
	migrations, err := outbox.Migrations()
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	quiet := slog.New(slog.DiscardHandler)
	if err := postgres.Migrate(ctx, pool, quiet, migrations); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	publisher, err := outbox.New(outbox.Config{Pool: pool, Conn: conn, Logger: quiet})
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	publishing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { err = errors.Join(err, publisher.Run(publishing)) })
	defer running.Wait()
	defer stop()
	return bed.measure(ctx)
}

// measure takes turns, so that both see the same machine, and gives medians.
func (b *outboxBed) measure(ctx context.Context) ([]Figure, error) {
	var ours, bare []float64
	for range outboxRounds {
		rate, err := b.timed(ctx, b.throughOutbox)
		if err != nil {
			return nil, err
		}
		ours = append(ours, rate)
		if rate, err = b.timed(ctx, b.barePublish); err != nil {
			return nil, err
		}
		bare = append(bare, rate)
	}
	return []Figure{{Name: "outbox.rows_per_s", Value: median(ours), Unit: "1/s", Baseline: median(bare)}}, nil
}

// timed gives messages per second from the first write to the last message on the stream.
func (b *outboxBed) timed(ctx context.Context, write func(context.Context, []*nats.Msg) error) (float64, error) {
	b.run++
	messages := make([]*nats.Msg, outboxMessages)
	payload := make([]byte, outboxPayload)
	for i := range messages {
		messages[i] = &nats.Msg{Subject: benchCell.Workspace(int64(b.run), fmt.Sprintf("w%d", i%outboxEntities), "state_changed"), Data: payload}
	}
	stream, err := b.js.Stream(ctx, topology.StreamWorkspaces)
	if err != nil {
		return 0, fmt.Errorf("look at the stream: %w", err)
	}
	want := stream.CachedInfo().State.Msgs + outboxMessages
	begun := time.Now()
	if err := write(ctx, messages); err != nil {
		return 0, err
	}
	for poll := time.NewTicker(time.Millisecond); ; {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0, fmt.Errorf("look at the stream: %w", err)
		}
		if info.State.Msgs >= want {
			poll.Stop()
			return outboxMessages / time.Since(begun).Seconds(), nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (b *outboxBed) throughOutbox(ctx context.Context, messages []*nats.Msg) error {
	for part := range slices.Chunk(messages, outboxPerTx) {
		err := postgres.InTx(ctx, b.pool, func(tx pgx.Tx) error { return outbox.Insert(ctx, tx, part...) })
		if err != nil {
			return fmt.Errorf("insert: %w", err)
		}
	}
	return nil
}

func (b *outboxBed) barePublish(ctx context.Context, messages []*nats.Msg) error {
	for _, m := range messages {
		if _, err := b.js.PublishMsgAsync(m); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	select {
	case <-b.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
