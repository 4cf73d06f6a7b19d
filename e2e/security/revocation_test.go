package security_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// parallelConnects is how many connections are opened at once, repeatedly.
const parallelConnects = 4

// TestRevocationDisconnects revokes an agent with open connections that publish, and that keeps
// opening new ones.
func TestRevocationDisconnects(t *testing.T) {
	t.Parallel()
	s := fixture.Start(t, nil)
	api, err := s.Client()
	require.NoError(t, err)
	leaver, _, err := stack.RegisterAgent(t.Context(), api, s.NewProject("leaver"), "leaver")
	require.NoError(t, err)
	s.Secrets.Add(leaver.Token)
	s.Secrets.Add(leaver.CurveSeed)
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()

	var closed sync.WaitGroup
	for _, name := range spellingsOfID(leaver.AgentID) {
		closed.Add(1)
		conn, err := connectAgent(leaver, nats.UserInfo(name, leaver.Token),
			nats.ClosedHandler(func(*nats.Conn) { closed.Done() }))
		require.NoError(t, err)
		context.AfterFunc(ctx, conn.Close)
	}
	var revoked atomic.Bool
	var published atomic.Int64
	var connecting sync.WaitGroup
	for i := range parallelConnects {
		connecting.Go(func() {
			name := spellingsOfID(leaver.AgentID)[i%len(spellingsOfID(leaver.AgentID))]
			for ctx.Err() == nil {
				refused := revoked.Load()
				conn, err := connectAgent(leaver, nats.UserInfo(name, leaver.Token))
				if err == nil {
					if !refused && publishBriefly(ctx, conn, leaver.AgentID, &revoked) == nil {
						published.Add(1)
					}
					conn.Close()
				}
				if refused {
					if err == nil {
						t.Error("accepted a connection that began after the revocation")
					}
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return published.Load() > 3*parallelConnects }, fixture.Timeout,
		fixture.PollInterval, "agents connect and disconnect")

	_, err = s.API.Agents.RevokeAgent(ctx, connect.NewRequest(&statev1.RevokeAgentRequest{Id: leaver.AgentID}))
	require.NoError(t, err)
	at := time.Now()
	revoked.Store(true)
	closed.Wait()
	connecting.Wait()
	require.NoError(t, ctx.Err(), "a connection is neither refused nor closed")

	fixture.AwaitCluster(t, "no connection is left", func(context.Context) (bool, error) {
		return connectionsOf(s, leaver.AgentID) == 0, nil
	})
	stream, err := s.JS.Stream(ctx, topology.StreamObserved)
	require.NoError(t, err)
	last, err := stream.GetLastMsgForSubject(ctx, stack.Cell.ObservedTick(leaver.AgentID))
	require.NoError(t, err)
	t.Logf("the last accepted message arrived %s after the revocation", last.Time.Sub(at))
}

// spellingsOfID returns spellings of an agent's id that are accepted.
func spellingsOfID(agent int64) []string {
	id := strconv.FormatInt(agent, 10)
	return []string{id, "+" + id, "0" + id}
}

// publishBriefly publishes three messages. When the agent is revoked meanwhile, it publishes until
// the server closes the connection.
func publishBriefly(ctx context.Context, conn *nats.Conn, agent int64, revoked *atomic.Bool) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for n := 0; n < 3 || revoked.Load(); n++ {
		asking, cancel := context.WithTimeout(ctx, requestRetry)
		_, err := js.Publish(asking, stack.Cell.ObservedTick(agent), []byte("no event"), jetstream.WithRetryAttempts(0))
		cancel()
		if err != nil && (conn.IsClosed() || ctx.Err() != nil || !revoked.Load()) {
			return errors.Join(err, conn.LastError())
		}
	}
	return nil
}

// connectionsOf counts an agent's connections on the server.
func connectionsOf(s *fixture.System, agent int64) int {
	s.T.Helper()
	conn := principal(s, natsauth.PrincipalSystem)
	query, err := json.Marshal(map[string]any{"auth": true, "acc": "AGENTS"})
	require.NoError(s.T, err)
	answer, err := conn.Request("$SYS.REQ.SERVER.PING.CONNZ", query, fixture.Timeout)
	require.NoError(s.T, err)
	var found struct {
		Data struct {
			Connections []struct {
				User string `json:"authorized_user"`
			} `json:"connections"`
		} `json:"data"`
	}
	require.NoError(s.T, json.Unmarshal(answer.Data, &found))
	require.NotEmpty(s.T, found.Data.Connections, "others are connected")
	own := 0
	for _, c := range found.Data.Connections {
		if id, err := strconv.ParseInt(c.User, 10, 64); err == nil && id == agent {
			own++
		}
	}
	return own
}
