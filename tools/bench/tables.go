package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
)

// bareUpsert writes the newest version of each row with one guarded statement per transaction.
type bareUpsert struct {
	pool *pgxpool.Pool
	sql  string
}

// newBareUpsert writes to the table observed_objects of the pool.
func newBareUpsert(ctx context.Context, pool *pgxpool.Pool) *bareUpsert {
	var dataType string
	check(pool.QueryRow(ctx, `
		select format_type(atttypid, atttypmod) from pg_attribute
		where attrelid = 'observed_objects'::regclass and attname = 'data'`).Scan(&dataType))
	return &bareUpsert{pool: pool, sql: `
		insert into observed_objects as o (
			agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, data)
		select $1, n.kind, n.namespace, n.name, n.uid, $2, 1, n.version::numeric, false, n.workspace_id,
			n.data::` + dataType + `
		from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[])
			as n (kind, namespace, name, uid, version, workspace_id, data)
		on conflict (agent_id, kind, namespace, name) do update set
			uid = excluded.uid, resource_version = excluded.resource_version,
			workspace_id = excluded.workspace_id, data = excluded.data
		where excluded.resource_version > o.resource_version`}
}

// put writes the rows, as many per transaction as the state service.
func (u *bareUpsert) put(ctx context.Context, rows []row) {
	const batch = 1000
	for len(rows) > 0 {
		n := min(len(rows), batch)
		u.putBatch(ctx, rows[:n])
		rows = rows[n:]
	}
}

func (u *bareUpsert) putBatch(ctx context.Context, rows []row) {
	// A statement may have a row only once: the last one.
	last := make(map[[3]string]int, len(rows))
	for i, r := range rows {
		last[[3]string{r.kind, r.namespace, r.name}] = i
	}
	var columns [6][]string
	var workspaces []*uuid.UUID
	for i, r := range rows {
		if last[[3]string{r.kind, r.namespace, r.name}] != i {
			continue
		}
		for c, value := range []string{r.kind, r.namespace, r.name, r.uid, r.version, r.data} {
			columns[c] = append(columns[c], value)
		}
		workspaces = append(workspaces, r.workspace)
	}
	check(postgres.InTx(ctx, u.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, u.sql, benchAgent, clusterUID,
			columns[0], columns[1], columns[2], columns[3], columns[4], workspaces, columns[5])
		return err //nolint:wrapcheck // shown as it is
	}))
}

// cursorWatch knows the commits of the cursor of the stream OBSERVED.
type cursorWatch struct {
	mu      sync.Mutex
	commits []commit
	changed chan struct{} // closed and replaced after each commit
	err     error
}

type commit struct {
	sequence uint64
	at       time.Time
}

// watchCursor makes the database notify of every commit that moves the cursor.
func watchCursor(ctx context.Context, f *fixture, pool *pgxpool.Pool) *cursorWatch {
	must(pool.Exec(ctx, `
		create function notify_cursor() returns trigger language plpgsql as
			$$ begin perform pg_notify('bench_cursor', new.sequence::text); return null; end $$;
		create trigger notify_cursor after update on stream_cursors
			for each row when (new.stream = '`+topology.StreamObserved+`') execute function notify_cursor()`))
	conn := must(pgx.ConnectConfig(ctx, pool.Config().ConnConfig))
	f.onClose(conn.Close)
	must(conn.Exec(ctx, `listen bench_cursor`))
	w := &cursorWatch{changed: make(chan struct{})}
	f.background(ctx, func(ctx context.Context) error {
		w.listen(ctx, conn)
		return nil
	})
	return w
}

func (w *cursorWatch) listen(ctx context.Context, conn *pgx.Conn) {
	for {
		notification, err := conn.WaitForNotification(ctx)
		at := time.Now()
		var sequence uint64
		if err == nil {
			sequence, err = strconv.ParseUint(notification.Payload, 10, 64)
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

// reached waits for a commit of the cursor at or after a sequence and returns its time. Sequences
// must not decrease from call to call.
func (w *cursorWatch) reached(ctx context.Context, sequence uint64) (time.Time, error) {
	for {
		w.mu.Lock()
		for len(w.commits) > 0 && w.commits[0].sequence < sequence && w.err == nil {
			w.commits = w.commits[1:]
		}
		commits, changed, err := w.commits, w.changed, w.err
		w.mu.Unlock()
		if err != nil {
			return time.Time{}, fmt.Errorf("listen to the cursor: %w", err)
		}
		if len(commits) > 0 {
			return commits[0].at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for a commit: %w", context.Cause(ctx))
		}
	}
}
