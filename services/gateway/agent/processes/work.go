package processes

import (
	"cmp"
	"slices"
	"time"

	"lockstep.internal/libs/workspaceagent"
)

// MinShare is the part of one processor, in percent, that the processes of people use together when they work.
const MinShare = 10

// Program is a program that has used processor time.
type Program struct {
	Name string
	Used time.Duration
}

// Work is what the processes of people have done between two samples.
type Work struct {
	Elapsed, Used time.Duration
	// Programs used the most processor time, the first one the most; at most
	// [workspaceagent.MaxPrograms].
	Programs []Program
}

// Counts reports whether it keeps the workspace alive.
func (w Work) Counts() bool {
	return w.Elapsed > 0 && w.Used > 0 && w.Used >= w.Elapsed/100*MinShare
}

// Compare returns what the processes of people have done between two samples. The first one must not be the zero value.
//
// A process that has ended counts for the one that waited for it, with what it has used since the first sample. So a
// compiler that runs for a moment is work of the program that has started it. What nobody of the sample waited for is
// lost.
func Compare(before, after Sample) Work {
	// Times of processes that have ended were added to those of the process that waited for them.
	counted := map[Key]time.Duration{}
	parents := make(map[int]Process, len(before.Processes))
	for _, p := range before.Processes {
		parents[p.ID] = p
	}
	for key, p := range before.Processes {
		if _, runs := after.Processes[key]; runs {
			continue
		}
		if waiting, found := survivor(parents, after, p); found {
			counted[waiting] += p.Own + p.Waited
		}
	}
	byName, work := map[string]time.Duration{}, Work{Elapsed: after.At.Sub(before.At)}
	for key, p := range after.Processes {
		if !p.isOfPeople() {
			continue
		}
		was := before.Processes[key] // nothing for a new process
		used := max(p.Own-was.Own, 0) + max(p.Waited-was.Waited-counted[key], 0)
		if used > 0 {
			work.Used += used
			byName[p.Name] += used
		}
	}
	for name, used := range byName {
		work.Programs = append(work.Programs, Program{name, used})
	}
	slices.SortFunc(work.Programs, func(a, b Program) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Name, b.Name))
	})
	work.Programs = work.Programs[:min(len(work.Programs), workspaceagent.MaxPrograms)]
	return work
}

// survivor returns the nearest ancestor of a process that still runs.
func survivor(parents map[int]Process, after Sample, p Process) (Key, bool) {
	for range len(parents) { // see inherited
		parent, known := parents[p.Parent]
		if !known {
			return Key{}, false
		}
		if _, runs := after.Processes[parent.Key]; runs {
			return parent.Key, true
		}
		p = parent
	}
	return Key{}, false
}
