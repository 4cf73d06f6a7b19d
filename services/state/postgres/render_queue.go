package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// RenderChannel is the NOTIFY channel of workspaces that are queued for rendering. Its payloads are empty.
const RenderChannel = "workspaces_to_render"

// toRender are the workspaces whose last desired revision was not rendered with the present settings. Those with a
// revision of an older version of this service are among them.
const toRender = `rendered_revision < desired_revision and desired_state <> 'terminated'`

// QueueRender queues the workspaces of some agents, or of all without any, whose manifests must be rendered again.
func (d *Directory) QueueRender(ctx context.Context, tx pgx.Tx, agentIDs ...int64) error {
	_, err := tx.Exec(ctx, `
		with locked as (
			select id from workspaces
				where desired_state <> 'terminated' and ($1::bigint[] is null or agent_id = any($1))
				order by id for no key update)
		update workspaces w set rendered_revision = 0 from locked where locked.id = w.id`, agentIDs)
	if err == nil {
		_, err = tx.Exec(ctx, `select pg_notify($1, '')`, RenderChannel)
	}
	if err != nil {
		return fmt.Errorf("queue workspaces for rendering: %w", err)
	}
	return nil
}

// LockToRender locks up to limit workspaces that are queued for rendering, except some, and returns them. They stay
// queued until they are saved with a new desired revision.
func (s *IngestStore) LockToRender(ctx context.Context, limit int, except []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := s.tx.Query(ctx, `
		select id from workspaces where `+toRender+` and id <> all($2) order by id limit $1 for no key update`,
		limit, append([]uuid.UUID{}, except...))
	if err != nil {
		return nil, fmt.Errorf("lock workspaces to render: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("lock workspaces to render: %w", err)
	}
	return ids, nil
}
