package history

// Call is a change that somebody asked the API for, again and again until an answer came.
type Call struct {
	// Workspace is its id.
	Workspace string
	// What was asked for, for people.
	What string
	// Revision is the desired revision of the answer; of no meaning when refused.
	Revision int
	// Refused is that the answer was no.
	Refused bool
	// Lost is how many attempts before got no answer, so that nobody knows what they did.
	Lost int
	// Sure is that it changes something: it was not wanted already.
	Sure bool
	// Repeats is that it changes something again when a lost attempt has had its effect, as a
	// restart does that is asked for after a restart.
	Repeats bool
}

// Calls checks that each change that was accepted is told exactly once and no other is. Calls of
// one workspace are in the order of their answers, and nobody else changes it meanwhile; what the
// system changes by itself is left aside.
func Calls(calls []Call, told []Record) Findings {
	var f Findings
	all := wishes(&f, told)
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
			f.addf(
				"%s of workspace %s is answered with revision %d, which is not told",
				call.What,
				call.Workspace,
				call.Revision,
			)
		}
	}
	for id, of := range all {
		for _, w := range of {
			if w.user && w.revision > last[id] {
				f.addf("workspace %s, revision %d: %s by a user, whom nobody heard asking", id, w.revision, w.what)
			}
		}
	}
	return f
}

// between counts what users changed after one revision up to another, and says whether that one is
// told.
func between(all []wish, after, to int) (int, bool) {
	changes, reached := 0, false
	for _, w := range all {
		if w.user && w.revision > after && w.revision <= to {
			changes++
		}
		reached = reached || w.revision == to
	}
	return changes, reached
}
