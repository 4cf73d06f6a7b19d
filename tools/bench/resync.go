package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/events"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natsd"
)

// The sizes of a resync, in workspaces.
const (
	resyncSmall  = 1000
	resyncMiddle = 10_000
	resyncLarge  = 50_000
)

// resyncBed is a control plane with one agent.
type resyncBed struct {
	parts       *fixture
	dir         string
	database    *pgxpool.Pool
	state       *child
	fleet       *fleet
	project     int64
	credentials string
	stored      int // workspaces there are
}

// resyncFigures measures full resyncs.
func resyncFigures(ctx context.Context, size Size) (measured Measured, err error) {
	parts := &fixture{profile: size.Profile}
	defer parts.close(ctx, &err)
	b, err := newResyncBed(ctx, parts)
	if err != nil {
		return nil, err
	}
	sizes := []struct {
		name  string
		count int
		times int
	}{{"1k_s", resyncSmall, 1}, {"10k_s", resyncMiddle, 1}, {"50k_s", resyncLarge, 1}}
	if !size.Long {
		sizes = sizes[:2]
	}
	measured = Measured{}
	var perWorkspace []float64
	for _, s := range sizes {
		count := size.of(s.count)
		took, peak, err := b.measure(ctx, count, s.times)
		if err != nil {
			return nil, fmt.Errorf("a resync of %d workspaces: %w", count, err)
		}
		measured[s.name] = Measurement{Value: took}
		measured["peak_mb.watcher"] = Measurement{Value: peak, Note: fmt.Sprintf("of %d workspaces", count)}
		perWorkspace = append(perWorkspace, took*1000/float64(count))
		growth := beside(perWorkspace[len(perWorkspace)-1], perWorkspace[0])
		growth.Note = fmt.Sprintf("%d workspaces over %d", count, size.of(resyncSmall))
		measured["growth"] = growth
	}
	peak, err := b.state.ask(ctx, askPeak)
	measured["peak_mb.state"] = Measurement{Value: peak / (1 << 20), Note: measured["peak_mb.watcher"].Note}
	return measured, err
}

func newResyncBed(ctx context.Context, parts *fixture) (*resyncBed, error) {
	b := &resyncBed{parts: parts}
	var err error
	if b.dir, err = parts.folder(); err != nil {
		return nil, err
	}
	database, err := parts.postgres(ctx)
	if err != nil {
		return nil, err
	}
	natsDir := filepath.Join(b.dir, "nats")
	report, err := natsauth.Init(natsDir, natsauth.Options{Cell: benchCell})
	if err != nil {
		return nil, fmt.Errorf("configure NATS: %w", err)
	}
	server, err := natsd.Start(natsd.Options{ConfigFile: report.ConfigFile})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	parts.onClose(func(context.Context) error { return server.Stop() })
	keys, _, err := stack.InitKeys(filepath.Join(b.dir, "keys"))
	if err != nil {
		return nil, fmt.Errorf("make the keys of the state service: %w", err)
	}
	b.state, err = parts.start(
		ctx,
		b.dir,
		childState,
		"--cell-name="+string(benchCell),
		"--database-url="+database.URL(),
		"--nats-url="+server.ClientURL(),
		"--agents-keys-dir="+natsDir,
		"--secrets-seal-seed-file="+keys.SealSeedFile,
		"--secrets-digest-key-file="+keys.DigestKeyFile,
		"--bootstrap-admin-token-file="+keys.AdminTokenFile,
		"--api-listen=127.0.0.1:0",
		"--ops-listen=127.0.0.1:0",
	)
	if err != nil {
		return nil, err
	}
	if b.database, err = parts.pool(ctx, database.URL(), childState); err != nil {
		return nil, err
	}
	return b, b.register(ctx, keys.AdminTokenFile)
}

// register makes the agent whose workspaces are told of.
func (b *resyncBed) register(ctx context.Context, tokenFile string) error {
	token, err := readLine(tokenFile)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	b.parts.onClose(func(context.Context) error {
		transport.CloseIdleConnections()
		return nil
	})
	api := client.New(&http.Client{Transport: transport}, "http://"+b.state.addrs["api"], token)
	project, err := api.EnsureProject(ctx, "bench/bench/bench")
	if err != nil {
		return fmt.Errorf("make a project: %w", err)
	}
	credentials, agent, err := stack.RegisterAgent(ctx, api, project.GetId(), "bench")
	if err != nil {
		return fmt.Errorf("register an agent: %w", err)
	}
	b.credentials = filepath.Join(b.dir, "agent.json")
	if err := natsauth.WriteAgentCredentials(b.credentials, credentials); err != nil {
		return fmt.Errorf("write the agent's credentials: %w", err)
	}
	b.project = project.GetId()
	b.fleet, err = newFleet(agent.GetId(), "w")
	return err
}

