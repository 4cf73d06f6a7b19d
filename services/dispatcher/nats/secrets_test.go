package nats_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/failure"
	dispatchernats "lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/tools/testkit/natstest"
)

func TestSecretsAreOpenedOrRejectedWithAReason(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	agent, state, other := key(t), key(t), key(t)
	values := func(label string, sender seal.Key, recipient string) seal.Reply {
		sealed, err := seal.Values{"TOKEN": seal.NewValue("hunter2")}.Seal(label, recipient, sender)
		require.NoError(t, err)
		return seal.Reply{Box: sealed}
	}
	refused := func(code errcode.Code) seal.Reply {
		return seal.Reply{Error: &seal.ReplyError{Code: code, Message: "because"}}
	}
	secrets := dispatchernats.Secrets{
		Conn:      natstest.Connect(t, server),
		Cell:      topology.Cell("local"),
		AgentID:   7,
		Key:       agent,
		SealerKey: state.Public(),
		Timeout:   10 * time.Second,
	}
	replies := natstest.Connect(t, server)
	for workspace, test := range map[string]struct {
		reply any
		want  failure.Reason // none: opened
	}{
		"sealed":             {values("secret/sealed/d", state, agent.Public()), ""},
		"another-agents":     {values("secret/another-agents/d", state, other.Public()), failure.SecretRefused},
		"another-sender":     {values("secret/another-sender/d", other, agent.Public()), failure.SecretRefused},
		"another-workspaces": {values("secret/sealed/d", state, agent.Public()), failure.SecretRefused},
		"another-digest":     {values("secret/another-digest/e", state, agent.Public()), failure.SecretRefused},
		"open":               {seal.Reply{Box: []byte("hunter2")}, failure.SecretRefused},
		"empty":              {seal.Reply{}, failure.SecretRefused},
		"no-json":            {json.RawMessage(`"hunter2"`), failure.SecretRefused},
		"refused":            {refused(errcode.NotFound), failure.SecretRefused},
		"not-now":            {refused(errcode.Unavailable), failure.SecretUnavailable},
		"changed-since":      {refused(errcode.Conflict), failure.SecretUnavailable},
		"no-responder":       {nil, failure.SecretUnavailable},
	} {
		if test.reply != nil {
			_, err := replies.Subscribe("lockstep.local.secret.7."+workspace, func(m *nats.Msg) {
				var request map[string]string
				raw, err := json.Marshal(test.reply)
				if err == nil {
					err = json.Unmarshal(m.Data, &request)
				}
				if err == nil {
					err = m.Respond(raw)
				}
				if err != nil || request["name"] != "variables" || request["digest"] != "d" {
					t.Error(err, request)
				}
			})
			require.NoError(t, err)
		}
		require.NoError(t, replies.Flush())
		got, err := secrets.Values(t.Context(), workspace, events.SecretReference{Name: "variables", Digest: "d"})
		if test.want == "" {
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"TOKEN": []byte("hunter2")}, got)
			continue
		}
		var f *failure.Failure
		require.ErrorAs(t, err, &f, workspace)
		require.Equal(t, test.want, f.Reason, workspace)
		require.False(t, f.Final, "the next attempt asks again")
		require.NotContains(t, f.Error(), "hunter2")
	}
}

func key(t *testing.T) seal.Key {
	t.Helper()
	k, err := seal.GenerateKey()
	require.NoError(t, err)
	return k
}
