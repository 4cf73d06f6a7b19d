package history

import (
	"encoding/json"

	"lockstep.internal/schemas/gen/events"
)

// Effects checks that nothing was applied twice: each workspace had one Deployment, and the cluster
// changed it no more often than its desired state changed. It holds if nobody else changes
// Deployments.
func Effects(log, observed []Record) Findings {
	var f Findings
	changes, last := map[string]int{}, map[string]string{}
	each(&f, log, events.TypeDesiredWorkspace, func(_ Record, e events.DesiredWorkspace) {
		if manifest, found := deployment(e); found && manifest != last[e.WorkspaceID] {
			changes[e.WorkspaceID]++
			last[e.WorkspaceID] = manifest
		}
	})
	uids, published := map[string]string{}, map[string]bool{}
	each(&f, observed, events.TypeObservedWorkload, func(r Record, e events.ObservedWorkload) {
		id := e.Object.WorkspaceID
		if id == "" {
			return
		}
		if was := uids[id]; was != "" && was != e.Object.UID {
			f.addf("sequence %d: the Deployment of workspace %s was made again", r.Sequence, id)
		}
		uids[id] = e.Object.UID
		if e.Object.DeletedAt != nil {
			return // its deletion, too, counts as a generation
		}
		if e.Generation > changes[id] && !published[id] {
			published[id] = true
			f.addf("sequence %d: the Deployment of workspace %s has generation %d after %d manifests", r.Sequence, id,
				e.Generation, changes[id])
		}
	})
	return f
}

// deployment returns the Deployment's manifest in a desired state, in canonical form: its
// generation grows with annotations as well as with its spec.
func deployment(e events.DesiredWorkspace) (string, bool) {
	for _, manifest := range e.Manifests {
		if manifest["kind"] == "Deployment" {
			raw, err := json.Marshal(manifest)
			return string(raw), err == nil
		}
	}
	return "", false
}
