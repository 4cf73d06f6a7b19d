package topology

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BucketRelays is the key-value bucket in which relays tell each other what they hold, and
// StreamRelays the stream that it is. It is in the memory of the servers: what is in it is said
// again whenever it is made anew.
//
// Whoever may make or change a stream may have it copy every other stream, and write below every
// subject. Relays talk to strangers and may not: the state service makes it.
const (
	BucketRelays = "RELAYS"
	StreamRelays = "KV_" + BucketRelays
)

const (
	// relaysMarker is how long the bucket tells of a key that has expired.
	relaysMarker = 15 * time.Second
	// relaysEntry is the largest entry in bytes, headers included.
	relaysEntry = 8 << 10
)

// EnsureRelays makes [BucketRelays] where it is missing, or of a lower [Version]. A server that was
// started again has lost it.
func EnsureRelays(ctx context.Context, js jetstream.JetStream, opts Options) error {
	err := ensure(ctx, js, jetstream.StreamConfig{
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
		SubjectDeleteMarkerTTL: relaysMarker,
		Metadata:               map[string]string{versionKey: strconv.Itoa(Version)},
	})
	if err != nil {
		return fmt.Errorf("bucket %s: %w", BucketRelays, err)
	}
	return nil
}
