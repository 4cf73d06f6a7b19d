// Package logkey is the table of log keys. A key has the same name in every service, so that one
// query finds it in all logs. Keys are snake_case and carry their unit where they have one.
package logkey

import "log/slog"

// Keys of the things that events and requests are about.
const (
	AgentID      = "agent_id"
	ClusterID    = "cluster_id"
	ConnectionID = "connection_id"
	Namespace    = "namespace"
	Name         = "name"
	Kind         = "kind"
	ProjectID    = "project_id"
	RelayID      = "relay_id"
	RequestID    = "request_id"
	UserID       = "user_id"
	WorkspaceID  = "workspace_id"
)

// Keys of streams, messages and versions.
const (
	Consumer        = "consumer"
	Epoch           = "epoch"
	EventID         = "event_id"
	EventType       = "event_type"
	ResourceVersion = "resource_version"
	Revision        = "revision"
	Sequence        = "sequence"
	Stream          = "stream"
	Subject         = "subject"
)

// Keys of work and its outcome.
const (
	Address  = "address"
	Attempt  = "attempt"
	Count    = "count"
	Duration = "duration"
	File     = "file"
	Part     = "part"
	Reason   = "reason"
	RetryIn  = "retry_in" // pause before the next attempt
	URL      = "url"
	Version  = "version"
)

// ErrorKey is the key of [Error].
const ErrorKey = "error"

// Error is the attribute of every logged error.
func Error(err error) slog.Attr { return slog.Any(ErrorKey, err) }
