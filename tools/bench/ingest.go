package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/domain"
	statenats "lockstep.internal/services/state/nats"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/watcher/kube"
)

// ingestFamily measures how fast what clusters say comes into the database: through the state service's real ingest and its cursor.
func ingestFamily() Family {
	return Family{
		Name: "ingest",
		About: "Observed events on the stream → committed rows in the tables of the state service, through its real ingest. rows_per_s is of objects " +
			"that belong to no workspace, half of them new and half of them seen before: what taking in costs. workspace_rows_per_s is of workspaces that all change " +
			"their state with it: each is computed anew and told of, which the bare upserts beside it do nothing of.",
		Specs: []Spec{
			{
				Name: "rows_per_s", Unit: "1/s", About: "observed events committed, from the consumer's start to the last commit",
				Baseline: "bare pgx unnest upserts of the same rows from memory, a thousand a transaction", Aim: Aim{Of: ofRatio, AtLeast: 0.7},
			},
			{
				Name: "workspace_rows_per_s", Unit: "1/s", About: "the same, where every third event changes the state of a workspace",
				Baseline: "bare upserts of the same rows, without deciding or telling anything",
			},
			{Name: "commit_p50_ms", Unit: "ms", About: "published → committed, half of the events, at a steady 200 a second of workspaces that change", Baseline: "one bare upsert's transaction"},
			{Name: "commit_p99_ms", Unit: "ms", About: "the same, all but one in a hundred", Baseline: "the same percentile of bare upserts' transactions", Aim: Aim{Of: ofValue, Below: 25}},
		},
		Run: ingestFigures,
	}
}

const (
	ingestWorkspaces = 1000
	ingestObjects    = 5000 // workspaces' worth of them, three each
	steadyRate       = 200
)

// ingestBed is a stream and two sets of tables.
type ingestBed struct {
	js         jetstream.JetStream
	ours       *pgxpool.Pool
	bare       *bareUpsert
	cursor     *cursorWatch
	workspaces []domain.Workspace
	version    int
	sequence   uint64 // of the last message published

	// prepared is what the next two turns take in.
	prepared []observation
	round    int
}

func ingestFigures(ctx context.Context, size Size) (measured Measured, err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	b, err := newIngestBed(ctx, parts, size.of(ingestWorkspaces))
	if err != nil {
		return nil, err
	}
	anonymous, err := newFleet(benchAgent, "o")
	if err != nil {
		return nil, err
	}
	anonymous.anonymous = true
	known, err := newFleet(benchAgent, "w")
	if err != nil {
		return nil, err
	}
	known.workspaces = b.workspaces
	measured = Measured{}
	objects := size.of(ingestObjects)
	for name, observe := range map[string]func(round int) ([]observation, error){
		// Each round sees the second half of the round before again.
		"rows_per_s": func(round int) ([]observation, error) {
			return b.observations(anonymous, round*objects/2, objects, true)
		},
		"workspace_rows_per_s": func(round int) ([]observation, error) {
			return b.observations(known, 0, len(b.workspaces), round%2 == 0)
		},
	} {
		if !size.wants(name) {
			continue
		}
		if err := b.compare(ctx, measured, name, size, observe); err != nil {
			return nil, err
		}
	}
	if !size.wants("commit_p50_ms", "commit_p99_ms") {
		return measured, nil
	}
	return measured, b.steady(ctx, measured, known, size)
}

