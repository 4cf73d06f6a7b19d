// Package report makes events from what the watcher observed. It is pure: equal input makes equal
// events.
//
// The id of an observation consists of the cluster UID, kind, UID, verb, resourceVersion, a digest
// of the content and, for a member of a full resync, the resync's id. Publishing it again stores
// the same event.
package report
