package processes_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/agent/processes"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// process is one that a session has started, with a parent and processor times in seconds.
func process(id, parent int, name string, own, waited float64) processes.Process {
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	return processes.Process{
		Key: processes.Key{ID: id, Start: uint64(id)}, Parent: parent, Name: name, StartedBy: processes.Person,
		Own: seconds(own), Waited: seconds(waited),
	}
}

func by(who processes.StartedBy, p processes.Process) processes.Process {
	p.StartedBy = who
	return p
}

func inTerminal(p processes.Process) processes.Process {
	p.Terminal = true
	return p
}

// compare returns the work between two lists of processes, a minute apart.
func compare(before, after []processes.Process) processes.Work {
	first := processes.Assign(processes.Sample{}, start(), before)
	return processes.Compare(first, processes.Assign(first, start().Add(time.Minute), after))
}

func TestProcessesOfPeopleThatUseTheProcessorWork(t *testing.T) {
	t.Parallel()
	type list = []processes.Process
	for name, c := range map[string]struct {
		before, after list
		used          float64 // seconds
		first         string
		counts        bool
	}{
		"nothing runs": {},
		"a busy program": {
			before: list{process(10, 1, "train", 100, 0)}, after: list{process(10, 1, "train", 150, 0)},
			used: 50, first: "train", counts: true,
		},
		"exactly a tenth of a processor": {
			before: list{process(10, 1, "train", 0, 0)}, after: list{process(10, 1, "train", 6, 0)},
			used: 6, first: "train", counts: true,
		},
		"less than a tenth": {
			before: list{process(10, 1, "top", 0, 0)}, after: list{process(10, 1, "top", 5.99, 0)}, used: 5.99, first: "top",
		},
		"an idle shell that has worked before": {
			before: list{process(10, 1, "bash", 100, 300)}, after: list{process(10, 1, "bash", 100, 300)},
		},
		"many that use a little together": {
			before: list{process(10, 1, "b", 0, 0), process(11, 1, "a", 0, 0)},
			after:  list{process(10, 1, "b", 4, 0), process(11, 1, "a", 4, 0)},
			used:   8, first: "a", counts: true,
		},
		"short compilers are work of make": {
			before: list{process(10, 1, "make", 0, 0)},
			after:  list{process(10, 1, "make", .1, 55), process(20, 10, "cc", .5, 0)},
			used:   55.6, first: "make", counts: true,
		},
		"a program that was started meanwhile": {
			after: list{process(10, 1, "make", 7, 1)}, used: 8, first: "make", counts: true,
		},
		"an old time of a program that has ended is no work": {
			before: list{process(10, 1, "bash", 1, 0), process(20, 10, "tail", 500, 0)},
			after:  list{process(10, 1, "bash", 1, 500.5)}, used: .5, first: "bash",
		},
		"of a program that has ended with its parent, too": {
			before: list{
				process(10, 1, "bash", 1, 0), process(20, 10, "sh", 5, 2), process(30, 20, "tail", 500, 0),
			},
			after: list{process(10, 1, "bash", 1, 507)},
		},
		"the image's command is no person": {
			before: list{by(processes.Others, process(10, 1, "server", 0, 0))},
			after:  list{by(processes.Others, process(10, 1, "server", 60, 0))},
		},
		"a child without a mark is of its parent": {
			before: list{process(10, 1, "bash", 0, 0), by(processes.Others, process(11, 10, "cleared", 0, 0))},
			after:  list{process(10, 1, "bash", 0, 0), by(processes.Others, process(11, 10, "cleared", 30, 0))},
			used:   30, first: "cleared", counts: true,
		},
		"and stays so without its parent": {
			before: list{process(10, 1, "bash", 0, 0), by(processes.Others, process(11, 10, "cleared", 0, 0))},
			after:  list{by(processes.Others, process(11, 1, "cleared", 30, 0))},
			used:   30, first: "cleared", counts: true,
		},
		"the editor and its language servers": {
			before: list{
				by(processes.Editor, process(10, 1, "node", 0, 0)), by(processes.Editor, process(11, 10, "gopls", 0, 0)),
			},
			after: list{
				by(processes.Editor, process(10, 1, "node", 9, 0)), by(processes.Editor, process(11, 10, "gopls", 50, 0)),
			},
		},
		"a program in a terminal of the editor": {
			before: list{by(processes.Editor, process(10, 1, "node", 0, 0))},
			after: list{
				by(processes.Editor, process(10, 1, "node", 9, 0)),
				inTerminal(by(processes.Others, process(12, 10, "make", 50, 0))),
			},
			used: 50, first: "make", counts: true,
		},
		"an id that is used again": {
			before: list{process(10, 1, "old", 100, 0)},
			after: list{func() processes.Process {
				p := process(10, 1, "new", 7, 0)
				p.Start = 99
				return p
			}()},
			used: 7, first: "new", counts: true,
		},
		"a parent that is younger than its child is another process": {
			after: list{process(20, 1, "bash", 0, 0), by(processes.Others, process(10, 20, "server", 60, 0))},
		},
		"parents in a circle": {
			after: list{by(processes.Others, process(10, 10, "x", 60, 0))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := compare(c.before, c.after)
			require.InDelta(t, c.used, work.Used.Seconds(), 1e-6)
			require.Equal(t, c.counts, work.Counts())
			if c.first == "" {
				require.Empty(t, work.Programs)
			} else {
				require.Equal(t, c.first, work.Programs[0].Name)
			}
		})
	}
}

