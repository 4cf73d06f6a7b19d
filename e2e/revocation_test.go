package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// cutOff is how long after its revocation an agent may still be heard.
const cutOff = time.Second

// newcomers is how many connect at the same time, again and again.
const newcomers = 4

// revokedIsCutOff revokes an agent that has connections open, publishes on them, and goes on making new ones.
func revokedIsCutOff(s *system) {
	t := s.t
	api, err := s.Client()
	require.NoError(t, err)
	leaver, _, err := stack.RegisterAgent(t.Context(), api, s.newProject("leaver"), "leaver")
	require.NoError(t, err)
	s.secrets.add(leaver.Token)
	s.secrets.add(leaver.CurveSeed)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	var closed sync.WaitGroup
	for _, name := range namesOfSelf(leaver.AgentID) {
		closed.Add(1)
		conn, err := connectAgent(leaver, nats.UserInfo(name, leaver.Token), nats.ClosedHandler(func(*nats.Conn) { closed.Done() }))
		require.NoError(t, err)
		t.Cleanup(conn.Close)
	}
	var revoked atomic.Pointer[time.Time]
	var admitted atomic.Int64
	var coming sync.WaitGroup
	for i := range newcomers {
		coming.Go(func() {
			name := namesOfSelf(leaver.AgentID)[i%len(namesOfSelf(leaver.AgentID))]
			for ctx.Err() == nil {
				began := time.Now()
				err := comeAndTell(ctx, leaver, name)
				if err == nil {
					admitted.Add(1)
				}
				if at := revoked.Load(); at != nil && began.After(at.Add(cutOff)) {
					if err == nil {
						t.Errorf("let in %s after the revocation", began.Sub(*at))
					}
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return admitted.Load() > 3*newcomers }, patience, clusterTick, "agents come and go")

	_, err = s.api.Agents.RevokeAgent(ctx, connect.NewRequest(&statev1.RevokeAgentRequest{Id: leaver.AgentID}))
	require.NoError(t, err)
	at := time.Now()
	revoked.Store(&at)
	closed.Wait()
	coming.Wait()
	require.NoError(t, ctx.Err(), "somebody is not turned away")

	stream, err := s.js.Stream(ctx, topology.StreamObserved)
	require.NoError(t, err)
	last, err := stream.GetLastMsgForSubject(ctx, stack.Cell.ObservedTick(leaver.AgentID))
	require.NoError(t, err)
	late := last.Time.Sub(at)
	t.Logf("the last that was taken came %s after the revocation", late)
	require.Less(t, late, cutOff)
	require.Zero(t, s.connectionsOf(leaver.AgentID))
}

// namesOfSelf are ways to write an agent's id that let it in.
func namesOfSelf(agent int64) []string {
	id := strconv.FormatInt(agent, 10)
	return []string{id, "+" + id, "0" + id}
}

// comeAndTell connects, says something that is taken, and goes, or stays where the server is to throw it out.
func comeAndTell(ctx context.Context, c natsauth.AgentCredentials, name string) error {
	conn, err := connectAgent(c, nats.UserInfo(name, c.Token))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for range 3 {
		asking, cancel := context.WithTimeout(ctx, askPause)
		_, err := js.Publish(asking, stack.Cell.ObservedTick(c.AgentID), []byte("no event"), jetstream.WithRetryAttempts(0))
		cancel()
		if err != nil {
			return errors.Join(err, conn.LastError())
		}
	}
	return nil
}

// connectionsOf counts an agent's connections, as the server sees them.
func (s *system) connectionsOf(agent int64) int {
	s.t.Helper()
	conn := s.principal(natsauth.PrincipalSystem)
	query, err := json.Marshal(map[string]any{"auth": true, "acc": "AGENTS"})
	require.NoError(s.t, err)
	answer, err := conn.Request("$SYS.REQ.SERVER.PING.CONNZ", query, patience)
	require.NoError(s.t, err)
	var found struct {
		Data struct {
			Connections []struct {
				User string `json:"authorized_user"`
			} `json:"connections"`
		} `json:"data"`
	}
	require.NoError(s.t, json.Unmarshal(answer.Data, &found))
	require.NotEmpty(s.t, found.Data.Connections, "others are connected")
	own := 0
	for _, c := range found.Data.Connections {
		if id, err := strconv.ParseInt(c.User, 10, 64); err == nil && id == agent {
			own++
		}
	}
	return own
}
