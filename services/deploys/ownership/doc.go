// Package ownership decides which project owns a cluster.
//
// The first project whose agent reports a workload or a full resync of a cluster claims it. The claim holds until an
// administrator releases the cluster. Observations by agents of other projects are rejected.
//
// The project of an agent comes from the directory, and a release from an administrator: neither is observed. The
// service therefore stores each decision with the stream position at which it took effect, and a rebuild repeats these
// decisions. A release is also a message of the stream OBSERVED, so that it has one place among the observations.
//
// The package is pure. [Claims] separates new decisions from the stored ones until [Claims.Commit].
package ownership