func newIngestBed(ctx context.Context, parts *bed, workspaces int) (*ingestBed, error) {
	database, err := parts.postgres(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := parts.nats()
	if err != nil {
		return nil, err
	}
	b := &ingestBed{round: -1}
	if b.js, err = parts.streams(ctx, conn); err != nil {
		return nil, err
	}
	if b.ours, err = parts.state(ctx, database.URL(), "ours"); err != nil {
		return nil, err
	}
	bare, err := parts.state(ctx, database.URL(), "bare")
	if err != nil {
		return nil, err
	}
	if b.bare, err = newBareUpsert(ctx, bare); err != nil {
		return nil, err
	}
	if b.cursor, err = watchCursor(ctx, parts, b.ours); err != nil {
		return nil, err
	}
	return b, b.makeWorkspaces(ctx, workspaces)
}

func (b *ingestBed) makeWorkspaces(ctx context.Context, n int) error {
	workspaces := &store.Workspaces{Cell: benchCell}
	err := postgres.InTx(ctx, b.ours, func(tx pgx.Tx) error {
		for i := range n {
			w, err := domain.NewWorkspace(domain.Creation{
				Name: fmt.Sprintf("w%06d", i), ProjectID: 4, AgentID: benchAgent, UserID: 9, Template: "default",
				Spec: domain.Spec{Image: "registry.example.com/ide:9"}, Now: time.Now(),
			})
			if err != nil {
				return err
			}
			if err := workspaces.Insert(ctx, tx, w); err != nil {
				return err
			}
			b.workspaces = append(b.workspaces, w)
		}
		_, err := tx.Exec(ctx, `truncate outbox`)
		return err //nolint:wrapcheck // said below
	})
	if err != nil {
		return fmt.Errorf("make workspaces: %w", err)
	}
	return nil
}

// observations of the three objects of each of n workspaces from the first on, each in a new version.
func (b *ingestBed) observations(f *fleet, first, n int, ready bool) ([]observation, error) {
	out := make([]observation, 0, n*len(kube.WorkspaceKinds()))
	for i := first; i < first+n; i++ {
		for _, kind := range kube.WorkspaceKinds() {
			b.version++
			o, err := f.observe(kind, f.object(kind, i, b.version, ready), time.Now())
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// compare takes turns between ingest and bare upserts over what a round observes.
func (b *ingestBed) compare(ctx context.Context, measured Measured, name string, size Size, observe func(round int) ([]observation, error)) error {
	prepare := func(round int) error {
		if b.round == round {
			return nil
		}
		var err error
		b.prepared, err = observe(round)
		b.round = round
		return err
	}
	b.round = -1
	ours, bare, err := takeTurns(ctx, size.For,
		func(ctx context.Context, round int) (float64, error) {
			if err := prepare(round); err != nil {
				return 0, err
			}
			return b.ingest(ctx)
		},
		func(ctx context.Context, round int) (float64, error) {
			if err := prepare(round); err != nil {
				return 0, err
			}
			rows := make([]row, len(b.prepared))
			for i := range b.prepared {
				rows[i] = b.prepared[i].row
			}
			began := time.Now()
			_, err := b.bare.put(ctx, rows)
			return float64(len(rows)) / time.Since(began).Seconds(), err
		})
	if err != nil {
		return err
	}
	measured[name] = beside(median(ours), median(bare))
	return nil
}

// ingest publishes what is prepared, and then measures the consumer from its start to the commit of the last one.
func (b *ingestBed) ingest(ctx context.Context) (float64, error) {
	futures := make([]jetstream.PubAckFuture, 0, len(b.prepared))
	for i := range b.prepared {
		future, err := b.js.PublishMsgAsync(b.prepared[i].message)
		if err != nil {
			return 0, fmt.Errorf("publish: %w", err)
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		ack, err := acknowledged(ctx, future)
		if err != nil {
			return 0, err
		}
		b.sequence = max(b.sequence, ack.Sequence)
	}
	began := time.Now()
	stop, err := b.consume(ctx)
	if err != nil {
		return 0, err
	}
	at, err := b.cursor.reached(ctx, b.sequence)
	return float64(len(b.prepared)) / at.Sub(began).Seconds(), errors.Join(err, stop())
}

func acknowledged(ctx context.Context, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, fmt.Errorf("publish: %w", err)
	case <-ctx.Done():
		return nil, fmt.Errorf("publish: %w", context.Cause(ctx))
	}
}

// consume runs the real consumer of the stream until it is stopped.
func (b *ingestBed) consume(ctx context.Context) (func() error, error) {
	in := &statenats.Ingest{
		Pool: b.ours, JetStream: b.js, Cell: benchCell, Logger: quiet(),
		Workspaces: &store.Workspaces{Cell: benchCell}, Observations: &store.Observations{Cell: benchCell},
	}
	observed, err := in.Observed()
	if err != nil {
		return nil, fmt.Errorf("open the ingest: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- observed.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

// steady publishes at a moderate rate and measures until each is committed, in spells between which bare transactions are measured.
func (b *ingestBed) steady(ctx context.Context, measured Measured, f *fleet, size Size) error {
	stop, err := b.consume(ctx)
	if err != nil {
		return err
	}
	var ours, bare []float64
	next := 0
	_, _, err = takeTurns(ctx, size.For,
		func(ctx context.Context, round int) (float64, error) {
			spell := make([]observation, 0, steadyRate)
			for range size.of(steadyRate) {
				kind := kube.WorkspaceKinds()[next%len(kube.WorkspaceKinds())]
				b.version++
				o, err := f.observe(kind, f.object(kind, next/len(kube.WorkspaceKinds())%len(b.workspaces), b.version, round%2 == 0), time.Now())
				if err != nil {
					return 0, err
				}
				spell, next = append(spell, o), next+1
			}
			took, err := b.spell(ctx, spell)
			ours = append(ours, took...)
			return 0, err
		},
		func(ctx context.Context, _ int) (float64, error) {
			for range size.of(steadyRate / 4) {
				b.version++
				id := uuid.New().String()
				took, err := b.bare.put(ctx, []row{{kind: "pod", namespace: "bare", name: id, uid: id, version: strconv.Itoa(b.version), data: "{}"}})
				if err != nil {
					return 0, err
				}
				bare = append(bare, milliseconds(took[0]))
			}
			return 0, nil
		})
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	measured["commit_p50_ms"] = beside(median(ours), median(bare))
	measured["commit_p99_ms"] = beside(percentile(ours, 99), percentile(bare, 99))
	return nil
}

// spell publishes one message after the other, steadyRate a second, and returns how long each took to be committed, in milliseconds.
func (b *ingestBed) spell(ctx context.Context, spell []observation) ([]float64, error) {
	ticker := time.NewTicker(time.Second / steadyRate)
	defer ticker.Stop()
	published := make([]time.Time, len(spell))
	futures := make([]jetstream.PubAckFuture, len(spell))
	for i := range spell {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("publish: %w", context.Cause(ctx))
		}
		published[i] = time.Now()
		future, err := b.js.PublishMsgAsync(spell[i].message)
		if err != nil {
			return nil, fmt.Errorf("publish: %w", err)
		}
		futures[i] = future
	}
	took := make([]float64, len(spell))
	for i, future := range futures {
		ack, err := acknowledged(ctx, future)
		if err != nil {
			return nil, err
		}
		b.sequence = max(b.sequence, ack.Sequence)
		at, err := b.cursor.reached(ctx, ack.Sequence)
		if err != nil {
			return nil, err
		}
		took[i] = milliseconds(at.Sub(published[i]))
	}
	return took, nil
}

// cursorWatch knows when a cursor of the stream OBSERVED was committed where.
type cursorWatch struct {
	mu      sync.Mutex
	commits []commit
	changed chan struct{} // closed and replaced at each commit
	err     error
}

type commit struct {
	sequence uint64
	at       time.Time
}

// watchCursor has the database itself notify of every commit that moves the cursor, so that nothing but commits is measured.
func watchCursor(ctx context.Context, parts *bed, pool *pgxpool.Pool) (*cursorWatch, error) {
	_, err := pool.Exec(ctx, `
		create function tell_cursor() returns trigger language plpgsql as $$ begin perform pg_notify('bench_cursor', new.sequence::text); return null; end $$;
		create trigger tell_cursor after update on stream_cursors for each row when (new.stream = '`+topology.StreamObserved+`') execute function tell_cursor()`)
	if err != nil {
		return nil, fmt.Errorf("have the cursor told: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("listen to the cursor: %w", err)
	}
	parts.onClose(conn.Close)
	if _, err := conn.Exec(ctx, `listen bench_cursor`); err != nil {
		return nil, fmt.Errorf("listen to the cursor: %w", err)
	}
	w := &cursorWatch{changed: make(chan struct{})}
	listening, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.listen(listening, conn) })
	parts.onClose(func(context.Context) error {
		cancel()
		running.Wait()
		return nil
	})
	return w, nil
}

func (w *cursorWatch) listen(ctx context.Context, conn *pgx.Conn) {
	for {
		told, err := conn.WaitForNotification(ctx)
		at := time.Now()
		var sequence uint64
		if err == nil {
			sequence, err = strconv.ParseUint(told.Payload, 10, 64)
		}
		w.mu.Lock()
		w.err = err
		w.commits = append(w.commits, commit{sequence: sequence, at: at})
		close(w.changed)
		w.changed = make(chan struct{})
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// reached waits until the cursor is committed at or beyond a sequence and returns when that was. Sequences are asked for in rising order.
func (w *cursorWatch) reached(ctx context.Context, sequence uint64) (time.Time, error) {
	for {
		w.mu.Lock()
		for len(w.commits) > 0 && w.commits[0].sequence < sequence && w.err == nil {
			w.commits = w.commits[1:]
		}
		changed, err := w.changed, w.err
		if err == nil && len(w.commits) > 0 {
			at := w.commits[0].at
			w.mu.Unlock()
			return at, nil
		}
		w.mu.Unlock()
		if err != nil {
			return time.Time{}, fmt.Errorf("listen to the cursor: %w", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for a commit: %w", context.Cause(ctx))
		}
	}
}