func TestProgramsAreNamedOnceTheBusiestFirst(t *testing.T) {
	t.Parallel()
	var after []processes.Process
	for i, name := range []string{"a", "b", "c", "d", "e", "f", "a", "a"} {
		after = append(after, process(10+i, 1, name, float64(i+1), 0))
	}
	programs := compare(nil, after).Programs
	require.Len(t, programs, workspaceagent.MaxPrograms)
	require.Equal(t, processes.Program{Name: "a", Used: 16 * time.Second}, programs[0])
	require.Equal(t, processes.Program{Name: "f", Used: 6 * time.Second}, programs[1])
}

// FuzzWorkIsBounded checks that the work is between 0 and what all times have grown.
func FuzzWorkIsBounded(f *testing.F) {
	f.Add([]byte{1, 0, 5, 5, 1, 1, 2, 1, 5, 5, 1, 1, 3, 2, 5, 5, 2, 0}, []byte{1, 0, 9, 9, 1, 1, 2, 1, 7, 7, 0, 1},
		int64(60))
	f.Fuzz(func(t *testing.T, before, after []byte, seconds int64) {
		decode := func(script []byte) (list []processes.Process) {
			for ; len(script) >= 6; script = script[6:] {
				name := string(rune('a' + script[0]%4))
				p := process(int(script[0]%16), int(script[1]%16), name, float64(script[2]), float64(script[3]))
				p.StartedBy = []processes.StartedBy{processes.Others, processes.Person, processes.Editor}[script[4]%3]
				p.Terminal = script[5]%2 == 1
				list = append(list, p)
			}
			return list
		}
		elapsed := time.Duration(seconds % math.MaxInt32 * int64(time.Second))
		first := processes.Assign(processes.Sample{}, start(), decode(before))
		second := processes.Assign(first, start().Add(elapsed), decode(after))
		work := processes.Compare(first, second)
		var most, named time.Duration
		for _, p := range second.Processes {
			was := first.Processes[p.Key]
			most += max(p.Own-was.Own, 0) + max(p.Waited-was.Waited, 0)
		}
		for _, p := range work.Programs {
			named += p.Used
		}
		require.LessOrEqual(t, work.Used, most)
		require.LessOrEqual(t, named, work.Used)
		require.LessOrEqual(t, len(work.Programs), workspaceagent.MaxPrograms)
		require.Equal(t, elapsed, work.Elapsed)
		require.False(t, work.Counts() && (work.Used == 0 || elapsed <= 0))
		again := processes.Compare(second, processes.Assign(second, second.At.Add(time.Minute), decode(after)))
		require.Zero(t, again.Used, "the same times are no work")
	})
}
