package processes

import (
	"context"
	"sync"
	"time"

	"lockstep.internal/libs/workspaceagent"
)

// minInterval is the shortest time between two samples: the kernel counts processor time in steps of 10 ms.
const minInterval = time.Second

// Monitor compares the processes of a workspace with those of the previous check. It is safe for concurrent use.
type Monitor struct {
	workspace string

	mu     sync.Mutex
	last   Sample
	worked time.Time
	work   Work
}

// NewMonitor returns a monitor of the processes that are marked with the id of a workspace.
func NewMonitor(workspace string) *Monitor { return &Monitor{workspace: workspace} }

// Check returns whether processes of people have worked since the previous check, or before. The first one finds no
// work: it has nothing to compare with. A check within a second of another one returns the same.
func (m *Monitor) Check(ctx context.Context) (workspaceagent.WorkReport, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); m.last.At.IsZero() || now.Sub(m.last.At) >= minInterval {
		found, err := Read(ctx, m.workspace, m.last)
		if err != nil {
			return workspaceagent.WorkReport{}, err
		}
		sample := Assign(m.last, now, found)
		if !m.last.At.IsZero() {
			if work := Compare(m.last, sample); work.Counts() {
				m.work, m.worked = work, now
			}
		}
		m.last = sample
	}
	return m.report(), nil
}

func (m *Monitor) report() workspaceagent.WorkReport {
	if m.worked.IsZero() {
		return workspaceagent.WorkReport{}
	}
	ago := time.Since(m.worked).Milliseconds()
	r := workspaceagent.WorkReport{WorkedMSAgo: &ago}
	for _, p := range m.work.Programs {
		r.Programs = append(r.Programs, workspaceagent.WorkedProgram{
			Name: p.Name, ProcessorMS: p.Used.Milliseconds(),
		})
	}
	return r
}
