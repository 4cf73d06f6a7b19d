package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/services/state/ingest"
)

// SaveActivity implements ingest.ActivityStore. It locks the workspaces in the order of their ids. Workspaces that do
// not exist are skipped.
func (s *IngestStore) SaveActivity(ctx context.Context, activity []ingest.Activity) error {
	n := len(activity)
	ids, times := make([]uuid.UUID, n), make([]time.Time, n)
	users, programs := make([]*int64, n), make([]*string, n)
	for i, a := range activity {
		ids[i], times[i], users[i], programs[i] = a.WorkspaceID, a.At, nullable(a.UserID), nullable(a.Program)
	}
	_, err := s.tx.Exec(ctx, `
		with locked as (select id from workspaces where id = any($1) order by id for no key update)
		update workspaces w set last_activity_at = n.at, last_activity_user_id = n.user_id,
			last_activity_program = n.program
		from locked join unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::text[])
			as n (id, at, user_id, program) using (id)
		where w.id = locked.id and n.at > coalesce(w.last_activity_at, '-infinity')`,
		ids, times, users, programs)
	if err != nil {
		return fmt.Errorf("store the activity of %d workspaces: %w", n, err)
	}
	return nil
}
