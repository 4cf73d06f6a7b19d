package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
)

// putRows writes the newest version of each row with a guarded statement per transaction, which has as many rows as
// those of the state service. No two rows may have the same key.
func putRows(ctx context.Context, pool *pgxpool.Pool, rows []row) {
	const sql = `
		insert into observed_objects as o (
			agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, data)
		select $1, n.kind, n.namespace, n.name, n.uid, $2, 1, n.version::numeric, false, n.workspace_id, n.data
		from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[])
			as n (kind, namespace, name, uid, version, workspace_id, data)
		on conflict (agent_id, kind, namespace, name) do update set
			uid = excluded.uid, resource_version = excluded.resource_version,
			workspace_id = excluded.workspace_id, data = excluded.data
		where excluded.resource_version > o.resource_version`
	for batch := range slices.Chunk(rows, 1000) {
		var columns [6][]string
		var workspaces []*uuid.UUID
		for _, r := range batch {
			for c, value := range []string{r.kind, r.namespace, r.name, r.uid, r.version, r.data} {
				columns[c] = append(columns[c], value)
			}
			workspaces = append(workspaces, r.workspace)
		}
		check(postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, benchAgent, clusterUID,
				columns[0], columns[1], columns[2], columns[3], columns[4], workspaces, columns[5])
			return err //nolint:wrapcheck // shown as it is
		}))
	}
}

// commit is the number that a transaction sent with its commit.
type commit uint64

// watchCommits makes the database notify of every commit with a row of the table that meets the condition. The number
// is the value of the column.
func watchCommits(
	ctx context.Context, f *fixture, pool *pgxpool.Pool, table, column, condition string,
) *timeline[commit] {
	must(pool.Exec(ctx, `
		create function notify_bench() returns trigger language plpgsql as
			$$ begin perform pg_notify('bench', new.`+column+`::text); return null; end $$;
		create trigger notify_bench after update on `+table+`
			for each row when (`+condition+`) execute function notify_bench()`))
	conn := must(pgx.ConnectConfig(ctx, pool.Config().ConnConfig))
	f.onClose(conn.Close)
	must(conn.Exec(ctx, `listen bench`))
	commits := newTimeline[commit]()
	f.background(ctx, func(ctx context.Context) error {
		for {
			notification, err := conn.WaitForNotification(ctx)
			at := time.Now()
			var number uint64
			if err == nil {
				number, err = strconv.ParseUint(notification.Payload, 10, 64)
			}
			if commits.add(commit(number), at, err); err != nil {
				return nil //nolint:nilerr // first returns it
			}
		}
	})
	return commits
}

// cursor waits for commits of the cursor of OBSERVED.
type cursor struct{ *timeline[commit] }

func watchCursor(ctx context.Context, f *fixture, pool *pgxpool.Pool) cursor {
	return cursor{watchCommits(ctx, f, pool, "stream_cursors", "sequence", "new.stream = '"+topology.StreamObserved+"'")}
}

// reached waits for a commit with this sequence or a higher one and returns its time.
func (c cursor) reached(ctx context.Context, sequence uint64) time.Time {
	return c.first(ctx, func(reached commit) bool { return uint64(reached) >= sequence })
}
