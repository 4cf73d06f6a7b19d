package history

import (
	"lockstep.internal/schemas/gen/events"
)

// Desired checks the log of sent desired states: every published revision of a workspace is sent
// once, in ascending order, and no other. It does not hold after a restore from a copy.
func Desired(published, log []Record) Findings {
	var f Findings
	all := desiredChanges(&f, published)
	sent := map[string]map[int]bool{}
	last := map[string]int{}
	each(&f, log, events.TypeDesiredWorkspace, func(r Record, e events.DesiredWorkspace) {
		if e.DesiredRevision <= last[e.WorkspaceID] {
			f.addf("sequence %d: revision %d of workspace %s is sent after %d", r.Sequence, e.DesiredRevision, e.Name,
				last[e.WorkspaceID])
		}
		last[e.WorkspaceID] = e.DesiredRevision
		if sent[e.WorkspaceID] == nil {
			sent[e.WorkspaceID] = map[int]bool{}
		}
		sent[e.WorkspaceID][e.DesiredRevision] = true
		if _, reached := between(all[e.WorkspaceID], 0, e.DesiredRevision); !reached {
			f.addf("sequence %d: revision %d of workspace %s is sent and not published", r.Sequence, e.DesiredRevision, e.Name)
		}
	})
	for id, of := range all {
		for _, w := range of {
			if !sent[id][w.revision] {
				f.addf("revision %d of workspace %s is published and not sent", w.revision, id)
			}
		}
	}
	return f
}

// result is the common part of all results.
type result struct {
	WorkspaceID     string `json:"workspace_id"`
	DesiredRevision int    `json:"desired_revision"`
}

// Applied checks the results of sent desired states: only desired revisions are applied, nothing is
// applied after a higher revision, and the last one of each workspace is applied completely.
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
				f.addf("sequence %d: revision %d of workspace %s is applied and was never desired", r.Sequence, e.DesiredRevision,
					e.WorkspaceID)
			}
			if e.DesiredRevision < highest[e.WorkspaceID] {
				f.addf("sequence %d: revision %d of workspace %s is applied after %d", r.Sequence, e.DesiredRevision, e.WorkspaceID,
					highest[e.WorkspaceID])
			}
			highest[e.WorkspaceID] = max(highest[e.WorkspaceID], e.DesiredRevision)
		})
	}
	for id, last := range newest {
		if highest[id] != last.DesiredRevision {
			f.addf("revision %d of workspace %s was not applied; the last that was is %d", last.DesiredRevision, last.Name,
				highest[id])
		}
	}
	return f
}
