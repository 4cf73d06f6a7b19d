package domain

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

// Cluster is what is known of the cluster behind an agent.
type Cluster struct {
	AgentID int64
	// UID of its kube-system namespace; empty until it is heard of.
	UID string
	// Epoch of its versions: one more when the cluster was recreated or its store restored, since versions start low again then.
	Epoch int64
	// TickedAt is the agent's own clock.
	TickedAt time.Time
	// LastSeenAt is when the stream last stored something of its watcher.
	LastSeenAt time.Time
}

// Versions are resourceVersions by kind. They are compared within one kind only.
type Versions map[string]string

// Begin takes in that a full resync begins, and returns the cluster after it. Highest are the highest versions stored in the cluster's epoch. It returns true
// when another resync is to be asked for with a nonce of NewNonce: this one began below what is stored, which may be mere delay, or a store
// that was restored.
func (c Cluster) Begin(begun events.ObservedResyncBegun, highest Versions) (Cluster, bool) {
	listed := make(Versions, len(begun.ListVersions))
	for _, v := range begun.ListVersions {
		listed[v.Kind] = v.ResourceVersion
	}
	if c.UID != begun.ClusterUID {
		if c.UID != "" {
			c.Epoch++
		}
		c.UID = begun.ClusterUID
		return c, false
	}
	if asked, ours := versionsOf(begun.Nonce); ours {
		// It was listed after it was asked for, so it cannot be behind what was stored then: unless the cluster is.
		if listed.below(asked) {
			c.Epoch++
		}
		return c, false
	}
	return c, listed.below(highest)
}

// below is that any kind has a lower version than in the other.
func (v Versions) below(other Versions) bool {
	for kind, version := range v {
		if against, known := other[kind]; known && CompareVersions(version, against) < 0 {
			return true
		}
	}
	return false
}

// CompareVersions is negative when a is lower than b, positive when it is higher. What is no version is lower than any.
func CompareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return cmp.Compare(boolean(ValidVersion(a)), boolean(ValidVersion(b)))
	}
	return order
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// maxVersionDigits is what the database keeps.
const maxVersionDigits = 39

// ValidVersion is that a resourceVersion can be compared and stored.
func ValidVersion(v string) bool {
	_, err := resourceversion.CompareResourceVersion(v, v)
	return err == nil && len(v) <= maxVersionDigits
}

// NewNonce makes a nonce that carries the versions known when it was asked: whoever reads the answer, also in a replay, needs
// nothing else to judge it.
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

// versionsOf undoes NewNonce; false for a nonce of others.
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
