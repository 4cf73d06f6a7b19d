package topology

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BucketGateway is the key-value bucket that the gateways of a cell share: host keys of workspaces, sessions of people
// that have ended before their time, and one-time codes that were used. StreamGateway is its stream.
const (
	BucketGateway = "GATEWAY"
	StreamGateway = "KV_" + BucketGateway
)

// FamilyGatewayLive is the family to which the server republishes the entries of [BucketGateway], without their data.
const FamilyGatewayLive = "gateway_live"

const (
	gatewayPrefix = "$KV." + BucketGateway + "."
	// gatewayEntries matches the subjects of all entries of [BucketGateway].
	gatewayEntries = gatewayPrefix + ">"

	gatewayHostKey = gatewayPrefix + "host_key."
	gatewayRevoked = gatewayPrefix + "revoked."
	gatewayUsed    = gatewayPrefix + "used."

	// maxGatewayEntry is the largest entry in bytes, headers included.
	maxGatewayEntry = 4 << 10
	// maxGatewayEntries bounds the number of workspaces, and of sessions that have ended.
	maxGatewayEntries = 1_000_000
)

// GatewayHostKeys, GatewayAllRevoked and GatewayAllUsed match the subjects of all entries of a kind.
const (
	GatewayHostKeys   = gatewayHostKey + "*"
	GatewayAllRevoked = gatewayRevoked + "*"
	GatewayAllUsed    = gatewayUsed + "*"
)

// GatewayHostKey is the subject of the host key of the agent of a workspace.
func GatewayHostKey(workspace string) string { return gatewayHostKey + Escape(workspace) }

// GatewayRevoked is the subject of a session that has ended.
func GatewayRevoked(session string) string { return gatewayRevoked + Escape(session) }

// GatewayUsed is the subject of a one-time code that was used.
func GatewayUsed(code string) string { return gatewayUsed + Escape(code) }

// gatewayConfig is the stream of [BucketGateway]. It reserves no storage: an entry has some hundred bytes, and those of
// sessions and codes expire. A purge marker or a rollup could remove the entries of others, so both are off.
func gatewayConfig(cell Cell, opts Options) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              StreamGateway,
		Description:       "Host keys of workspaces, sessions of people that have ended, and one-time codes that were used.",
		Subjects:          []string{gatewayEntries},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, opts.Replicas),
		MaxMsgs:           maxGatewayEntries,
		MaxBytes:          -1,
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        maxGatewayEntry,
		MaxConsumers:      maxConsumers,
		Discard:           jetstream.DiscardNew,
		Duplicates:        2 * time.Minute,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		RePublish: &jetstream.RePublish{
			Source: gatewayEntries, Destination: cell.All(FamilyGatewayLive), HeadersOnly: true,
		},
		Metadata: map[string]string{versionKey: strconv.Itoa(Version)},
	}
}
