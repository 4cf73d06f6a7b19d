package history

import (
	"lockstep.internal/schemas/gen/events"
)

// Desired checks the log of what was sent to clusters against what was told: of each workspace
// every revision is sent, once, in ascending order, and none that is not told. It holds for a
// history that has never been restored from a copy.
func Desired(told, log []Record) Findings {
	var f Findings
	all := wishes(&f, told)
	sent := map[string]map[int]bool{}
	last := map[string]int{}
	each(&f, log, events.TypeDesiredWorkspace, func(r Record, e events.DesiredWorkspace) {
		if e.DesiredRevision <= last[e.WorkspaceID] {
			f.addf(
				"sequence %d: revision %d of workspace %s is sent after %d",
				r.Sequence,
				e.DesiredRevision,
				e.Name,
				last[e.WorkspaceID],
			)
		}
		last[e.WorkspaceID] = e.DesiredRevision
		if sent[e.WorkspaceID] == nil {
			sent[e.WorkspaceID] = map[int]bool{}
		}
		sent[e.WorkspaceID][e.DesiredRevision] = true
		if _, reached := between(all[e.WorkspaceID], 0, e.DesiredRevision); !reached {
			f.addf("sequence %d: revision %d of workspace %s is sent and not told", r.Sequence, e.DesiredRevision, e.Name)
		}
	})
	for id, of := range all {
		for _, w := range of {
			if !sent[id][w.revision] {
				f.addf("revision %d of workspace %s is told and not sent", w.revision, id)
			}
		}
	}
	return f
}

// result is what every result says.
type result struct {
	WorkspaceID     string `json:"workspace_id"`
	DesiredRevision int    `json:"desired_revision"`
}

// Applied checks what became of what was sent: whatever was applied was desired before, nothing is
// applied after something higher, and the last of each workspace was applied whole.
func Applied(log, applied []Record) Findings {
	var f Findings
	desired, newest := map[string]map[int]bool{}, map[string]events.DesiredWorkspace{}
	each(&f, log, events.TypeDesiredWorkspace, func(_ Record, e events.DesiredWorkspace) {
		if desired[e.WorkspaceID] == nil {
			desired[e.WorkspaceID] = map[int]bool{}
		}
		desired[e.WorkspaceID][e.DesiredRevision] = true
		newest[e.WorkspaceID] = e
	})
	highest := map[string]int{}
	for _, kind := range []string{events.TypeApplied, events.TypeTerminated} {
		each(&f, applied, kind, func(r Record, e result) {
			if !desired[e.WorkspaceID][e.DesiredRevision] {
				f.addf(
					"sequence %d: revision %d of workspace %s is applied and was never desired",
					r.Sequence,
					e.DesiredRevision,
					e.WorkspaceID,
				)
			}
			if e.DesiredRevision < highest[e.WorkspaceID] {
				f.addf(
					"sequence %d: revision %d of workspace %s is applied after %d",
					r.Sequence,
					e.DesiredRevision,
					e.WorkspaceID,
					highest[e.WorkspaceID],
				)
			}
			highest[e.WorkspaceID] = max(highest[e.WorkspaceID], e.DesiredRevision)
		})
	}
	for id, last := range newest {
		if highest[id] != last.DesiredRevision {
			f.addf(
				"revision %d of workspace %s was not applied; the last that was is %d",
				last.DesiredRevision,
				last.Name,
				highest[id],
			)
		}
	}
	return f
}
