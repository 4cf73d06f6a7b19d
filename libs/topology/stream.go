package topology

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Version of the declarations below. Raise it with every change of [Streams]; [Ensure] applies only
// a higher one.
const Version = 5

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
	StreamAgents     = "AGENTS"
	StreamDirectory  = "DIRECTORY"
	StreamDead       = "DEAD"
)

const (
	day = 24 * time.Hour
	// The server's own default is 1,000, which agent 1,001 would hit; per-agent consumers are
	// cheap.
	maxConsumers = 100_000
)

// Stream is the whole declaration of one stream.
type Stream struct {
	Name        string
	Description string
	// Family whose subjects it captures, all of them.
	Family string
	// Writer is the service that publishes to it.
	Writer string
	// MaxAge of a message; 0 keeps it for ever.
	MaxAge time.Duration
	// Share of the cell's storage that the stream may fill, in percent; the server reserves it. All
	// shares together are 100. At the limit the oldest messages go first, except where DiscardNew
	// refuses the newest.
	Share int
	// LastPerSubject keeps only the last message of each subject.
	LastPerSubject bool
	// DiscardNew refuses new messages at its share instead of dropping old ones: for streams that
	// are a truth, not a history.
	DiscardNew bool
	// Sealed against deletion and purge for ever: a public record.
	Record bool
	// Duplicates is the window in which a repeated Nats-Msg-Id is dropped. Streams that agents
	// write get the shortest: they carry no message ids.
	Duplicates time.Duration
	// Fading lets a message name how long it stays (header Nats-TTL): what is over goes away by
	// itself.
	Fading bool
	// Echo is the family on which the server says each message again once it is stored, to whoever
	// listens at that moment: what the stream has refused is not heard there. With the message goes
	// its place on the stream (Nats-Sequence, Nats-Last-Sequence of its subject). No stream
	// captures it.
	Echo string
	// CopyOf is the family whose messages are copied here by their writer, but those that say
	// nothing new. The server's own copying would not do: it leaves the sequence that the original
	// expected in the copy, which then is refused as soon as the two streams have counted
	// differently.
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
			Share:       36,
			Duplicates:  time.Second,
			Description: "What watchers see in their clusters: the raw facts that read models are rebuilt from.",
		},
		{
			Name:           StreamDesired,
			Family:         FamilyDesired,
			Writer:         "state",
			Share:          15,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			Fading:         true,
			Description:    "What each workspace shall be, one message per workspace: the whole truth for a starting dispatcher. What is gone for good leaves it.",
		},
		{
			Name:        StreamDesiredLog,
			Family:      FamilyDesiredLog,
			Writer:      "state",
			MaxAge:      30 * day,
			Share:       10,
			Duplicates:  time.Second,
			CopyOf:      FamilyDesired,
			Description: "History of DESIRED, for people: DESIRED is the truth.",
		},
		{
			Name:        StreamApplied,
			Family:      FamilyApplied,
			Writer:      "dispatcher",
			MaxAge:      30 * day,
			Share:       8,
			Duplicates:  time.Second,
			Description: "What became of each desired revision.",
		},
		{
			Name:           StreamControl,
			Family:         FamilyControl,
			Writer:         "state",
			Share:          1,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			Description:    "What agents are told: their configuration, and requests for full resyncs.",
		},
		{
			Name:        StreamWorkspaces,
			Family:      FamilyWorkspace,
			Writer:      "state",
			MaxAge:      400 * day,
			Share:       10,
			Record:      true,
			Duplicates:  2 * time.Minute,
			Description: "The public history of workspaces.",
		},
		{
			Name:        StreamDeploys,
			Family:      FamilyDeploy,
			Writer:      "deploys",
			MaxAge:      400 * day,
			Share:       9,
			Record:      true,
			Duplicates:  2 * time.Minute,
			Echo:        FamilyDeployLive,
			Description: "The public history of rollouts: when each began, how it ended, once.",
		},
		{
			Name: StreamSinks, Family: FamilySink, Writer: "deploys", MaxAge: 30 * day, Share: 1, Duplicates: time.Second,
			Description: "Facts about deploys that one sink shall deliver again, because somebody asked for it.",
		},
		{
			Name: StreamAgents, Family: FamilyAgent, Writer: "relay", MaxAge: 90 * day, Share: 4, Duplicates: 2 * time.Minute,
			Description: "Which replicas of which agents were connected to a relay, and who asked what of them through it.",
		},
		{
			Name:           StreamDirectory,
			Family:         FamilyDirectory,
			Writer:         "state",
			Share:          3,
			LastPerSubject: true,
			DiscardNew:     true,
			Duplicates:     2 * time.Minute,
			Description:    "Organizations, groups, projects, users, memberships and agents: the last word on each, which every other service keeps a copy of.",
		},
		{
			Name:        StreamDead,
			Family:      FamilyDead,
			Writer:      "every service",
			MaxAge:      90 * day,
			Share:       3,
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

// Config is the stream's configuration in a cell.
func (s Stream) Config(cell Cell, opts Options) jetstream.StreamConfig {
	if opts.Replicas == 0 {
		opts.Replicas = 1
	}
	if opts.StorageBytes == 0 {
		opts.StorageBytes = DefaultStorageBytes
	}
	cfg := jetstream.StreamConfig{
		Name:              s.Name,
		Description:       s.Description,
		Subjects:          []string{cell.All(s.Family)},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          opts.Replicas,
		MaxAge:            s.MaxAge,
		MaxBytes:          opts.StorageBytes / 100 * int64(s.Share),
		MaxMsgs:           -1,
		MaxMsgSize:        MaxMessageSize,
		MaxConsumers:      maxConsumers,
		MaxMsgsPerSubject: -1,
		Duplicates:        s.Duplicates,
		AllowDirect:       true,
		AllowMsgTTL:       s.Fading,
		DenyDelete:        s.Record,
		DenyPurge:         s.Record,
		Metadata:          map[string]string{versionKey: strconv.Itoa(Version)},
	}
	if s.LastPerSubject {
		cfg.MaxMsgsPerSubject = 1
	}
	if s.Echo != "" {
		cfg.RePublish = &jetstream.RePublish{Source: cell.All(s.Family), Destination: cell.All(s.Echo)}
	}
	if s.DiscardNew {
		cfg.Discard = jetstream.DiscardNew
	}
	return cfg
}
