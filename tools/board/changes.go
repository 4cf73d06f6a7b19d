package board

import (
	"fmt"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// Changes returns the facts between two messages about a rollout. before is nil for the first message.
func Changes(before, after *deploysv1.Rollout) []string {
	var facts []string
	add := func(format string, args ...any) { facts = append(facts, fmt.Sprintf(format, args...)) }
	if before == nil {
		text := "started, " + Change(after)
		if images := Images(after); images != "" {
			text += ", " + images
		}
		if after.GetReconstructed() {
			text += " (reconstructed)"
		}
		add("%s", text)
	}
	addToggle := func(was, is bool, on, off string) {
		switch {
		case is && !was && Running(after):
			if why := plain(after.GetMessage()); why != "" {
				on += ": " + why
			}
			add("%s", on)
		case was && !is && Running(after):
			add("%s", off)
		}
	}
	addToggle(before.GetPaused(), after.GetPaused(), "paused", "resumed")
	addToggle(before.GetBlocked(), after.GetBlocked(), "blocked", "no longer blocked")
	addToggle(before.GetStalled(), after.GetStalled(), "stalled", "recovered")
	if why := Why(after); why != "" && before.GetStalled() && after.GetStalled() && why != Why(before) {
		add("stalled: %s", why)
	}
	if Counts(before.GetCounts()) != Counts(after.GetCounts()) && Running(after) && after.GetCounts() != nil {
		add("%s", Counts(after.GetCounts()))
	}
	if !Running(after) && (before == nil || Running(before)) {
		text := State(after)
		if after.GetState() == deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED || after.GetDuration() != nil {
			text += " after " + span(Age(after, after.GetUpdatedAt().AsTime()))
		}
		if why := plain(after.GetMessage()); why != "" &&
			after.GetState() != deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED {
			text += ": " + why
		}
		add("%s", text)
	}
	if before.GetDrainedAt() == nil && after.GetDrainedAt() != nil {
		add("drained: the last old pod is gone")
	}
	return facts
}
