package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/detection/played"
	"lockstep.internal/tools/testkit/natsd"
)

const (
	heldWorkloads = 5000
	heldRollouts  = 3
)

// measureDeploysHeap tells a service of workloads, of some rollouts of each, and looks at what it holds then.
func measureDeploysHeap(ctx context.Context, measured Measured, size Size) error {
	n := size.of(heldWorkloads)
	var stored float64
	heap, err := heapOf(n, func(n int) (float64, error) {
		heap, bytes, err := deploysHeap(ctx, n)
		stored = bytes
		return heap, err
	})
	if err != nil {
		return err
	}
	m := beside(heap, stored/1024)
	m.Note = fmt.Sprintf("%d workloads after %d rollouts each", n, heldRollouts)
	measured["kb_per_workload"] = m
	return nil
}

// deploysHeap is the heap of a service that knows n workloads, and the bytes that are stored of one.
func deploysHeap(ctx context.Context, n int) (heap, stored float64, err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	dir, err := parts.folder()
	if err != nil {
		return 0, 0, err
	}
	database, err := parts.postgres(ctx)
	if err != nil {
		return 0, 0, err
	}
	server, err := natsd.Start(natsd.Options{})
	if err != nil {
		return 0, 0, fmt.Errorf("start NATS: %w", err)
	}
	parts.onClose(func(context.Context) error { return server.Stop() })
	conn, err := parts.connect(server.ClientURL())
	if err != nil {
		return 0, 0, err
	}
	js, err := parts.streams(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	if err := enter(ctx, js); err != nil {
		return 0, 0, err
	}
	service, err := parts.start(ctx, dir, childDeploys, "--cell-name="+string(benchCell), "--database-url="+database.URL(), "--nats-url="+server.ClientURL(),
		"--api-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	pool, err := parts.pool(ctx, database.URL(), childDeploys)
	if err != nil {
		return 0, 0, err
	}
	cursor, err := watchCursor(ctx, parts, pool)
	if err != nil {
		return 0, 0, err
	}
	last, err := newStage(js, n).play(ctx, heldRollouts)
	if err != nil {
		return 0, 0, err
	}
	if _, err := cursor.reached(ctx, last); err != nil {
		return 0, 0, err
	}
	if heap, err = service.ask(ctx, askHeap); err != nil {
		return 0, 0, err
	}
	if err := pool.QueryRow(ctx, `select coalesce(avg(octet_length(state)), 0) from workloads`).Scan(&stored); err != nil {
		return 0, 0, fmt.Errorf("look at what is stored: %w", err)
	}
	return heap, stored, service.stop()
}

// benchProject is whose agents are.
const benchProject = 4

// enter puts the agent that is played into the directory.
func enter(ctx context.Context, js jetstream.JetStream) error {
	return enterAgent(ctx, js, events.DirectoryAgent{AgentID: played.AgentID, ProjectID: benchProject})
}

// enterAgent puts an agent into the directory, as the state service does.
func enterAgent(ctx context.Context, js jetstream.JetStream, a events.DirectoryAgent) error {
	subject := "agent/" + strconv.Itoa(a.AgentID)
	e, err := event.New(event.Attributes{
		Type: events.TypeDirectoryAgent, Source: event.ServiceSource(string(benchCell), "state"), Subject: subject, ID: subject, Time: time.Now(),
	}, a)
	if err != nil {
		return fmt.Errorf("enter agent %d: %w", a.AgentID, err)
	}
	m, err := event.Encode(e, benchCell.Directory("agent", strconv.Itoa(a.AgentID)))
	if err != nil {
		return fmt.Errorf("enter agent %d: %w", a.AgentID, err)
	}
	if _, err := js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("enter agent %d: %w", a.AgentID, err)
	}
	return nil
}
