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

// commits are the notifications that transactions sent with their commits.
type commits struct {
	mu       sync.Mutex
	received []commit
	changed  chan struct{} // closed and replaced after each commit
	err      error
}

type commit struct {
	number uint64
	at     time.Time
}

// watchCommits makes the database notify of every commit with a row of the table that meets the condition. The number
// is the value of the column.
func watchCommits(ctx context.Context, f *fixture, pool *pgxpool.Pool, table, column, condition string) *commits {
	must(pool.Exec(ctx, `
		create function notify_bench() returns trigger language plpgsql as
			$$ begin perform pg_notify('bench', new.`+column+`::text); return null; end $$;
		create trigger notify_bench after update on `+table+`
			for each row when (`+condition+`) execute function notify_bench()`))
	conn := must(pgx.ConnectConfig(ctx, pool.Config().ConnConfig))
	f.onClose(conn.Close)
	must(conn.Exec(ctx, `listen bench`))
	c := &commits{changed: make(chan struct{})}
	f.background(ctx, func(ctx context.Context) error {
		c.listen(ctx, conn)
		return nil
	})
	return c
}

// watchCursor watches the commits of the cursor of OBSERVED.
func watchCursor(ctx context.Context, f *fixture, pool *pgxpool.Pool) *commits {
	return watchCommits(ctx, f, pool, "stream_cursors", "sequence", "new.stream = '"+topology.StreamObserved+"'")
}

func (c *commits) listen(ctx context.Context, conn *pgx.Conn) {
	for {
		notification, err := conn.WaitForNotification(ctx)
		at := time.Now()
		var number uint64
		if err == nil {
			number, err = strconv.ParseUint(notification.Payload, 10, 64)
		}
		c.mu.Lock()
		c.err = err
		if err == nil {
			c.received = append(c.received, commit{number: number, at: at})
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// reached waits for a commit with this number or a higher one and returns its time.
func (c *commits) reached(ctx context.Context, number uint64) time.Time {
	return c.first(ctx, func(n uint64) bool { return n >= number })
}

// first waits for a commit with a matching number and returns the time of the first one.
func (c *commits) first(ctx context.Context, matches func(number uint64) bool) time.Time {
	next := 0
	for {
		c.mu.Lock()
		received, changed, err := c.received, c.changed, c.err
		c.mu.Unlock()
		if err != nil {
			check(fmt.Errorf("listen to commits: %w", err))
		}
		for ; next < len(received); next++ {
			if matches(received[next].number) {
				return received[next].at
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			check(fmt.Errorf("wait for a commit: %w", context.Cause(ctx)))
		}
	}
}
