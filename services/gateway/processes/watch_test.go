package processes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/processes"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture stands for the agents of workspaces, for NATS, and for the other replica.
type fixture struct {
	t     *testing.T
	table *access.Table
	logs  bytes.Buffer

	mu        sync.Mutex
	claimed   map[time.Time]bool
	worked    map[string]time.Time // by workspace
	refuse    error                // of publishing
	asked     []string
	published []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{t: t, table: access.New(), claimed: map[time.Time]bool{}, worked: map[string]time.Time{}}
}

func (f *fixture) watch() *processes.Watch {
	return processes.New(processes.Options{
		Interval: time.Minute, Table: f.table, Rounds: f, Agents: f, Publisher: f, Now: time.Now,
		Logger: slog.New(slog.NewTextHandler(&f.logs, nil)),
	})
}

// add adds a running workspace that counts processes.
func (f *fixture) add(id string) {
	f.table.Set(access.Entry{ID: id, Name: id, OwnerID: 9, Running: true, CountsProcesses: true})
}

func (f *fixture) Claim(_ context.Context, round time.Time, _ time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mine := !f.claimed[round]
	f.claimed[round] = true
	return mine, nil
}

// Work answers for workspaces of which something is known.
func (f *fixture) Work(_ context.Context, e access.Entry) (workspaceagent.WorkReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, e.ID)
	at, answers := f.worked[e.ID]
	if !answers {
		return workspaceagent.WorkReport{}, errors.New("connection refused")
	}
	if at.IsZero() {
		return workspaceagent.WorkReport{}, nil
	}
	ago := time.Since(at).Milliseconds()
	return workspaceagent.WorkReport{
		WorkedMSAgo: &ago, Programs: []workspaceagent.WorkedProgram{{Name: "make", ProcessorMS: 30_000}},
	}, nil
}

func (f *fixture) Worked(
	_ context.Context, workspace string, at time.Time, programs []workspaceagent.WorkedProgram,
) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse == nil {
		f.published = append(f.published, fmt.Sprintf("%s %s %s", workspace, programs[0].Name, at.Format(time.TimeOnly)))
	}
	return f.refuse
}

// taken returns what was asked and published since the last call.
func (f *fixture) taken() (asked, published []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, published, f.asked, f.published = f.asked, f.published, nil, nil
	return asked, published
}

func TestOneReplicaAsksEachWorkspaceOnceARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.add("a")
		f.table.Set(access.Entry{ID: "stopped", Name: "stopped", CountsProcesses: true})
		f.table.Set(access.Entry{ID: "other", Name: "other", Running: true})
		f.worked["a"] = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var replicas sync.WaitGroup
		for range 2 {
			replicas.Go(func() { f.watch().Run(ctx) })
		}
		for range 3 {
			time.Sleep(time.Minute) // of the bubble
			synctest.Wait()
			asked, _ := f.taken()
			require.Equal(t, []string{"a"}, asked)
		}
		cancel()
		replicas.Wait()
	})
}

func TestWorkIsPublishedOnceAndAgainUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := f.watch()
		f.add("a")
		round := func(want ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			w.Round(t.Context(), time.Now())
			_, published := f.taken()
			require.Equal(t, want, published)
		}
		f.worked["a"] = time.Time{}
		round()
		f.worked["a"] = time.Now().Add(time.Minute)
		round("a make 00:02:00")
		round() // the same work
		f.refuse = errors.New("no NATS")
		f.worked["a"] = time.Now()
		round()
		f.refuse = nil
		round("a make 00:03:00") // when it worked
		delete(f.worked, "a")
		f.logs.Reset()
		round()
		round()
		require.Equal(t, 1, strings.Count(f.logs.String(), "a workspace does not report its programs"), f.logs.String())
		f.worked["a"] = time.Now().Add(time.Minute)
		round("a make 00:08:00")
		f.table.Remove("a")
		round()
		asked, _ := f.taken()
		require.Empty(t, asked)
	})
}
