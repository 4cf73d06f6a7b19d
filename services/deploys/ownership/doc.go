// Package ownership decides which project owns a cluster.
//
// The first project whose agent reports a workload or a full resync of a cluster claims it. The claim holds until an
// administrator releases the cluster. Observations by agents of other projects are rejected.
//
// The project of an agent comes from the directory, and a release from an administrator: neither is an observation. The
// service therefore stores each decision with its stream position, and a rebuild applies the stored decisions. A
// release is also a message on the stream OBSERVED, so its order among the observations is defined.
//
// The package is pure. [Claims] separates new decisions from the stored ones until [Claims.Commit].
package ownership
