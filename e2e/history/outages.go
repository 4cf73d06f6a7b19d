package history

import (
	"cmp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Outage is when nobody looked at the cluster.
type Outage struct{ From, Until time.Time }

func (o Outage) covers(t time.Time) bool { return !t.Before(o.From) && !t.After(o.Until) }

// Outages are when nobody led, as everything says that was seen of one Lease, in any order: from
// the last time that a leader renewed it until another led, or the same one again, which gives up
// when it could not renew for so long as deadline.
func Outages(sights []Sight, deadline time.Duration) []Outage {
	sights = slices.Clone(sights)
	slices.SortStableFunc(sights, func(a, b Sight) int { return cmp.Compare(a.version(), b.version()) })
	var outages []Outage
	var leader string
	var renewed time.Time
	for _, s := range sights {
		lease, is := s.Object.(*coordinationv1.Lease)
		if !is || lease.Spec.RenewTime == nil {
			continue
		}
		spec := lease.Spec
		if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
			leader = "" // given back; what it says of the time is of no leader
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
