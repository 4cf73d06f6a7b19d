package board

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
)

// Name returns <namespace>/<kind>/<name> of the workload.
func Name(r *deploysv1.Rollout) string {
	w := r.GetWorkload()
	return plain(w.GetNamespace() + "/" + w.GetKind() + "/" + w.GetName())
}

// Scaling describes a change of the number of pods.
func Scaling(s *deploysv1.Scaling) string {
	w := s.GetWorkload()
	text := plain(w.GetNamespace() + "/" + w.GetKind() + "/" + w.GetName())
	if s.GetCompleted() {
		return fmt.Sprintf("%s  scaled from %d to %d", text, s.GetFrom(), s.GetTo())
	}
	return fmt.Sprintf("%s  scaling from %d to %d", text, s.GetFrom(), s.GetTo())
}

// State returns the state of a rollout, or why a running one is stuck, in one word.
func State(r *deploysv1.Rollout) string {
	switch r.GetState() {
	case deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED:
		return "completed"
	case deploysv1.RolloutState_ROLLOUT_STATE_SUPERSEDED:
		return "superseded"
	case deploysv1.RolloutState_ROLLOUT_STATE_CANCELLED:
		return "cancelled"
	case deploysv1.RolloutState_ROLLOUT_STATE_UNKNOWN:
		return "unknown"
	case deploysv1.RolloutState_ROLLOUT_STATE_RUNNING, deploysv1.RolloutState_ROLLOUT_STATE_UNSPECIFIED:
	}
	switch {
	case r.GetPaused():
		return "paused"
	case r.GetBlocked():
		return "blocked"
	case r.GetStalled():
		return "stalled"
	default:
		return "running"
	}
}

// Change returns the change: created, updated, restarted, or rolled back to a revision.
func Change(r *deploysv1.Rollout) string {
	switch r.GetChange() {
	case deploysv1.Change_CHANGE_CREATED:
		return "created"
	case deploysv1.Change_CHANGE_UPDATED:
		return "updated"
	case deploysv1.Change_CHANGE_RESTARTED:
		return "restarted"
	case deploysv1.Change_CHANGE_ROLLED_BACK:
		if r.GetOfRevision() > 0 {
			return fmt.Sprintf("rolled back to r%d", r.GetOfRevision())
		}
		return "rolled back"
	case deploysv1.Change_CHANGE_UNSPECIFIED:
	}
	return "changed"
}

// Why returns why a running rollout is stalled or blocked; empty for others.
func Why(r *deploysv1.Rollout) string {
	if !Running(r) || !r.GetStalled() && !r.GetBlocked() {
		return ""
	}
	return plain(cmp.Or(r.GetMessage(), r.GetReason()))
}

// Waits describes what a running rollout waits for, or why it is stuck.
func Waits(r *deploysv1.Rollout) string {
	why := Why(r)
	because := func(what string) string {
		if why == "" {
			return what
		}
		return what + ": " + why
	}
	switch {
	case r.GetPaused():
		return "paused until it is resumed"
	case r.GetBlocked():
		if why == "" {
			return "the cluster refuses to create its pods"
		}
		return why
	case r.GetStalled():
		return because("no progress (" + pods(r) + ")")
	default:
		return "waits for " + pods(r)
	}
}

// pods describes the pods that a rollout waits for.
func pods(r *deploysv1.Rollout) string {
	c := r.GetCounts()
	old := c.GetTotal() - c.GetUpdated()
	switch {
	case c == nil:
		return "its first pods"
	case c.GetUpdated() < c.GetDesired() && r.GetStrategy() == "OnDelete" && old > 0:
		return plural(old, "old pod", "old pods") + " to be deleted by a user"
	case c.GetUpdated() < c.GetDesired():
		return plural(c.GetDesired()-c.GetUpdated(), "new pod", "new pods") + " to be created"
	case c.GetAvailable() < c.GetDesired():
		return plural(c.GetDesired()-c.GetAvailable(), "pod", "pods") + " to become available"
	case old > 0:
		return plural(old, "old pod", "old pods") + " to be deleted"
	default:
		return "its controller to report completion"
	}
}

// Counts returns the pod counts as text.
func Counts(c *deploysv1.Counts) string {
	text := fmt.Sprintf("%d new, %d old, %d available of %d", c.GetUpdated(), max(0, c.GetTotal()-c.GetUpdated()),
		c.GetAvailable(), c.GetDesired())
	if c.GetTerminating() > 0 {
		text += fmt.Sprintf(", %d terminating", c.GetTerminating())
	}
	return text
}

// Images returns the images of a rollout; changed images as old → new.
func Images(r *deploysv1.Rollout) string {
	before := map[string]string{}
	for _, image := range r.GetPreviousImages() {
		before[image.GetContainer()] = image.GetImage()
	}
	var parts []string
	for _, image := range r.GetImages() {
		now, was := short(image.GetImage()), short(before[image.GetContainer()])
		switch {
		case len(before) > 0 && was == now:
			continue
		case was == "":
			parts = append(parts, now)
		default:
			name, tag, _ := strings.Cut(was, ":")
			if other, next, _ := strings.Cut(now, ":"); other == name {
				parts = append(parts, name+":"+tag+" → "+next)
				continue
			}
			parts = append(parts, was+" → "+now)
		}
	}
	return plain(strings.Join(parts, ", "))
}

// maxDigest is the number of shown characters of a digest.
const maxDigest = 12

// short returns an image without its registry and with a short digest.
func short(image string) string {
	image = image[strings.LastIndexByte(image, '/')+1:]
	name, digest, found := strings.Cut(image, "@sha256:")
	if !found {
		return image
	}
	if strings.Contains(name, ":") {
		return name
	}
	return name + ":" + digest[:min(len(digest), maxDigest)]
}

// Age returns the duration of a rollout until its end or now.
func Age(r *deploysv1.Rollout, now time.Time) time.Duration {
	if r.GetDuration() != nil {
		return r.GetDuration().AsDuration()
	}
	if r.GetEndedAt() != nil {
		return r.GetEndedAt().AsTime().Sub(r.GetStartedAt().AsTime())
	}
	return max(0, now.Sub(r.GetStartedAt().AsTime()))
}

// Span formats a duration such as 7.2s, 41s or 3m05s.
func Span(d time.Duration) string { return span(d) }

// Running reports whether a rollout has not ended.
func Running(r *deploysv1.Rollout) bool {
	return r.GetState() == deploysv1.RolloutState_ROLLOUT_STATE_RUNNING
}
