package topology

import (
	"cmp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Version of the declarations below. Raise it with every change of [Streams]; [Ensure] applies only
// a higher one.
const Version = 13

// MaxMessageSize is the largest message of any stream, headers included, in bytes (1 MiB).
const MaxMessageSize = 1 << 20

// Names of the streams.
const (
	StreamObserved   = "OBSERVED"
	StreamDesired    = "DESIRED"
	StreamDesiredLog = "DESIRED_LOG"
	StreamApplied    = "APPLIED"
	StreamControl    = "CONTROL"
	StreamWorkspaces = "WORKSPACES"
	StreamDeploys    = "DEPLOYS"
	StreamSinks      = "SINKS"
	StreamJobs       = "JOBS"
	StreamAdmission  = "ADMISSION"
	StreamRunners    = "RUNNERS"
	StreamAgents     = "AGENTS"
	StreamAudit      = "AUDIT"
	StreamDirectory  = "DIRECTORY"
	StreamAccess     = "ACCESS"
	StreamActivity   = "ACTIVITY"
	StreamDead       = "DEAD"
)

const (
	day = 24 * time.Hour
	// The server's own default is 1,000, which agent 1,001 would hit; per-agent consumers are
	// cheap.
	maxConsumers = 100_000
)

// Stream declares one stream.
type Stream struct {
	Name        string
	Description string
	// Family of subjects. The stream captures all of them.
	Family string
	// Writer names the services that publish to it, for people.
	Writer string
	// MaxAge of a message; 0 means no limit.
	MaxAge time.Duration
	// Share of the cell's storage that the stream may fill, in percent; the server reserves it. All
	// shares together are 100. At the limit the oldest messages go first, except where DiscardNew
	// refuses the newest.
	Share int
	// LastPerSubject keeps only the last message of each subject.
	LastPerSubject bool
	// DiscardNew rejects new messages at the limit instead of dropping old ones: for streams that hold current state.
	DiscardNew bool
	// DenyDelete denies deletion and purge for ever, for public history and the audit log.
	DenyDelete bool
	// Duplicates is the window in which a repeated Nats-Msg-Id is dropped. Streams that agents
	// write get the shortest: they carry no message ids.
	Duplicates time.Duration
	// AllowTTL allows a message to set its lifetime in the header Nats-TTL.
	AllowTTL bool
	// Republish is the subject family to which the server republishes stored messages, for live subscriptions. A
	// republished message carries its sequences in headers (Nats-Sequence, Nats-Last-Sequence of its subject). No
	// stream captures it. Messages of a stream with LastPerSubject are republished without their data.
	Republish string
	// CopyOf is a family whose messages the writer also publishes here. A republished, unchanged message is not copied.
	// A mirror or source does not work: it keeps the Nats-Expected-* headers, which then fail.
	CopyOf string
}

// Streams returns every stream there is.
func Streams() []Stream {
	return []Stream{
		{
			Name:        StreamObserved,
			Family:      FamilyObserved,
			Writer:      "watcher",
			MaxAge:      30 * day,
			Share:       30,
			Duplicates:  time.Second,
			Description: "Observations of watchers; read models are rebuilt from them.",
		},
		{
			Name:           StreamDesired,
			Family:         FamilyDesired,
			Writer:         "state",
			Share:          15,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			AllowTTL:       true,
			Description: "Desired state, one message per workspace. " +
				"A starting dispatcher reads all; messages of terminated workspaces expire.",
		},
		{
			Name:        StreamDesiredLog,
			Family:      FamilyDesiredLog,
			Writer:      "state",
			MaxAge:      30 * day,
			Share:       3,
			Duplicates:  time.Second,
			CopyOf:      FamilyDesired,
			Description: "History of DESIRED, for debugging only.",
		},
		{
			Name:        StreamApplied,
			Family:      FamilyApplied,
			Writer:      "dispatcher",
			MaxAge:      30 * day,
			Share:       8,
			Duplicates:  time.Second,
			Description: "Results of applying desired revisions.",
		},
		{
			Name:           StreamControl,
			Family:         FamilyControl,
			Writer:         "state",
			Share:          1,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			Republish:      FamilyControlLive,
			Description:    "Configuration of agents, and requests for full resyncs.",
		},
		{
			Name:        StreamWorkspaces,
			Family:      FamilyWorkspace,
			Writer:      "state",
			MaxAge:      400 * day,
			Share:       10,
			DenyDelete:  true,
			Duplicates:  2 * time.Minute,
			Description: "The public history of workspaces.",
		},
		{
			Name:        StreamDeploys,
			Family:      FamilyDeploy,
			Writer:      "deploys",
			MaxAge:      400 * day,
			Share:       9,
			DenyDelete:  true,
			Duplicates:  2 * time.Minute,
			Republish:   FamilyDeployLive,
			Description: "Public history of rollouts: when each started and how it ended, exactly once.",
		},
		{
			Name: StreamSinks, Family: FamilySink, Writer: "deploys", MaxAge: 30 * day, Share: 1, Duplicates: time.Second,
			Description: "Facts about rollouts that an operator requested to redeliver to one sink.",
		},
		{
			Name:        StreamJobs,
			Family:      FamilyJob,
			Writer:      "runners",
			MaxAge:      400 * day,
			Share:       5,
			DenyDelete:  true,
			Duplicates:  2 * time.Minute,
			Republish:   FamilyJobLive,
			Description: "Public history of CI jobs: every transition; the table of jobs is rebuilt from it.",
		},
		{
			Name:        StreamAdmission,
			Family:      FamilyAdmission,
			Writer:      "admission",
			MaxAge:      400 * day,
			Share:       3,
			DenyDelete:  true,
			Duplicates:  2 * time.Minute,
			Republish:   FamilyAdmissionLive,
			Description: "Public history of the admission of CI jobs: what each controller decided, and the decisions.",
		},
		{
			Name:           StreamRunners,
			Family:         FamilyRunner,
			Writer:         "runners",
			Share:          1,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			AllowTTL:       true,
			Republish:      FamilyRunnerLive,
			Description:    "Runners of CI jobs: the latest state of each; messages of deleted runners expire.",
		},
		{
			Name: StreamAgents, Family: FamilyAgent, Writer: "relay and state", MaxAge: 90 * day, Share: 3,
			Duplicates: 2 * time.Minute, Description: "Agent connections.",
		},
		{
			Name:        StreamAudit,
			Family:      FamilyAudit,
			Writer:      "relay",
			MaxAge:      400 * day,
			Share:       4,
			DenyDelete:  true,
			Duplicates:  2 * time.Minute,
			Description: "Audit records of relayed requests.",
		},
		{
			Name:           StreamDirectory,
			Family:         FamilyDirectory,
			Writer:         "state",
			Share:          3,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			Republish:      FamilyDirectoryLive,
			Description: "Organizations, groups, projects, users, memberships, agents and keys: the latest entry of each. " +
				"Every service keeps a copy.",
		},
		{
			Name:           StreamAccess,
			Family:         FamilyAccess,
			Writer:         "state",
			Share:          1,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			AllowTTL:       true,
			Republish:      FamilyAccessLive,
			Description: "Workspaces for the gateway, who may enter each and where it is, and SSH keys of people. " +
				"Messages of terminated workspaces expire.",
		},
		{
			Name: StreamActivity, Family: FamilyActivity, Writer: "gateway", MaxAge: 30 * day, Share: 1,
			Duplicates: time.Second, Description: "What people do in workspaces; idle workspaces are stopped.",
		},
		{
			Name:        StreamDead,
			Family:      FamilyDead,
			Writer:      "every service",
			MaxAge:      90 * day,
			Share:       2,
			Duplicates:  2 * time.Minute,
			Description: "Messages that a service could not process, with the reason in a header.",
		},
	}
}

// versionKey is the metadata key that carries [Version].
const versionKey = "lockstep.dev/topology"

// Options of the streams of one cell.
type Options struct {
	// Replicas of each stream: 1 for development, 3 for production. Defaults to 1.
	Replicas int
	// StorageBytes that all streams together may fill on one server. Defaults to 8 GiB. The server
	// must have as much.
	StorageBytes int64
}

// DefaultStorageBytes is 8 GiB.
const DefaultStorageBytes = int64(8) << 30

func (o Options) storage() int64 { return cmp.Or(o.StorageBytes, DefaultStorageBytes) }

// Config is the stream's configuration in a cell.
func (s Stream) Config(cell Cell, opts Options) jetstream.StreamConfig {
	if opts.Replicas == 0 {
		opts.Replicas = 1
	}
	cfg := jetstream.StreamConfig{
		Name:              s.Name,
		Description:       s.Description,
		Subjects:          []string{cell.All(s.Family)},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          opts.Replicas,
		MaxAge:            s.MaxAge,
		MaxBytes:          opts.storage() / 100 * int64(s.Share),
		MaxMsgs:           -1,
		MaxMsgSize:        MaxMessageSize,
		MaxConsumers:      maxConsumers,
		MaxMsgsPerSubject: -1,
		Duplicates:        s.Duplicates,
		AllowDirect:       true,
		AllowMsgTTL:       s.AllowTTL,
		DenyDelete:        s.DenyDelete,
		DenyPurge:         s.DenyDelete,
		Metadata:          map[string]string{versionKey: strconv.Itoa(Version)},
	}
	if s.LastPerSubject {
		cfg.MaxMsgsPerSubject = 1
	}
	if s.Republish != "" {
		cfg.RePublish = &jetstream.RePublish{
			Source: cell.All(s.Family), Destination: cell.All(s.Republish), HeadersOnly: s.LastPerSubject,
		}
	}
	if s.DiscardNew {
		cfg.Discard = jetstream.DiscardNew
	}
	return cfg
}
