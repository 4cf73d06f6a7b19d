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
	// restored, because its versions start low again.
	Epoch int64
	// TickedAt is the agent's clock.
	TickedAt time.Time
	// LastSeenAt is the storage time of the last report of its watcher.
	LastSeenAt time.Time
}

// Versions are resource versions by kind. Only versions of one kind are compared.
type Versions map[string]string

// ListVersions returns the versions that a resync lists.
func ListVersions(begun events.ObservedResyncBegun) Versions {
	listed := make(Versions, len(begun.ListVersions))
	for _, v := range begun.ListVersions {
		listed[v.Kind] = v.ResourceVersion
	}
	return listed
}

// BeginResync returns the cluster after the begin of a full resync. Highest are the highest stored versions
// of its epoch. A resync that lists lower versions is late, or the cluster was restored. It returns true
// to request another resync that tells which: one with a nonce of NewNonce(highest).
func (c Cluster) BeginResync(begun events.ObservedResyncBegun, highest Versions) (Cluster, bool) {
	listed := ListVersions(begun)
	if c.UID != begun.ClusterUID {
		if c.UID != "" {
			c.Epoch++
		}
		c.UID = begun.ClusterUID
		return c, false
	}
	if requested, ours := versionsOf(begun.Nonce); ours {
		// The list was made after the request, so lower versions prove a restore.
		if listed.below(requested) {
			c.Epoch++
		}
		return c, false
	}
	return c, listed.below(highest)
}

// below reports whether any kind has a lower version than in other.
func (v Versions) below(other Versions) bool {
	for kind, version := range v {
		if against, known := other[kind]; known && CompareVersions(version, against) < 0 {
			return true
		}
	}
	return false
}

// CompareVersions is negative if a is lower than b, positive if it is higher. Invalid versions are lowest.
func CompareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return cmp.Compare(validity(a), validity(b))
	}
	return order
}

func validity(v string) int {
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

// NewNonce makes the nonce of a resync request. It carries the highest known versions, so that the answer
// can be judged from the stream alone, also in a replay.
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
