package postgres

import "lockstep.internal/libs/readmodel"

// rebuiltTable declares the columns of a table that are derived from the streams.
type rebuiltTable struct {
	readmodel.Table

	// counted are columns that triggers keep, in the live table and in its shadow.
	counted []string
	// reset is an SQL assignment of the initial values of the derived columns.
	reset string
	// final is an SQL condition for live rows that no event changes any more.
	final string
}

// rebuiltTables returns the tables in the order in which they are locked.
func rebuiltTables() []rebuiltTable {
	return []rebuiltTable{
		{
			Table: readmodel.Table{
				Name: "agents", Key: []string{"id"}, UserRows: true,
				Derived: []string{"cluster_uid", "epoch", "ticked_at", "clock_offset_ms", "last_seen_at"},
			},
			counted: []string{"objects"},
			reset:   `objects = 0, cluster_uid = null, epoch = 1, ticked_at = null, clock_offset_ms = 0, last_seen_at = null`,
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
			// seen_at depends on batch boundaries, so it is not derived. Columns of a requested deletion are copied.
			Table: readmodel.Table{
				Name: "orphans", Key: []string{"agent_id", "uid"},
				Derived: []string{"workspace", "namespace", "name"},
			},
		},
		{
			// actual_state_revision and _changed_at count published events, so they are not derived.
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
					"remaining_reason",
					"remaining_message",
				},
			},
			reset: `actual_state = 'creation_requested', reason = '', message = '', reconsider_at = null,
				applied_revision = 0, applied_at = null, applied_uid = '', applied_generation = 0,
				apply_error_revision = null, apply_error_reason = null, apply_error_message = null,
				termination = 'none', remaining_reason = '', remaining_message = ''`,
			final: `l.actual_state = 'terminated' and l.desired_state = 'terminated'`,
		},
	}
}

func objectKey() []string { return []string{"agent_id", "kind", "namespace", "name"} }
