package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// upsertBatch is how many rows a transaction takes: as many as the real one's.
const upsertBatch = 1000

// bareUpsert is the least that keeps the newest version of each row: one guarded statement a transaction, straight from memory.
type bareUpsert struct {
	pool *pgxpool.Pool
	sql  string
}

// newBareUpsert reads the type of the column that keeps the data, so that both write the same table.
func newBareUpsert(ctx context.Context, pool *pgxpool.Pool) (*bareUpsert, error) {
	var kind string
	err := pool.QueryRow(ctx, `
		select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'observed_objects'::regclass and attname = 'data'`).Scan(&kind)
	if err != nil {
		return nil, fmt.Errorf("look at the table: %w", err)
	}
	return &bareUpsert{pool: pool, sql: `
		insert into observed_objects as o (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted, workspace_id, data)
		select $1, n.kind, n.namespace, n.name, n.uid, $2, 1, n.version::numeric, false, n.workspace_id, n.data::` + kind + `
		from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[]) as n (kind, namespace, name, uid, version, workspace_id, data)
		on conflict (agent_id, kind, namespace, name) do update set
			uid = excluded.uid, resource_version = excluded.resource_version, workspace_id = excluded.workspace_id, data = excluded.data
		where excluded.resource_version > o.resource_version`}, nil
}

// put writes the rows, and returns how long each transaction took.
func (u *bareUpsert) put(ctx context.Context, rows []row) ([]time.Duration, error) {
	var took []time.Duration
	for len(rows) > 0 {
		n := min(len(rows), upsertBatch)
		began := time.Now()
		if err := u.putBatch(ctx, rows[:n]); err != nil {
			return nil, fmt.Errorf("write bare rows: %w", err)
		}
		took = append(took, time.Since(began))
		rows = rows[n:]
	}
	return took, nil
}

func (u *bareUpsert) putBatch(ctx context.Context, rows []row) error {
	// The last of each key: a statement may name a row once.
	last := make(map[[3]string]int, len(rows))
	for i := range rows {
		last[[3]string{rows[i].kind, rows[i].namespace, rows[i].name}] = i
	}
	n := len(last)
	text := func() []string { return make([]string, 0, n) }
	kinds, namespaces, names, uids, versions, data := text(), text(), text(), text(), text(), text()
	workspaces := make([]*uuid.UUID, 0, n)
	for i := range rows {
		r := &rows[i]
		if last[[3]string{r.kind, r.namespace, r.name}] != i {
			continue
		}
		kinds, namespaces, names, uids = append(kinds, r.kind), append(namespaces, r.namespace), append(names, r.name), append(uids, r.uid)
		versions, workspaces, data = append(versions, r.version), append(workspaces, r.workspace), append(data, r.data)
	}
	return postgres.InTx(ctx, u.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, u.sql, benchAgent, clusterUID, kinds, namespaces, names, uids, versions, workspaces, data)
		return err //nolint:wrapcheck // put says what failed
	})
}
