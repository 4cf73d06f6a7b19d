// Package delivery decides which version of which object is published next. It is pure: it has no clock
// and no I/O.
//
// Ordering. At most one version of each name (kind, namespace, name) is in flight, and versions are
// published in the order of their resourceVersion. All versions of an object, which end with its
// deletion, are published before those of an object that takes its name. Changes are published before
// the members of a full resync. A failed version is retried after a delay and delays no other name.
//
// Completeness. Without [Bounds] the latest version of each object is published. With [Bounds] every
// version waits for its turn. Versions dropped for lack of space are counted in the next one.
package delivery
