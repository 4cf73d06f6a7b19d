package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

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

// outboxRows measures commits to the outbox and its publisher beside bare asynchronous publishes.
func outboxRows(ctx context.Context, f *fixture, size Size, measured Measured) {
	conn, js, _ := f.jetStream(ctx)
	pool := f.pool(ctx, f.postgres(ctx), "outbox", must(outbox.Migrations()))
	f.background(ctx, must(outbox.New(outbox.Config{Pool: pool, Conn: conn, Logger: quiet()})).Run)

	// timed measures from the first write to the last message on the stream.
	run := 0
	timed := func(write func([]*nats.Msg)) float64 {
		run++
		messages := make([]*nats.Msg, size.of(outboxMessages))
		for i := range messages {
			subject := benchCell.Workspace(int64(run), fmt.Sprintf("w%d", i%outboxEntities), "state_changed")
			messages[i] = &nats.Msg{Subject: subject, Data: make([]byte, outboxPayload)}
		}
		want := lastSequence(ctx, js, topology.StreamWorkspaces) + uint64(len(messages))
		began := time.Now()
		write(messages)
		poll := time.NewTicker(time.Millisecond)
		defer poll.Stop()
		for lastSequence(ctx, js, topology.StreamWorkspaces) < want {
			<-poll.C
		}
		return perSecond(len(messages), began)
	}
	measured["rows_per_s"] = takeTurns(ctx, size.For,
		func(int) float64 {
			return timed(func(messages []*nats.Msg) {
				for part := range slices.Chunk(messages, outboxPerTx) {
					check(postgres.InTx(ctx, pool, func(tx pgx.Tx) error { return outbox.Insert(ctx, tx, part...) }))
				}
			})
		},
		func(int) float64 {
			return timed(func(messages []*nats.Msg) {
				for _, m := range messages {
					must(js.PublishMsgAsync(m))
				}
				published(ctx, js)
			})
		})
}
