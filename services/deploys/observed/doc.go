// Package observed reads what watchers say of workloads: messages of the stream OBSERVED.
//
// [Decoder] gives each message as an [Observed]: malformed ones and those that are not their agent's own as an error, those that are not of this service's concern as one that
// says nothing. Whether a name, a version or a time can be kept is looked at here; what observations mean is decided by others.
//
// A cluster tells of the same things again and again, so a decoder remembers texts, labels, templates and subjects that came lately, and gives the same ones again: a message takes a few
// allocations, and states that keep them share them. They are not to be changed. What it remembers is bounded. JSON as watchers write it is read by a reader that knows nothing else;
// whatever that does not understand is left to encoding/json, so that it makes no difference but in time.
package observed
