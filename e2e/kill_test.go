package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

const (
	usersAtOnce     = 5
	killsPerService = 3
	// leadOfUsers is how many changes users may be ahead of what befalls the system next.
	leadOfUsers = 15
	// longestDelay is between the change after which something is due and its coming, so that it comes at any moment of what the change sets off.
	longestDelay = 400 * time.Millisecond
)

// seedVariable repeats what a test did by chance.
const seedVariable = "LOCKSTEP_SEED"

// TestKills has users make an hour's changes, as fast as they can, while watcher, dispatcher and state are killed at random moments: what was accepted is done
// once, and all is told once.
func TestKills(t *testing.T) {
	t.Parallel()
	const changesPerUser = 50
	seed := seedOf(t)
	s := startPrograms(t, quickLeases)
	var fates []fate
	for _, victim := range []string{stack.State, s.watcher(), s.dispatcher()} {
		for range killsPerService {
			fates = append(fates, func(ctx context.Context) error { return s.killOne(ctx, victim) })
		}
	}
	s.requireUnharmed(seed, changesPerUser, fates)
}

// fate befalls a system; it returns when the system is back at work.
type fate func(ctx context.Context) error

// requireUnharmed has users change workspaces, each so many times, while all of this befalls the system, in random order at random moments. Then everything
// converges, and the whole history is judged.
func (s *system) requireUnharmed(seed uint64, changesPerUser int, fates []fate) {
	t := s.t
	t.Helper()
	seen := s.volumes()
	dice := rand.New(rand.NewPCG(seed, 0))
	dice.Shuffle(len(fates), func(i, j int) { fates[i], fates[j] = fates[j], fates[i] })
	due := make([]int, len(fates))
	for i := range due {
		due[i] = dice.IntN(usersAtOnce * changesPerUser)
	}
	slices.Sort(due)
	pace := newPace(leadOfUsers, due)
	people := make([]*user, usersAtOnce)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range people {
		people[i] = s.newUser(fmt.Sprintf("user-%d", i), seed, i+1)
		group.Go(func() error { return people[i].live(ctx, changesPerUser, pace) })
	}
	group.Go(func() error { return befall(ctx, dice, fates, pace) })
	require.NoError(t, group.Wait())

	var calls []history.Call
	lost := 0
	for _, u := range people {
		require.NoError(t, u.content(t.Context()))
		calls = append(calls, u.calls...)
		for _, call := range u.calls {
			lost += call.Lost
		}
	}
	t.Logf("%d changes, %d attempts without an answer", len(calls), lost)
	s.requireConverged()
	requireSoundHistory(s)
	told, log := told(s.records(topology.FamilyWorkspace)), told(s.records(topology.FamilyDesiredLog))
	require.Empty(t, history.Calls(calls, told))
	require.Empty(t, history.Desired(told, log))
	s.requireApplied(log)
	require.Empty(t, history.Kept(seen()))
}

// befall brings on one fate after the other, each when its moment has come and the one before is over.
func befall(ctx context.Context, dice *rand.Rand, fates []fate, pace *pace) error {
	for _, fate := range fates {
		if due, err := pace.next(ctx); err != nil || !due {
			return err
		}
		delay := time.NewTimer(time.Duration(dice.Int64N(int64(longestDelay))))
		select {
		case <-delay.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := fate(ctx); err != nil {
			return err
		}
		pace.fulfilled()
	}
	return nil
}

// requireApplied checks what became of what was sent.
func (s *system) requireApplied(log []history.Record) {
	s.t.Helper()
	require.Empty(s.t, history.Applied(log, told(s.records(topology.FamilyApplied))))
	require.Empty(s.t, history.Effects(log, told(s.records(topology.FamilyObserved))))
}

// seedOf is the seed to repeat, or a new one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv(seedVariable); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("repeat with %s=%d", seedVariable, seed)
	return seed
}

// quickLeases lets others take over soon from who is gone without a word.
func quickLeases(_ string, config any) {
	const duration, deadline, retry = 3 * time.Second, 2 * time.Second, 500 * time.Millisecond
	switch cfg := config.(type) {
	case *watcher.Config:
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = duration, deadline, retry
	case *dispatcher.Config:
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = duration, deadline, retry
	}
}

// newUser makes a person who may create workspaces, with a token of her own.
func (s *system) newUser(name string, seed uint64, stream int) *user {
	t := s.t
	t.Helper()
	made, err := s.api.Directory.CreateUser(t.Context(), connect.NewRequest(&statev1.CreateUserRequest{Username: name}))
	require.NoError(t, err)
	id := made.Msg.GetUser().GetId()
	_, err = s.api.Directory.PutMembership(t.Context(), connect.NewRequest(&statev1.PutMembershipRequest{Membership: &statev1.Membership{
		UserId: id, Scope: statev1.ScopeKind_SCOPE_KIND_PROJECT, ScopeId: s.project, Role: statev1.Role_ROLE_DEVELOPER,
	}}))
	require.NoError(t, err)
	token, err := s.api.Tokens.CreateToken(t.Context(), connect.NewRequest(&statev1.CreateTokenRequest{Name: "test", UserId: id}))
	require.NoError(t, err)
	s.secrets.add(token.Msg.GetValue())
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &user{
		s: s, name: name, api: client.New(&http.Client{Transport: transport}, s.APIURL(), token.Msg.GetValue()),
		dice: rand.New(rand.NewPCG(seed, uint64(stream))), limit: workspacesPerUser,
	}
}

// killOne kills a service, starts it again and returns when it leads, where one does.
func (s *system) killOne(ctx context.Context, victim string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	before, err := s.leader(ctx, victim)
	if err != nil {
		return err
	}
	if err := s.Kill(victim); err != nil {
		return err
	}
	if err := s.StartService(ctx, victim); err != nil {
		return err
	}
	return s.awaitLeader(ctx, victim, before)
}

// leader is who holds the lease of a service's kind; empty for one without.
func (s *system) leader(ctx context.Context, service string) (string, error) {
	lease := map[string]string{s.watcher(): stack.Watcher, s.dispatcher(): stack.Dispatcher}[service]
	if lease == "" {
		return "", nil
	}
	found, err := s.kube.CoordinationV1().Leases(home(s.agent)).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the lease of %s: %w", service, err)
	}
	if found.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *found.Spec.HolderIdentity, nil
}

// awaitLeader waits until somebody else holds the lease.
func (s *system) awaitLeader(ctx context.Context, service, before string) error {
	if before == "" {
		return nil
	}
	ticker := time.NewTicker(clusterTick)
	defer ticker.Stop()
	for {
		now, err := s.leader(ctx, service)
		if err != nil || now != "" && now != before {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for a leader after %s: %w", before, context.Cause(ctx))
		}
	}
}
