package board

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// maxEnded is how many rollouts that have ended are remembered: what is told of them afterwards,
// such as that they are drained, is told of few and soon.
const maxEnded = 1000

// Board is what a watch has told so far. Its zero value is empty. It is for one goroutine.
type Board struct {
	known map[string]*deploysv1.Rollout
	ended []string
}

// Take takes in a message about a rollout and returns the one before, nil for the first. News says
// that it differs from that.
func (b *Board) Take(r *deploysv1.Rollout) (before *deploysv1.Rollout, news bool) {
	if b.known == nil {
		b.known = map[string]*deploysv1.Rollout{}
	}
	before = b.known[r.GetId()]
	if before != nil && !Running(before) && Running(r) {
		return before, false // an older message, of a watch that was begun again
	}
	b.known[r.GetId()] = r
	if !Running(r) && (before == nil || Running(before)) {
		b.ended = append(b.ended, r.GetId())
		if len(b.ended) > maxEnded {
			delete(b.known, b.ended[0])
			b.ended = b.ended[1:]
		}
	}
	return before, before == nil || !proto.Equal(before, r)
}

// Knows says whether it has heard of a rollout.
func (b *Board) Knows(id string) bool { return b.known[id] != nil }

// Running are the rollouts that have not ended, those that are stuck first, then by their start.
func (b *Board) Running() []*deploysv1.Rollout {
	var running []*deploysv1.Rollout
	for _, r := range b.known {
		if Running(r) {
			running = append(running, r)
		}
	}
	slices.SortFunc(running, func(x, y *deploysv1.Rollout) int {
		if x, y := State(x) == "running", State(y) == "running"; x != y {
			if y {
				return -1
			}
			return 1
		}
		if c := x.GetStartedAt().AsTime().Compare(y.GetStartedAt().AsTime()); c != 0 {
			return c
		}
		return strings.Compare(x.GetId(), y.GetId())
	})
	return running
}
