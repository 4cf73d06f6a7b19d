package watcher

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// Key is the identity of an object. One that is deleted and created anew is another object of the same name.
type Key struct {
	Kind                 kube.Kind
	Namespace, Name, UID string
}

// name is what the objects share that bear it one after the other.
type name struct {
	kind            kube.Kind
	namespace, name string
}

func (k Key) named() name { return name{kind: k.Kind, namespace: k.Namespace, name: k.Name} }

// KeyOf is the identity of an object of a kind.
func KeyOf(kind kube.Kind, object metav1.Object) Key {
	return Key{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName(), UID: string(object.GetUID())}
}

// Sighting is one version of one object as the watcher saw it. It is not changed once made.
type Sighting struct {
	Key

	// Version is the object's resourceVersion, or that of its deletion.
	Version string
	Verb    events.Verb
	// Object as it was last seen, trimmed.
	Object metav1.Object
	SeenAt time.Time
	// Occasion of it. Defaults to Changed.
	Occasion Occasion
	// Unselected says of a deletion that the object is still there, but told no more.
	Unselected bool
	// Skipped is how many versions between this one and the one before it were dropped, see [Bounds].
	Skipped int
}

// Occasion is how an object came to be sighted.
type Occasion int8

// Occasions.
const (
	// Changed: it was seen to come to be, to change or to go.
	Changed Occasion = iota
	// Initial: it was there when watching began.
	Initial
	// Found: it was there, and comes to be told of only now; or it was seen again in another version, and those before may have gone unseen.
	Found
	// Missed: it went at some version that is not known, so the last known one stands for it.
	Missed
	// Left: it is there and told no more, which what it belongs to tells.
	Left
)

// gone is the deletion of an object that nobody saw go.
func (s Sighting) gone(at time.Time) Sighting {
	s.Verb, s.SeenAt, s.Occasion, s.Skipped = events.VerbDeleted, at, Missed, 0
	return s
}

// newerThan tells whether a sighting supersedes one of the same object: by version, and a deletion supersedes life at the
// same version, since a missed deletion is known by the last version only.
func (s Sighting) newerThan(version string, verb events.Verb) bool {
	if version == "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(s.Version, version)
	if err != nil {
		return false
	}
	return order > 0 || order == 0 && s.Verb == events.VerbDeleted && verb != events.VerbDeleted
}

// later returns the higher of two versions; what is no version is lower than any.
func later(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil {
		if order < 0 {
			return b
		}
		return a
	}
	if isVersion(a) {
		return a
	}
	return b
}

func isVersion(version string) bool {
	_, err := resourceversion.CompareResourceVersion(version, version)
	return err == nil
}

// Delivery is a sighting that is to be sent now.
type Delivery struct {
	Sighting

	// ResyncID of the full resync that it is a member of; empty for a partial.
	ResyncID string
	// FirstSeen tells a baseline from a change: see [Ledger].
	FirstSeen bool
	// Refused says that a server found it too large: the fact to send is that it cannot be sent.
	Refused bool
	// Attempt counts from 1 for each version.
	Attempt int
}

// UpdateType of the observation.
func (d Delivery) UpdateType() events.UpdateType {
	if d.ResyncID != "" {
		return events.UpdateTypeFull
	}
	return events.UpdateTypePartial
}
