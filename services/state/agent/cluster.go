package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"lockstep.internal/schemas/gen/events"
)

// Cluster is what is known about an agent's cluster.
type Cluster struct {
	AgentID int64
	// UID of the cluster's kube-system namespace; empty before the first report.
	UID string
	// Epoch separates resource versions that cannot be compared. It grows when the cluster is recreated or
	// restored, because its resource versions are then lower than the stored ones.
	Epoch int64
	// TickedAt is the agent's clock: the time of its last tick, see event.AgentTime.
	TickedAt time.Time
	// ClockOffset is how far the agent's clock was ahead when the stream stored that tick.
	ClockOffset time.Duration
	// Objects is the number of stored objects. Within a batch it is an upper bound.
	Objects int64
	// LastSeenAt is the storage time of the last report of its watcher.
	LastSeenAt time.Time
}

// Versions are resource versions by kind. Only versions of one kind are compared.
type Versions map[string]string

// ListVersions returns the resource versions of a resync's lists.
func ListVersions(begun events.ObservedResyncBegun) Versions {
	listed := make(Versions, len(begun.ListVersions))
	for _, v := range begun.ListVersions {
		listed[v.Kind] = v.ResourceVersion
	}
	return listed
}

// knownVersions returns, for each listed kind, the highest version that the watcher had observed or listed before it
// published the begin event.
func knownVersions(begun events.ObservedResyncBegun) Versions {
	known := ListVersions(begun)
	for _, v := range begun.KnownVersions {
		if listed, isListed := known[v.Kind]; isListed && CompareVersions(v.ResourceVersion, listed) > 0 {
			known[v.Kind] = v.ResourceVersion
		}
	}
	return known
}

// BeginResync returns the cluster after a resync_begun event. It returns true if the event does not show whether the
// cluster was restored: then the caller must ask [IsBelow].
func (c Cluster) BeginResync(begun events.ObservedResyncBegun) (Cluster, bool) {
	if c.UID != begun.ClusterUID {
		if c.UID != "" {
			c.Epoch++
		}
		c.UID = begun.ClusterUID
		return c, false
	}
	if requested, valid := versionsOf(begun.Nonce); valid {
		// The list was made after the request, so lower versions prove a restore.
		if ListVersions(begun).below(requested) {
			c.Epoch++
		}
		return c, false
	}
	return c, true
}

// IsBelow reports whether the versions that the watcher listed and knew are lower than the highest stored ones of the
// cluster's epoch. In this case the resync began before newer observations were stored, or the cluster was restored.
// The caller must request a second resync with a nonce of NewNonce(highest), which shows which of the two happened.
func IsBelow(begun events.ObservedResyncBegun, highest Versions) bool {
	return knownVersions(begun).below(highest)
}

// below reports whether any kind has a lower version than in other.
func (v Versions) below(other Versions) bool {
	for kind, version := range v {
		if otherVersion, known := other[kind]; known && CompareVersions(version, otherVersion) < 0 {
			return true
		}
	}
	return false
}

// CompareVersions is negative if a is lower than b, positive if it is higher. Invalid versions are lowest.
func CompareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return cmp.Compare(rank(a), rank(b))
	}
	return order
}

// rank orders invalid versions below valid ones.
func rank(v string) int {
	if ValidVersion(v) {
		return 1
	}
	return 0
}

// maxVersionDigits is the limit of the database column.
const maxVersionDigits = 39

// ValidVersion reports whether a resource version can be compared and stored.
func ValidVersion(v string) bool {
	_, err := resourceversion.CompareResourceVersion(v, v)
	return err == nil && len(v) <= maxVersionDigits
}

// NewNonce makes the nonce of a resync request. It contains the highest known versions, so that BeginResync needs only
// the stream, also in a replay.
func NewNonce(highest Versions) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make a nonce: %w", err)
	}
	parts := []string{id.String()}
	for _, kind := range slices.Sorted(maps.Keys(highest)) {
		parts = append(parts, kind+":"+highest[kind])
	}
	return strings.Join(parts, "/"), nil
}

// versionsOf returns the versions in a nonce of NewNonce; false for other nonces.
func versionsOf(nonce string) (Versions, bool) {
	parts := strings.Split(nonce, "/")
	if _, err := uuid.Parse(parts[0]); err != nil {
		return nil, false
	}
	versions := make(Versions, len(parts)-1)
	for _, part := range parts[1:] {
		kind, version, found := strings.Cut(part, ":")
		if !found || !ValidVersion(version) {
			return nil, false
		}
		versions[kind] = version
	}
	return versions, true
}
