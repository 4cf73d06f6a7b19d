package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
)

const (
	outboxMessages = 5000
	outboxEntities = 500
	outboxPayload  = 512
	outboxPerTx    = 50
)

// outboxFamily measures what it costs to publish only what was committed.
func outboxFamily() Family {
	return Family{
		Name:  "outbox",
		About: "Rows committed to the outbox, fifty a transaction, → messages on the stream, by its real publisher.",
		Specs: []Spec{{
			Name: "rows_per_s", Unit: "1/s", About: "rows committed and published, from the first insert to the last message on the stream",
			Baseline: "a bare asynchronous publish of the same messages, which neither commits anything nor keeps their order per subject",
		}},
		Run: outboxFigures,
	}
}

// outboxBed is a database, a NATS server with the streams, and a publisher between them.
type outboxBed struct {
	pool     *pgxpool.Pool
	js       jetstream.JetStream
	messages int
	run      int
}

func outboxFigures(ctx context.Context, size Size) (measured Measured, err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	database, err := parts.postgres(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := parts.nats()
	if err != nil {
		return nil, err
	}
	b := &outboxBed{messages: size.of(outboxMessages)}
	if b.js, err = parts.streams(ctx, conn); err != nil {
		return nil, err
	}
	migrations, err := outbox.Migrations()
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if b.pool, err = parts.pool(ctx, database.URL(), "outbox", migrations); err != nil {
		return nil, err
	}
	publisher, err := outbox.New(outbox.Config{Pool: b.pool, Conn: conn, Logger: quiet()})
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	parts.background(ctx, publisher.Run)
	ours, bare, err := takeTurns(ctx, size.For,
		func(ctx context.Context, _ int) (float64, error) { return b.timed(ctx, b.throughOutbox) },
		func(ctx context.Context, _ int) (float64, error) { return b.timed(ctx, b.barePublish) })
	if err != nil {
		return nil, err
	}
	return Measured{"rows_per_s": beside(median(ours), median(bare))}, nil
}

// background runs something until the bed is closed.
func (b *bed) background(ctx context.Context, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	b.onClose(func(context.Context) error {
		cancel()
		return <-ended
	})
}

// timed gives messages per second from the first write to the last message on the stream.
func (b *outboxBed) timed(ctx context.Context, write func(context.Context, []*nats.Msg) error) (float64, error) {
	b.run++
	messages := make([]*nats.Msg, b.messages)
	payload := make([]byte, outboxPayload)
	for i := range messages {
		messages[i] = &nats.Msg{Subject: benchCell.Workspace(int64(b.run), fmt.Sprintf("w%d", i%outboxEntities), "state_changed"), Data: payload}
	}
	stream, err := b.js.Stream(ctx, topology.StreamWorkspaces)
	if err != nil {
		return 0, fmt.Errorf("look at the stream: %w", err)
	}
	want := stream.CachedInfo().State.LastSeq + uint64(b.messages)
	begun := time.Now()
	if err := write(ctx, messages); err != nil {
		return 0, err
	}
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0, fmt.Errorf("look at the stream: %w", err)
		}
		if info.State.LastSeq >= want {
			return float64(b.messages) / time.Since(begun).Seconds(), nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return 0, errors.Join(errors.New("wait for the stream"), context.Cause(ctx))
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
		return fmt.Errorf("publish: %w", context.Cause(ctx))
	}
}
