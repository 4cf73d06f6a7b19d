package object

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"lockstep.internal/schemas/gen/events"
)

// Object is the identity and version of a Kubernetes object.
type Object interface {
	GetNamespace() string
	GetName() string
	GetUID() types.UID
	GetResourceVersion() string
}

// Key identifies an object. A deleted and recreated object has the same name and another UID.
type Key struct {
	Kind                 Kind
	Namespace, Name, UID string
}

// KeyOf returns the key of an object.
func KeyOf(kind Kind, o Object) Key {
	return Key{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

// Name is a Key without UID. A recreated object has the same Name.
type Name struct {
	Kind            Kind
	Namespace, Name string
}

// ObjectName returns the key without the UID.
func (k Key) ObjectName() Name { return Name{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name} }

// Version is one version of one object as the watcher observed it. Its Object is immutable.
type Version struct {
	Kind Kind
	// Object as last observed, trimmed. It has the identity.
	Object Object
	// ResourceVersion of the object or of its deletion.
	ResourceVersion string
	Verb            events.Verb
	ObservedAt      time.Time
	// Origin defaults to Changed.
	Origin Origin
	// Unselected marks a deletion of an object that exists and no longer matches the selection.
	Unselected bool
	// Skipped counts the versions dropped between the previous version and this one.
	Skipped int
}

// Origin is how the watcher learned of a version.
type Origin int8

// Origins.
const (
	// Changed: the watch reported a creation, change or deletion.
	Changed Origin = iota
	// Initial: the object existed when the watch started.
	Initial
	// Found: a list after a lost watch found the object new or changed, or the workload that it is or belongs to became
	// selected. Earlier versions may be unknown.
	Found
	// Missed: the object was deleted at an unknown version. It carries the last known version.
	Missed
	// Unreported: the object exists and is no longer reported. Its workload is no longer selected, and the event of
	// the workload stands for it.
	Unreported
)

// Key returns the identity of the object.
func (v Version) Key() Key { return KeyOf(v.Kind, v.Object) }

// ObjectName returns the identity of the object without its UID.
func (v Version) ObjectName() Name {
	return Name{Kind: v.Kind, Namespace: v.Object.GetNamespace(), Name: v.Object.GetName()}
}

// NewerThan reports whether v supersedes a version of the same name. A deletion supersedes an
// existing object at the same version, since a missed deletion has the last known version.
func (v Version) NewerThan(resourceVersion string, verb events.Verb) bool {
	if resourceVersion == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(v.ResourceVersion, resourceVersion)
	if err != nil {
		return false
	}
	return order > 0 || order == 0 && v.Verb == events.VerbDeleted && verb != events.VerbDeleted
}

// MissedDeletion returns the deletion of an object that disappeared without a watch event.
func (v Version) MissedDeletion(at time.Time) Version {
	v.Verb, v.ObservedAt, v.Origin, v.Skipped = events.VerbDeleted, at, Missed, 0
	return v
}

// Higher returns the higher of two resource versions. An invalid one is lower than any other.
func Higher(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil {
		if order < 0 {
			return b
		}
		return a
	}
	if Comparable(a) {
		return a
	}
	return b
}

// Comparable reports whether a resource version can be compared with others.
func Comparable(resourceVersion string) bool {
	_, err := resourceversion.CompareResourceVersion(resourceVersion, resourceVersion)
	return err == nil
}

// List is one kind as a full resync listed it.
type List struct {
	Kind            Kind
	ResourceVersion string
	ListedAt        time.Time
	Objects         []Object
}

// Version returns the version of a listed object.
func (l List) Version(o Object) Version {
	return Version{
		Kind:            l.Kind,
		Object:          o,
		ResourceVersion: o.GetResourceVersion(),
		Verb:            events.VerbUpserted,
		ObservedAt:      l.ListedAt,
	}
}
