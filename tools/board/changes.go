package board

import (
	"fmt"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// Changes says what happened to a rollout between two messages about it, before being nil for the
// first: a fact each.
func Changes(before, after *deploysv1.Rollout) []string {
	var facts []string
	say := func(format string, args ...any) { facts = append(facts, fmt.Sprintf(format, args...)) }
	if before == nil {
		text := "started, " + What(after)
		if images := Images(after); images != "" {
			text += ", " + images
		}
		if after.GetReconstructed() {
			text += " (concluded afterwards)"
		}
		say("%s", text)
	}
	turned := func(was, is bool, on, off string) {
		switch {
		case is && !was && Running(after):
			if why := plain(after.GetMessage()); why != "" {
				on += ": " + why
			}
			say("%s", on)
		case was && !is && Running(after):
			say("%s", off)
		}
	}
	turned(before.GetPaused(), after.GetPaused(), "paused", "resumed")
	turned(before.GetBlocked(), after.GetBlocked(), "blocked", "no longer blocked")
	turned(before.GetStalled(), after.GetStalled(), "stalled", "recovered")
	if Counts(before.GetCounts()) != Counts(after.GetCounts()) && Running(after) && after.GetCounts() != nil {
		say("%s", Counts(after.GetCounts()))
	}
	if !Running(after) && (before == nil || Running(before)) {
		text := State(after)
		if after.GetState() == deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED || after.GetDuration() != nil {
			text += " after " + span(Age(after, after.GetUpdatedAt().AsTime()))
		}
		if why := plain(
			after.GetMessage(),
		); why != "" &&
			after.GetState() != deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED {
			text += ": " + why
		}
		say("%s", text)
	}
	if before.GetDrainedAt() == nil && after.GetDrainedAt() != nil {
		say("drained: the last old pod is gone")
	}
	return facts
}
