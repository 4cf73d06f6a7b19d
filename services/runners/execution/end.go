package execution

import "lockstep.internal/services/runners/trace"

// abandonTrace ends the trace of a job that ends without its runner.
func (d *Decision) abandonTrace(s Snapshot) {
	next, write := s.Trace.Abandon()
	d.Trace, d.Writes, d.Notify = &next, []trace.Write{write}, true
}
