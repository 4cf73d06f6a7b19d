package postgres

import "lockstep.internal/libs/readmodel"

// rebuiltTable declares the columns of a table that are derived from the streams.
type rebuiltTable struct {
	readmodel.Table

	// reset assigns the values before the first report to the derived columns of a table with user rows.
	reset string
	// final selects the rows l of a table with user rows that no report changes.
	final string
}

// rebuiltTables returns the tables in the order in which they are locked.
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
				Name: "observed_objects",
				Key:  objectKey(),
				Derived: []string{
					"uid",
					"cluster_uid",
					"epoch",
					"resource_version",
					"deleted",
					"workspace_id",
					"resync_id",
					"data",
				},
			},
		},
		{
			Table: readmodel.Table{
				Name: "resyncs",
				Key:  []string{"agent_id", "resync_id"},
				Derived: []string{
					"cluster_uid",
					"epoch",
					"nonce",
					"cause",
					"list_versions",
					"expected",
					"received",
					"outcome",
					"begun_at",
					"ended_at",
				},
			},
		},
		{
			// The time of the first sight depends on the batches. A deletion is kept with its request.
			Table: readmodel.Table{
				Name: "orphans", Key: []string{"agent_id", "uid"},
				Derived: []string{"workspace", "namespace", "name"},
			},
		},
		{
			// The revision and time of the actual state count published events, so they are kept.
			Table: readmodel.Table{
				Name: "workspaces", Key: []string{"id"}, UserRows: true,
				Derived: []string{
					"actual_state",
					"reason",
					"message",
					"reconsider_at",
					"applied_revision",
					"applied_at",
					"applied_uid",
					"applied_generation",
					"apply_error_revision",
					"apply_error_reason",
					"apply_error_message",
					"termination",
				},
			},
			reset: `actual_state = 'creation_requested', reason = '', message = '', reconsider_at = null, applied_revision = 0, applied_at = null, applied_uid = '',
				applied_generation = 0, apply_error_revision = null, apply_error_reason = null, apply_error_message = null, termination = 'none'`,
			final: `l.actual_state = 'terminated' and l.desired_state = 'terminated'`,
		},
	}
}

func objectKey() []string { return []string{"agent_id", "kind", "namespace", "name"} }
