package nats_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
	gatewaynats "lockstep.internal/services/gateway/nats"
	"lockstep.internal/tools/testkit/natstest"
)

func newKey(t *testing.T) ssh.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return key
}

func TestFirstHostKeyOfAWorkspaceIsItsKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	mine, other := newKey(t), newKey(t)
	replicas := []gatewaynats.HostKeys{
		{JetStream: s.as(t, natsauth.PrincipalGateway)}, {JetStream: s.as(t, natsauth.PrincipalGateway)},
	}
	require.NoError(t, replicas[0].Check(t.Context(), first, mine))
	for _, replica := range replicas {
		require.NoError(t, replica.Check(t.Context(), first, mine))
		err := replica.Check(t.Context(), first, other)
		require.ErrorContains(t, err, "is not that of the first connection")
		require.ErrorContains(t, err, "lockstep ws reset-host-key")
	}
	require.NoError(t, replicas[1].Check(t.Context(), second, other))
}

func TestForgottenHostKeyIsReplacedByTheNextOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	mine, next := newKey(t), newKey(t)
	one := gatewaynats.HostKeys{JetStream: s.as(t, natsauth.PrincipalGateway)}
	two := gatewaynats.HostKeys{JetStream: s.as(t, natsauth.PrincipalGateway)}
	require.NoError(t, one.Forget(t.Context(), first), "there is none")
	require.NoError(t, one.Check(t.Context(), first, mine))
	require.NoError(t, one.Check(t.Context(), second, mine))
	require.NoError(t, two.Forget(t.Context(), first))
	require.NoError(t, one.Check(t.Context(), first, next), "at once")
	require.ErrorContains(t, two.Check(t.Context(), first, mine), "is not that of the first connection")
	require.ErrorContains(t, two.Check(t.Context(), second, next), "is not that of the first connection")
}

func TestHostKeysOfDeletedWorkspacesAreForgotten(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	keys := gatewaynats.HostKeys{JetStream: s.as(t, natsauth.PrincipalGateway)}
	for _, workspace := range []string{first, second} {
		require.NoError(t, keys.Check(t.Context(), workspace, newKey(t)))
	}
	cleanup := gatewaynats.NewCleanup(keys, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cleanup.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	s.deleted = cleanup.Add
	s.workspace(t, 1, running(second, "other"))
	s.run(t)
	deleted := running(first, "hello")
	deleted.ActualState, deleted.Deleted = events.ActualStateTerminated, true
	s.workspace(t, 2, deleted)
	other := newKey(t)
	require.Eventually(t, func() bool { return keys.Check(t.Context(), first, other) == nil }, timeout, time.Millisecond)
	require.Error(t, keys.Check(t.Context(), second, other))
}

func TestOfReplicasThatSeeDifferentFirstKeysOneSucceeds(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js := s.as(t, natsauth.PrincipalGateway)
	results := make(chan error, 4)
	for range cap(results) {
		key := newKey(t)
		go func() { results <- gatewaynats.HostKeys{JetStream: js}.Check(t.Context(), first, key) }()
	}
	accepted := 0
	for range cap(results) {
		if <-results == nil {
			accepted++
		}
	}
	require.Equal(t, 1, accepted)
}

func TestCodeIsUsedOnceByAllReplicas(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one := gatewaynats.Codes{JetStream: s.as(t, natsauth.PrincipalGateway)}
	two := gatewaynats.Codes{JetStream: s.as(t, natsauth.PrincipalGateway)}
	require.NoError(t, one.Use(t.Context(), "CODE", time.Minute))
	require.ErrorIs(t, two.Use(t.Context(), "CODE", time.Minute), gatewaynats.ErrUsed)
	require.NoError(t, two.Use(t.Context(), "OTHER", time.Minute))
}

// revocations runs a replica's table until the test ends.
func (s *system) revocations(t *testing.T, now func() time.Time) *gatewaynats.Revocations {
	t.Helper()
	r := gatewaynats.NewRevocations(s.as(t, natsauth.PrincipalGateway), cell, now, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	await(t, ready)
	require.NoError(t, r.Check(t.Context()))
	return r
}

func TestSessionEndsAtAllReplicasAndAfterARestart(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.revocations(t, time.Now), s.revocations(t, time.Now)
	mine, releaseMine := one.Use("MINE")
	defer releaseMine()
	same, releaseSame := two.Use("MINE")
	defer releaseSame()
	require.NoError(t, one.Revoke(t.Context(), "MINE", time.Now().Add(time.Hour)))
	await(t, mine.Done())
	await(t, same.Done())
	require.True(t, s.revocations(t, time.Now).Revoked("MINE"))
	require.False(t, two.Revoked("OTHER"))
}

func TestActivityIsPublished(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	table := activity.New(time.Now)
	publisher := gatewaynats.ActivityPublisher{
		JetStream: s.as(t, natsauth.PrincipalGateway), Cell: cell, Table: table, Logger: slog.New(slog.DiscardHandler),
	}
	session := table.Open(first, owner)
	session.Input(3)
	session.Sent(4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, publisher.Run(ctx, t.Context()), "what is due is published at the end")
	stream, err := s.state.Stream(t.Context(), topology.StreamActivity)
	require.NoError(t, err)
	m, err := stream.GetLastMsgForSubject(t.Context(), cell.Activity(first))
	require.NoError(t, err)
	e, err := event.Decode(m.Header, m.Data)
	require.NoError(t, err)
	require.Equal(t, events.TypeActivityWorkspace, e.Type())
	data, err := events.Decode[events.ActivityWorkspace](e.Data())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), data.InputAt, timeout)
	data.InputAt = time.Time{}
	require.Equal(t, &events.ActivityWorkspace{
		WorkspaceID: first, UserID: owner, Sessions: 1, ReceivedBytes: 3, SentBytes: 4,
	}, data)
}

