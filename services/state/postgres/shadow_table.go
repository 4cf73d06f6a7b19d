package postgres

import "lockstep.internal/libs/readmodel"

// rebuiltTable says what of a table is derived from the streams; all other columns say what is wanted, or what was told.
type rebuiltTable struct {
	readmodel.Table

	// reset makes the derived columns of a fixed table what they are before anything is heard.
	reset string
	// final is which rows l of a fixed table keep what they are for ever.
	final string
}

// rebuiltTables are in the order in which they are locked.
func rebuiltTables() []rebuiltTable {
	return []rebuiltTable{
		{
			Table: readmodel.Table{
				Name: "agents", Key: []string{"id"}, UserRows: true,
				Derived: []string{"cluster_uid", "epoch", "ticked_at", "last_seen_at"},
			},
			reset: `cluster_uid = null, epoch = 1, ticked_at = null, last_seen_at = null`,
		},
		{
			Table: readmodel.Table{
				Name: "observed_objects", Key: objectKey(),
				Derived: []string{"uid", "cluster_uid", "epoch", "resource_version", "deleted", "workspace_id", "resync_id", "data"},
			},
		},
		{
			Table: readmodel.Table{
				Name: "resyncs", Key: []string{"agent_id", "resync_id"},
				Derived: []string{"cluster_uid", "epoch", "nonce", "cause", "list_versions", "expected", "received", "outcome", "begun_at", "ended_at"},
			},
		},
		{
			// When it was seen first depends on where batches ended. What came of its deletion is kept with the wish for it.
			Table: readmodel.Table{
				Name: "orphans", Key: []string{"agent_id", "uid"},
				Derived: []string{"workspace", "namespace", "name"},
			},
		},
		{
			// The revision and the time of the actual state count what was told.
			Table: readmodel.Table{
				Name: "workspaces", Key: []string{"id"}, UserRows: true,
				Derived: []string{
					"actual_state", "reason", "message", "reconsider_at", "applied_revision", "applied_at", "applied_uid", "applied_generation",
					"apply_error_revision", "apply_error_reason", "apply_error_message", "termination",
				},
			},
			reset: `actual_state = 'creation_requested', reason = '', message = '', reconsider_at = null, applied_revision = 0, applied_at = null, applied_uid = '',
				applied_generation = 0, apply_error_revision = null, apply_error_reason = null, apply_error_message = null, termination = 'none'`,
			final: `l.actual_state = 'terminated' and l.desired_state = 'terminated'`,
		},
	}
}

func objectKey() []string { return []string{"agent_id", "kind", "namespace", "name"} }
