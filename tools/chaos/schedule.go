package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// FaultKind is what happens to the target of a fault.
type FaultKind string

// The kinds of faults.
const (
	FaultKill  FaultKind = "kill"  // SIGKILL; started again at the end of the fault
	FaultPause FaultKind = "pause" // SIGSTOP; SIGCONT at the end of the fault
	FaultCut   FaultKind = "cut"   // a link forwards nothing until the end of the fault
)

// Fault is a planned fault.
type Fault struct {
	At     time.Duration `json:"at"` // since the start of the load
	For    time.Duration `json:"for"`
	Kind   FaultKind     `json:"kind"`
	Target string        `json:"target"`
}

const (
	// longestPause is the longest time without a fault, longestFault the longest fault.
	longestPause, longestFault = 4 * time.Second, 8 * time.Second
	shortestFault              = 500 * time.Millisecond
)

// Schedule plans faults for the duration, one after another. Each target is hit before any is hit again.
func Schedule(seed uint64, duration time.Duration, targets map[FaultKind][]string) []Fault {
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
	var all, left []Fault
	for _, kind := range []FaultKind{FaultKill, FaultPause, FaultCut} {
		for _, target := range slices.Sorted(slices.Values(targets[kind])) {
			left = append(left, Fault{Kind: kind, Target: target})
		}
	}
	possible := slices.Clone(left)
	for at := time.Duration(0); len(possible) > 0; {
		if len(left) == 0 {
			left = slices.Clone(possible)
		}
		next := rng.IntN(len(left))
		f := left[next]
		left = slices.Delete(left, next, next+1)
		f.At = at + upTo(rng, longestPause)
		f.For = shortestFault + upTo(rng, longestFault-shortestFault)
		if at = f.At + f.For; at > duration {
			break
		}
		all = append(all, f)
	}
	return all
}

// upTo returns a random duration below the limit.
func upTo(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit)))
}
