package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

const (
	usersAtOnce     = 5
	killsPerService = 3
	// maxLead is how many changes users may be ahead of the next fault.
	maxLead = 15
	// longestDelay limits the random delay between the change that triggers a fault and the fault.
	longestDelay = 400 * time.Millisecond
)

// TestKills lets users change workspaces as fast as they can while watcher, dispatcher and state
// are killed at random moments. Every accepted change is applied once and published once.
func TestKills(t *testing.T) {
	t.Parallel()
	runSeeds(t, runKills)
}

func runKills(t *testing.T, seed uint64) {
	t.Helper()
	const changesPerUser = 50
	s := fixture.StartPrograms(t, fixture.ShortLeases)
	var faults []disruption
	for _, victim := range []string{stack.State, s.WatcherName(), s.DispatcherName()} {
		for range killsPerService {
			faults = append(faults, func(ctx context.Context) error { return killOne(s, ctx, victim) })
		}
	}
	requireCorrectUnderFaults(s, seed, changesPerUser, faults)
}

// disruption disturbs a system. It returns when the system works again.
type disruption func(ctx context.Context) error

// requireCorrectUnderFaults lets users change workspaces while faults occur in random order at
// random moments. Then everything converges and the whole history is checked.
func requireCorrectUnderFaults(s *fixture.System, seed uint64, changesPerUser int, faults []disruption) {
	t := s.T
	t.Helper()
	seen := s.RecordVolumes()
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	due := make([]int, len(faults))
	for i := range due {
		due[i] = rng.IntN(usersAtOnce * changesPerUser)
	}
	slices.Sort(due)
	sched := newSchedule(maxLead, due)
	people := make([]*user, usersAtOnce)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range people {
		people[i] = newUser(s, fmt.Sprintf("user-%d", i), seed, i+1)
		group.Go(func() error { return people[i].run(ctx, changesPerUser, sched) })
	}
	group.Go(func() error { return inject(ctx, rng, faults, sched) })
	require.NoError(t, group.Wait())

	var calls []history.Call
	lost := 0
	for _, u := range people {
		require.NoError(t, u.requireSettled(t.Context()))
		calls = append(calls, u.calls...)
		for _, call := range u.calls {
			lost += call.Lost
		}
	}
	t.Logf("%d changes, %d attempts without an answer", len(calls), lost)
	s.RequireConverged()
	fixture.RequireConsistentHistory(s)
	published := fixture.HistoryRecords(s.Records(topology.FamilyWorkspace))
	log := fixture.HistoryRecords(s.Records(topology.FamilyDesiredLog))
	require.Empty(t, history.Calls(calls, published))
	require.Empty(t, history.Desired(published, log))
	s.RequireApplied(log)
	require.Empty(t, history.Kept(seen()))
}

// inject causes the faults one after another, each at its scheduled change.
func inject(ctx context.Context, rng *rand.Rand, faults []disruption, sched *schedule) error {
	for _, disrupt := range faults {
		if due, err := sched.awaitFault(ctx); err != nil || !due {
			return err
		}
		delay := time.NewTimer(time.Duration(rng.Int64N(int64(longestDelay))))
		select {
		case <-delay.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := disrupt(ctx); err != nil {
			return err
		}
		sched.faultDone()
	}
	return nil
}

// newUser creates a user who may create workspaces, with a token.
func newUser(s *fixture.System, name string, seed uint64, stream int) *user {
	t := s.T
	t.Helper()
	token := s.NewUser(name, s.ProjectID, statev1.Role_ROLE_DEVELOPER).Token
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &user{
		s: s, name: name, api: client.New(&http.Client{Transport: transport}, s.APIURL(), token),
		rng: rand.New(rand.NewPCG(seed, uint64(stream))), limit: workspacesPerUser,
	}
}

// killOne kills a service, starts it again and returns when it leads, if it has a leader.
func killOne(s *fixture.System, ctx context.Context, victim string) error {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	before, err := s.Leader(ctx, victim)
	if err != nil {
		return err
	}
	if err := s.Kill(victim); err != nil {
		return err
	}
	if err := s.StartService(ctx, victim); err != nil {
		return err
	}
	return s.AwaitLeader(ctx, victim, before)
}
