package topology

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BucketRelays is the key-value bucket of the relays' registry: leases of relays, and connections of agents.
// StreamRelays is its stream. It is in memory: relays write their entries again after it is recreated.
//
// It is in the relays' own NATS account. A user who may create or change streams can read and write everything in the
// account, through sources and republishing.
const (
	BucketRelays = "RELAYS"
	StreamRelays = "KV_" + BucketRelays
)

const (
	// relaysMarkerTTL is the lifetime of the delete markers of expired entries.
	relaysMarkerTTL = 15 * time.Second
	// relaysEntry is the largest entry in bytes, headers included.
	relaysEntry = 8 << 10
)

// EnsureRelays creates [BucketRelays] if it is missing, and updates it if it has a lower [Version]. A restarted
// server has lost it.
func EnsureRelays(ctx context.Context, js jetstream.JetStream, opts Options) error {
	change, err := compare(ctx, js, jetstream.StreamConfig{
		Name:                   StreamRelays,
		Description:            "Which relay holds a connection to which replica of which agent.",
		Subjects:               []string{"$KV." + BucketRelays + ".>"},
		Storage:                jetstream.MemoryStorage,
		Replicas:               max(1, opts.Replicas),
		MaxMsgs:                -1,
		MaxBytes:               -1,
		MaxMsgsPerSubject:      1,
		MaxMsgSize:             relaysEntry,
		MaxConsumers:           maxConsumers,
		Discard:                jetstream.DiscardNew,
		Duplicates:             2 * time.Minute,
		AllowDirect:            true,
		AllowRollup:            true,
		DenyDelete:             true,
		AllowMsgTTL:            true,
		SubjectDeleteMarkerTTL: relaysMarkerTTL,
		Metadata:               map[string]string{versionKey: strconv.Itoa(Version)},
	})
	if err == nil {
		err = change.apply(ctx, js)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", BucketRelays, err)
	}
	return nil
}
