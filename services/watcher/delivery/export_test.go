package delivery

// CountPending counts the names with a version to publish or in flight, one by one.
func (q *Queue) CountPending() int {
	pending := 0
	for _, e := range q.entries {
		if e.pending() {
			pending++
		}
	}
	return pending
}
