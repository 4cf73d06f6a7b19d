package filter_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/object"
)

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// fixture is a filter before a queue, as in a pipeline.
type fixture struct {
	t      *testing.T
	filter *filter.Workloads
	queue  *delivery.Queue
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	queue := delivery.New(delivery.Bounds{PerName: 10, Total: 100})
	return &fixture{t: t, filter: filter.NewWorkloads(queue.Exists), queue: queue}
}

func upserted(kind object.Kind, o object.Object) object.Version {
	return object.Version{
		Kind:            kind,
		ResourceVersion: o.GetResourceVersion(),
		Verb:            events.VerbUpserted,
		Object:          o,
		ObservedAt:      epoch(),
	}
}

func identified(name, uid string, version int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}
}

func workload(name string, version int, selected bool) object.Version {
	o := &object.Workload{ObjectMeta: identified(name, "uid-"+name, version), Kind: object.Deployment, Selected: selected}
	return upserted(object.Deployment, o)
}

// revisionOf returns a ReplicaSet of a workload, or of none if owner is empty.
func revisionOf(owner, name string, version int) object.Version {
	o := &object.Revision{ObjectMeta: identified(name, "uid-"+name, version), Kind: object.ReplicaSet}
	if owner != "" {
		o.Owner = object.Owner{Kind: object.Deployment, Name: owner, UID: "uid-" + owner}
	}
	return upserted(object.ReplicaSet, o)
}

func initial(v object.Version) object.Version {
	v.Origin = object.Initial
	return v
}

func deleted(v object.Version) object.Version {
	v.Verb = events.VerbDeleted
	return v
}

// observe passes versions through the filter into the queue.
func (f *fixture) observe(versions ...object.Version) {
	f.t.Helper()
	for _, v := range versions {
		for _, published := range f.filter.Filter(v) {
			f.queue.Add(published)
		}
	}
}

// published publishes everything in the queue, in order.
func (f *fixture) published() []string {
	f.t.Helper()
	all := []string{}
	for {
		d, _, ok := f.queue.Next(epoch())
		if !ok {
			members := f.queue.Members(1)
			if len(members) == 0 {
				return all
			}
			d = members[0]
		}
		text := d.Object.GetName() + "@" + d.ResourceVersion
		if d.Verb == events.VerbDeleted {
			text += " deleted"
		}
		if d.FirstSeen {
			text += " first"
		}
		if d.ResyncID != "" {
			text += " of " + d.ResyncID
		}
		if d.Unselected {
			text += " unselected"
		}
		f.queue.Acked(d, epoch())
		all = append(all, text)
	}
}

// resync runs a full resync of the listed objects and returns what was published.
func (f *fixture) resync(id string, version int, listed ...object.Version) []string {
	f.t.Helper()
	f.startResync(id, version, true, listed...)
	all := f.published()
	require.Zero(f.t, f.queue.Outstanding())
	return all
}

func (f *fixture) startResync(id string, version int, filtered bool, listed ...object.Version) {
	f.t.Helper()
	lists := []object.List{
		{Kind: object.ReplicaSet, ResourceVersion: strconv.Itoa(version), ListedAt: epoch()},
		{Kind: object.Deployment, ResourceVersion: strconv.Itoa(version), ListedAt: epoch()},
	}
	for _, v := range listed {
		at := 0
		if v.Kind == object.Deployment {
			at = 1
		}
		lists[at].Objects = append(lists[at].Objects, v.Object)
	}
	if filtered {
		for _, other := range f.filter.FilterLists(lists) {
			f.queue.Add(other)
		}
	}
	f.queue.StartResync(id, lists, epoch())
}
