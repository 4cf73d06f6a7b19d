package postgres

import (
	"regexp"
	"strings"
)

// rebuiltTable says what of a table is derived from the streams.
type rebuiltTable struct {
	name string
	key  []string
	// derived columns; all others say what is wanted, or what was told.
	derived []string
	// fixed is that its rows are not derived: people make them.
	fixed bool
	// reset makes the derived columns of a fixed table what they are before anything is heard.
	reset string
	// final is which rows l of a fixed table keep what they are for ever.
	final string
}

// rebuiltTables are in the order in which they are locked.
func rebuiltTables() []rebuiltTable {
	return []rebuiltTable{
		{
			name: "agents", key: []string{"id"}, fixed: true,
			derived: []string{"cluster_uid", "epoch", "ticked_at", "last_seen_at"},
			reset:   `cluster_uid = null, epoch = 1, ticked_at = null, last_seen_at = null`,
		},
		{
			name: "observed_objects", key: objectKey(),
			derived: []string{"uid", "cluster_uid", "epoch", "resource_version", "deleted", "workspace_id", "resync_id", "data"},
		},
		{
			name: "resyncs", key: []string{"agent_id", "resync_id"},
			derived: []string{"cluster_uid", "epoch", "nonce", "cause", "list_versions", "expected", "received", "outcome", "begun_at", "ended_at"},
		},
		{
			// When it was seen first depends on where batches ended. What came of its deletion is kept with the wish for it.
			name: "orphans", key: []string{"agent_id", "uid"},
			derived: []string{"workspace", "namespace", "name"},
		},
		{
			// The revision and the time of the actual state count what was told.
			name: "workspaces", key: []string{"id"}, fixed: true,
			derived: []string{
				"actual_state", "reason", "message", "reconsider_at", "applied_revision", "applied_at", "applied_uid", "applied_generation",
				"apply_error_revision", "apply_error_reason", "apply_error_message", "termination",
			},
			reset: `actual_state = 'creation_requested', reason = '', message = '', reconsider_at = null, applied_revision = 0, applied_at = null, applied_uid = '',
				applied_generation = 0, apply_error_revision = null, apply_error_reason = null, apply_error_message = null, termination = 'none'`,
			final: `l.actual_state = 'terminated' and l.desired_state = 'terminated'`,
		},
	}
}

func objectKey() []string { return []string{"agent_id", "kind", "namespace", "name"} }

// fill puts names into the places of a statement in braces.
func fill(statement string, names map[string]string) string {
	return regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllStringFunc(statement, func(place string) string { return names[strings.Trim(place, "{}")] })
}

func each(columns []string, joined string, one func(column string) string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = one(c)
	}
	return strings.Join(parts, joined)
}

// same is that a real row l and a row s of its shadow have the same key.
func same(key []string) string {
	return each(key, " and ", func(c string) string { return "l." + c + " = s." + c })
}

// assignments take the columns of l over.
func assignments(columns []string) string {
	return each(columns, ", ", func(c string) string { return c + " = l." + c })
}

// distinct is that any of the columns of l and s differ.
func distinct(columns []string) string {
	of := func(row string) string {
		return "(" + each(columns, ", ", func(c string) string { return row + "." + c }) + ")"
	}
	return of("l") + " is distinct from " + of("s")
}
