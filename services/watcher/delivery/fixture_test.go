package delivery_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// bounds let ten versions of a name wait.
func bounds() delivery.Bounds { return delivery.Bounds{PerName: 10, Total: 10} }

// versionOf is a version of a Deployment.
func versionOf(name, uid string, version int, verb events.Verb) object.Version {
	o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version),
	}}
	return object.Version{
		Kind:            object.Deployment,
		ResourceVersion: o.ResourceVersion,
		Verb:            verb,
		Object:          o,
		ObservedAt:      epoch(),
	}
}

func upserted(name string, version int) object.Version {
	return versionOf(name, "uid-"+name, version, events.VerbUpserted)
}

func deleted(name string, version int) object.Version {
	return versionOf(name, "uid-"+name, version, events.VerbDeleted)
}

// successor is a version of a second object with the name a.
func successor(version int) object.Version {
	return versionOf("a", "successor-a", version, events.VerbUpserted)
}

func with(origin object.Origin, v object.Version) object.Version {
	v.Origin = origin
	return v
}

// listed is a list of Deployments.
func listed(version int, members ...object.Version) []object.List {
	list := object.List{Kind: object.Deployment, ResourceVersion: strconv.Itoa(version), ListedAt: epoch()}
	for _, v := range members {
		list.Objects = append(list.Objects, v.Object)
	}
	return []object.List{list}
}

// next takes the next delivery and describes it; the description is empty for none.
func next(t *testing.T, q *delivery.Queue) (delivery.Delivery, string) {
	t.Helper()
	d, _, ok := q.Next(epoch())
	if !ok {
		members := q.Members(1)
		if len(members) == 0 {
			return d, ""
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
	if d.Skipped > 0 {
		text += fmt.Sprintf(" skipped %d", d.Skipped)
	}
	return d, text
}

// publish acknowledges the next delivery.
func publish(t *testing.T, q *delivery.Queue) string {
	t.Helper()
	d, text := next(t, q)
	if text != "" {
		q.Acked(d, epoch())
	}
	return text
}

// publishAll acknowledges all deliveries, one after the other.
func publishAll(t *testing.T, q *delivery.Queue) []string {
	t.Helper()
	var all []string
	for text := publish(t, q); text != ""; text = publish(t, q) {
		all = append(all, text)
	}
	return all
}

func atoi(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(version)
	require.NoError(t, err)
	return n
}
