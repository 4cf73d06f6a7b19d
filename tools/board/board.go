package board

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// maxEnded is the number of ended rollouts to remember: a few facts, such as drained, come after
// the end.
const maxEnded = 1000

// Board has the rollouts of a watch. Its zero value is empty. It is not safe for concurrent use.
type Board struct {
	known map[string]*deploysv1.Rollout
	ended []string
}

// Take stores a message about a rollout. It returns the last one before, nil for none, and whether
// they differ.
func (b *Board) Take(r *deploysv1.Rollout) (before *deploysv1.Rollout, changed bool) {
	if b.known == nil {
		b.known = map[string]*deploysv1.Rollout{}
	}
	before = b.known[r.GetId()]
	if before != nil && !Running(before) && Running(r) {
		return before, false // an older message, after a restart of the watch
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

// Knows reports whether there was a message about a rollout.
func (b *Board) Knows(id string) bool { return b.known[id] != nil }

// Running returns the rollouts that have not ended: stuck ones first, then by their start.
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