func TestWorkOfProgramsIsPublished(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	publisher := gatewaynats.ActivityPublisher{JetStream: s.as(t, natsauth.PrincipalGateway), Cell: cell}
	at := time.Now().UTC().Truncate(time.Millisecond)
	programs := []workspaceagent.WorkedProgram{{Name: "make", ProcessorMS: 31_000}, {Name: "cc1", ProcessorMS: 7}}
	require.NoError(t, publisher.Worked(t.Context(), first, at, programs))
	stream, err := s.state.Stream(t.Context(), topology.StreamActivity)
	require.NoError(t, err)
	m, err := stream.GetLastMsgForSubject(t.Context(), cell.Activity(first))
	require.NoError(t, err)
	e, err := event.Decode(m.Header, m.Data)
	require.NoError(t, err)
	require.Equal(t, events.TypeActivityProcesses, e.Type())
	data, err := events.Decode[events.ActivityProcesses](e.Data())
	require.NoError(t, err)
	require.Equal(t, &events.ActivityProcesses{
		WorkspaceID: first, WorkedAt: at,
		Programs: []events.WorkingProgram{{Name: "make", ProcessorMs: 31_000}, {Name: "cc1", ProcessorMs: 7}},
	}, data)
}

func TestRoundIsDoneByOneReplica(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	rounds := make([]gatewaynats.Rounds, 3)
	for i := range rounds {
		rounds[i] = gatewaynats.Rounds{
			Codes: gatewaynats.Codes{JetStream: s.as(t, natsauth.PrincipalGateway)}, Name: "processes",
		}
	}
	for _, at := range []time.Time{time.Unix(60, 0), time.Unix(120, 0)} {
		var claimed atomic.Int32
		var claiming errgroup.Group
		for _, r := range rounds {
			claiming.Go(func() error {
				mine, err := r.Claim(t.Context(), at, time.Minute)
				if mine {
					claimed.Add(1)
				}
				return err
			})
		}
		require.NoError(t, claiming.Wait())
		require.EqualValues(t, 1, claimed.Load())
	}
}

func TestActivityThatCannotBePublishedIsKept(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	table := activity.New(time.Now)
	table.Open(first, owner).Input(3)
	publisher := gatewaynats.ActivityPublisher{
		JetStream: s.as(t, natsauth.PrincipalGateway), Cell: cell, Table: table, Logger: slog.New(slog.DiscardHandler),
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, publisher.Run(ended, ended))
	require.Len(t, table.Take(), 1)
}

func TestSSHKeysFollowTheStream(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	key := events.AccessSSHKey{Fingerprint: access.Fingerprint(newKey(t)), UserID: owner}
	s.publish(t, cell.AccessSSHKey(key.Fingerprint), 1, key)
	s.run(t)
	found, err := s.keys.Find(key.Fingerprint, time.Now())
	require.NoError(t, err)
	require.Equal(t, access.Key{UserID: owner}, found)

	other := key
	other.UserID = owner + 1
	s.publish(t, cell.AccessSSHKey("f"), 2, other) // the subject names another key
	changed := s.keys.Changed()
	key.Deleted = true
	s.publish(t, cell.AccessSSHKey(key.Fingerprint), 3, key)
	await(t, changed)
	_, err = s.keys.Find(key.Fingerprint, time.Now())
	require.ErrorIs(t, err, access.ErrUnknownKey)
	_, err = s.keys.Find("f", time.Now())
	require.ErrorIs(t, err, access.ErrUnknownKey)
}

func TestSharesLetOthersIn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.person(t, owner+1, events.UserStateActive)
	s.person(t, owner+2, events.UserStateActive)
	s.run(t)
	port := portHTTP
	w := running(first, "hello")
	w.Shares = []events.AccessShare{{UserID: owner + 1, Port: &port}, {UserID: owner + 2}}
	s.workspace(t, 1, w)
	s.enters(t, "hello").Close()
	for user, ports := range map[int64]map[int]error{
		owner + 1: {portHTTP: nil, 80: access.ErrUnknown, access.SSH: access.ErrUnknown},
		owner + 2: {portHTTP: nil, 80: nil, access.SSH: nil},
	} {
		for port, want := range ports {
			_, err := s.table.Enter(user, "hello", port)
			require.ErrorIs(t, err, want, "%d at %d", user, port)
		}
	}
}

// TestHostKeyCannotBeRemovedByARollup tries to remove the host key of a workspace.
func TestHostKeyCannotBeRemovedByARollup(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js := s.as(t, natsauth.PrincipalGateway)
	require.NoError(t, gatewaynats.HostKeys{JetStream: js}.Check(t.Context(), first, newKey(t)))
	_, err := js.PublishMsg(natstest.Context(t), &nats.Msg{
		Subject: topology.GatewayHostKey(first), Header: nats.Header{"Nats-Rollup": {"sub"}},
	})
	require.ErrorContains(t, err, "rollup")
}
