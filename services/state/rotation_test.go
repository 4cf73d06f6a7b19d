package state_test

import (
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func TestTokenBeforeARotationIsValidUntilItsEndAndReachesNothingAfterIt(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	_, registered := admin.project()
	id := registered.GetAgent().GetId()
	// with returns the credentials with another token.
	with := func(token string) *statev1.RegisterAgentResponse {
		return &statev1.RegisterAgentResponse{
			Agent: registered.GetAgent(), NatsUrls: registered.GetNatsUrls(), Token: token,
		}
	}
	rotate := func(validFor time.Duration) (*statev1.RotateAgentResponse, error) {
		response, err := admin.agents.RotateAgent(t.Context(),
			connect.NewRequest(&statev1.RotateAgentRequest{Id: id, ValidFor: durationpb.New(validFor)}))
		if err != nil {
			return nil, err
		}
		return response.Msg, nil
	}
	requireClosed := func(conn *nats.Conn) {
		t.Helper()
		require.Eventually(t, conn.IsClosed, timeout, 10*time.Millisecond)
	}
	entry := func() events.DirectoryAgent {
		js, err := jetstream.New(b.administrator(t))
		require.NoError(t, err)
		stream, err := js.Stream(t.Context(), topology.StreamDirectory)
		require.NoError(t, err)
		subject := topology.Cell("local").Directory("agent", strconv.FormatInt(id, 10))
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err)
		found, err := events.Decode[events.DirectoryAgent](m.Data)
		require.NoError(t, err)
		return *found
	}

	before, err := dialAgent(t, registered)
	require.NoError(t, err)
	second, err := rotate(5 * time.Second)
	require.NoError(t, err)
	end := second.GetAgent().GetPreviousTokenValidUntil().AsTime()
	require.Eventually(t, func() bool { return entry().PreviousTokenHash != "" }, timeout, 10*time.Millisecond)
	require.WithinDuration(t, end, *entry().PreviousTokenValidUntil, time.Millisecond)
	old, err := dialAgent(t, registered)
	require.NoError(t, err, "both tokens are valid")
	renewed, err := dialAgent(t, with(second.GetToken()))
	require.NoError(t, err, "both tokens are valid")
	require.NoError(t, renewed.Flush())
	_, err = rotate(time.Hour)
	require.True(t, fault.Is(err, errcode.FailedPrecondition), "%v", err)

	requireClosed(before)
	requireClosed(old)
	_, err = dialAgent(t, registered)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	require.False(t, time.Now().Before(end.Add(-time.Second)), "a connection ends in the second of its token's end")
	renewed, err = dialAgent(t, with(second.GetToken()))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return entry().PreviousTokenHash == "" }, timeout, 10*time.Millisecond)
	got := call(t, admin.agents.GetAgent, &statev1.GetAgentRequest{Id: id}).GetAgent()
	require.Nil(t, got.GetPreviousTokenValidUntil())

	third, err := rotate(time.Hour)
	require.NoError(t, err)
	fourth, err := rotate(0)
	require.NoError(t, err, "both earlier tokens end at once")
	requireClosed(renewed)
	for _, ended := range []string{registered.GetToken(), second.GetToken(), third.GetToken()} {
		_, err = dialAgent(t, with(ended))
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	_, err = dialAgent(t, with(fourth.GetToken()))
	require.NoError(t, err)

	_, developer := admin.user(b, "ben")
	_, err = developer.agents.RotateAgent(t.Context(), connect.NewRequest(&statev1.RotateAgentRequest{Id: id}))
	require.Error(t, err)
}