// measure has a new watcher report n workspaces, and returns the median of some full resyncs and its peak of memory.
func (b *resyncBed) measure(ctx context.Context, n, times int) (seconds, peak float64, err error) {
	parts := &fixture{profile: b.parts.profile}
	defer parts.close(ctx, &err)
	if err := b.store(ctx, n); err != nil {
		return 0, 0, err
	}
	kubeconfig, err := parts.cluster(ctx, b.dir, b.fleet, n)
	if err != nil {
		return 0, 0, err
	}
	before, err := b.complete(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	w, err := parts.start(
		ctx,
		b.dir,
		childWatcher,
		"--credentials-file="+b.credentials,
		"--kubernetes-kubeconfig="+kubeconfig,
		"--ops-listen=127.0.0.1:0",
	)
	if err != nil {
		return 0, 0, err
	}
	// The first, which it begins with. It may be followed by another, because of the agent's configuration.
	if before, err = b.complete(ctx, before+1); err != nil {
		return 0, 0, err
	}
	var took []float64
	for range times {
		asked := time.Now()
		if err := b.ask(ctx); err != nil {
			return 0, 0, err
		}
		if before, err = b.complete(ctx, before+1); err != nil {
			return 0, 0, err
		}
		took = append(took, time.Since(asked).Seconds())
	}
	peak, err = w.ask(ctx, askPeak)
	if err == nil {
		err = w.stop()
	}
	return median(took), peak / (1 << 20), err
}

// store makes workspaces that run, up to n of them.
func (b *resyncBed) store(ctx context.Context, n int) error {
	var user int64
	if err := b.database.QueryRow(ctx, `select id from users limit 1`).Scan(&user); err != nil {
		return fmt.Errorf("find a user: %w", err)
	}
	ids, names, namespaces := []string{}, []string{}, []string{}
	for i := b.stored; i < n; i++ {
		ids, names, namespaces = append(
			ids,
			b.fleet.id("workspace", i).String(),
		), append(
			names,
			b.fleet.name(i),
		), append(
			namespaces,
			b.fleet.namespace(i),
		)
	}
	_, err := b.database.Exec(ctx, `
		insert into workspaces (id, name, namespace, project_id, agent_id, user_id, template, created_at, spec, desired_state, desired_revision, desired_state_changed_at,
			actual_state, actual_state_changed_at, applied_revision, applied_at)
		select n.id, n.name, n.namespace, $4, $5, $6, 'default', now(), '{"image": "ide"}', 'running', 1, now(), 'running', now(), 1, now()
		from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, name, namespace)`, ids, names, namespaces, b.project, b.fleet.agent, user)
	if err != nil {
		return fmt.Errorf("make workspaces: %w", err)
	}
	b.stored = max(b.stored, n)
	return nil
}

// ask asks the watcher for a full resync, as the state service does.
func (b *resyncBed) ask(ctx context.Context) error {
	observations := &store.Observations{Encoder: publish.Encoder{Cell: benchCell}}
	err := postgres.InTx(ctx, b.database, func(tx pgx.Tx) error {
		nonces, err := observations.In(tx).RequestResyncs(ctx, []int64{b.fleet.agent}, events.ResyncRequestCauseOperator, time.Now())
		if err == nil && len(nonces) == 0 {
			return errors.New("the agent does not exist")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("ask for a full resync: %w", err)
	}
	return nil
}

// complete waits until at least so many full resyncs have come in whole and none is under way, and returns how many have.
func (b *resyncBed) complete(ctx context.Context, least int) (int, error) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		var whole, open int
		err := b.database.QueryRow(
			ctx,
			`select count(*) filter (where outcome = 'complete'), count(*) filter (where outcome = 'open') from resyncs`,
		).Scan(
			&whole,
			&open,
		)
		if err != nil {
			return 0, fmt.Errorf("look at the resyncs: %w", err)
		}
		if whole >= least && open == 0 {
			return whole, nil
		}
		select {
		case <-poll.C:
		case <-b.state.ended:
			return 0, fmt.Errorf("the state service ended: %w", b.state.err)
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for a full resync: %w", context.Cause(ctx))
		}
	}
}
