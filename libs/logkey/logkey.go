// Package logkey is the table of log keys. A key has the same name in every service, so that one
// query finds it in all logs. Keys are snake_case and carry their unit where they have one.
package logkey

import "log/slog"

// Keys of the things that events and requests are about.
const (
	AgentID            = "agent_id"
	ClusterID          = "cluster_id"
	ClusterUID         = "cluster_uid"
	ConnectionID       = "connection_id"
	ControllerID       = "controller_id"
	JobID              = "job_id"
	KeyID              = "key_id"
	MoveID             = "move_id"
	Namespace          = "namespace"
	Name               = "name"
	Kind               = "kind"
	OrganizationID     = "organization_id"
	PipelineID         = "pipeline_id"
	PreviousClusterUID = "previous_cluster_uid"
	ProjectID          = "project_id"
	RelayID            = "relay_id"
	RequestID          = "request_id"
	ResyncID           = "resync_id"
	RunnerID           = "runner_id"
	Sink               = "sink"
	Thread             = "thread" // of a sink: its deliveries are in order
	ToProjectID        = "to_project_id"
	UserID             = "user_id"
	WorkspaceID        = "workspace_id"
)

// Keys of streams, messages and versions.
const (
	Consumer        = "consumer"
	Epoch           = "epoch"
	EventID         = "event_id"
	EventType       = "event_type"
	Filter          = "filter"
	Phase           = "phase"
	Reply           = "reply"
	ResourceVersion = "resource_version"
	Revision        = "revision"
	Sequence        = "sequence"
	Stream          = "stream"
	Subject         = "subject"
)

// Keys of processes and connections.
const (
	Address       = "address"
	Addresses     = "addresses"
	Cell          = "cell"
	Client        = "client"
	ClientName    = "client_name"
	Host          = "host"
	NATS          = "nats" // URLs of the servers
	Part          = "part"
	Pod           = "pod" // namespace/name
	RelayURL      = "relay_url"
	RemoteAddress = "remote_address"
	Run           = "run" // of a leader
	Server        = "server"
	ServerURLs    = "server_urls"
	Service       = "service"
	SpanID        = "span_id"
	TLS           = "tls"
	TraceID       = "trace_id"
	URL           = "url"
	User          = "user" // name of a NATS user
	Version       = "version"
)

// Keys of work and its outcome.
const (
	Attempt            = "attempt"
	Cause              = "cause"
	Check              = "check"
	ClockOffset        = "clock_offset"
	Code               = "code"
	Count              = "count"
	Differences        = "differences"
	Duration           = "duration"
	EndedRollouts      = "ended_rollouts"
	Expected           = "expected"
	File               = "file"
	FullResyncInterval = "full_resync_interval"
	Key                = "key"           // of a configuration or of a key-value bucket
	KnownVersion       = "known_version" // newest that this program has
	Limit              = "limit"
	LimitBytes         = "limit_bytes"
	Lost               = "lost"
	Members            = "members"
	Message            = "message"
	Method             = "method"    // of HTTP
	NotAfter           = "not_after" // end of a validity
	Nonce              = "nonce"     // of a request
	Pruned             = "pruned"
	Reason             = "reason"
	Remaining          = "remaining"
	Repaired           = "repaired"
	Replaced           = "replaced"
	Reported           = "reported"
	RetryIn            = "retry_in" // pause before the next attempt
	SizeBytes          = "size_bytes"
	Target             = "target"
	Targets            = "targets"
	Timeout            = "timeout"
	Since              = "since"
	Until              = "until"
	Warning            = "warning"
	Workloads          = "workloads"
)

// ErrorKey is the key of [Error].
const ErrorKey = "error"

// Error is the attribute of every logged error.
func Error(err error) slog.Attr { return slog.Any(ErrorKey, err) }
