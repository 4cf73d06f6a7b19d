package history

// Call is a change requested from the API, repeated until it was answered.
type Call struct {
	// Workspace is the workspace's id.
	Workspace string `json:"workspace"`
	// What describes the change for people.
	What string `json:"what"`
	// Revision is the desired revision in the answer. It has no meaning if the call was refused.
	Revision int `json:"revision"`
	// Refused reports that the API refused the change.
	Refused bool `json:"refused,omitempty"`
	// Lost is the number of earlier attempts without an answer. Their effect is unknown.
	Lost int `json:"lost,omitempty"`
	// Sure reports that the call changes something: the state was not desired already.
	Sure bool `json:"sure,omitempty"`
	// Repeats reports that the call changes something again after a lost attempt took effect, like
	// a second restart.
	Repeats bool `json:"repeats,omitempty"`
}

// Calls checks that each accepted change is published exactly once and that no other change is.
// Calls of one workspace are in the order of their responses, and no other user changes it. Changes by
// the system are ignored.
func Calls(calls []Call, published []Record) Findings {
	var f Findings
	all := desiredChanges(&f, published)
	last := map[string]int{}
	for _, call := range calls {
		if call.Refused {
			continue
		}
		before := last[call.Workspace]
		if call.Revision < before {
			f.addf("%s of workspace %s is answered with revision %d after %d", call.What, call.Workspace, call.Revision, before)
			continue
		}
		last[call.Workspace] = call.Revision
		least, most := 0, 1
		if call.Sure {
			least = 1
		}
		if call.Repeats {
			most += call.Lost
		}
		changes, reached := between(all[call.Workspace], before, call.Revision)
		if changes < least || changes > most {
			f.addf("%s of workspace %s, answered with revision %d after %d: users changed it %d times, not %d to %d",
				call.What, call.Workspace, call.Revision, before, changes, least, most)
		}
		if !reached {
			f.addf("%s of workspace %s is answered with revision %d, which is not published", call.What, call.Workspace,
				call.Revision)
		}
	}
	for id, of := range all {
		for _, w := range of {
			if w.user && w.revision > last[id] {
				f.addf("workspace %s, revision %d: %s by a user without a call", id, w.revision, w.what)
			}
		}
	}
	return f
}

// between counts the users' changes after one revision up to another, and reports whether the
// latter is published.
func between(all []desiredChange, after, to int) (int, bool) {
	changes, reached := 0, false
	for _, w := range all {
		if w.user && w.revision > after && w.revision <= to {
			changes++
		}
		reached = reached || w.revision == to
	}
	return changes, reached
}
