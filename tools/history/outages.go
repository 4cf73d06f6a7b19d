package history

import (
	"cmp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Outage is a period in which no watcher was the leader.
type Outage struct{ From, Until time.Time }

func (o Outage) covers(t time.Time) bool { return !t.Before(o.From) && !t.After(o.Until) }

// Outages returns the periods without a leader, from the versions of one Lease in any order. A
// period begins with a leader's last renewal. It ends with another leader, or with the same one
// after it failed to renew for the deadline.
func Outages(versions []ObjectVersion, deadline time.Duration) []Outage {
	versions = slices.Clone(versions)
	slices.SortStableFunc(versions, func(a, b ObjectVersion) int { return cmp.Compare(a.version(), b.version()) })
	var outages []Outage
	var leader string
	var renewed time.Time
	for _, s := range versions {
		lease, is := s.Object.(*coordinationv1.Lease)
		if !is || lease.Spec.RenewTime == nil {
			continue
		}
		spec := lease.Spec
		if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
			leader = "" // released: its renew time belongs to no leader
			continue
		}
		now := spec.RenewTime.Time
		if !renewed.IsZero() && (*spec.HolderIdentity != leader || now.Sub(renewed) >= deadline) {
			outages = append(outages, Outage{From: renewed, Until: s.At})
		}
		leader, renewed = *spec.HolderIdentity, now
	}
	return outages
}
