package rollout

import "time"

// State is everything that is remembered of one workload. Its JSON has the same bytes for equal states. Store it as a whole; the fields are of use to
// readers only.
type State struct {
	Key Key `json:"key"`
	// Serial grows by 1 with each input that changed the state: a state of the same serial need not be stored again.
	Serial int `json:"serial,omitempty"`
	// Sequence of the last fact told.
	Sequence int `json:"sequence,omitempty"`
}

// New is the state of a workload of which nothing is known.
func New(key Key) State { return State{Key: key} }

// Wake is when a tick would matter, the zero time if none would before another observation. Ticks before it change nothing.
func (s State) Wake() time.Time { return time.Time{} }

// Present says that the workload is there and followed, as far as is known.
func (s State) Present() bool { return false }
