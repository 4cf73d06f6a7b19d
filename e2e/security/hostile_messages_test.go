package security_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// hostileMessages returns messages that NATS stores on the agent's own subjects and whose handling could fail for
// ever. The subject of each is that of an object named name.
func hostileMessages(subject func(name string) string) map[string]natstest.RawMessage {
	const longName, longHeader = 3900, 65_300 // NATS allows 4,096 bytes for a subject, 64 KiB for headers
	header := func(lines string) string { return "NATS/1.0\r\n" + lines + "\r\n" }
	messages := map[string]natstest.RawMessage{
		"headers as large as NATS allows": {
			Subject: subject("headers"), Header: header("X: " + strings.Repeat("x", longHeader) + "\r\n"), Data: "{}",
		},
		"a subject as long as NATS allows": {
			Subject: subject(strings.Repeat("x", longName-len(subject("")))), Header: header(""), Data: "{}",
		},
		"an event id that PostgreSQL refuses": {
			Subject: subject("id"), Header: header("ce-id: \xff\x00\r\n"), Data: "{}",
		},
		"a header that clients do not send": {Subject: subject("name"), Header: header("a b: x\r\n"), Data: "{}"},
	}
	for name, lines := range map[string]string{
		"status-100": "Status: 100\r\n", "status-400": "Status: 400\r\n", "status-404": "Status: 404\r\n",
		"no-colon": "x\r\n", "sequence": "Nats-Sequence: x\r\n", "time": "Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\n",
	} {
		messages[name] = natstest.RawMessage{Subject: subject(name), Header: header(lines)}
	}
	return messages
}

// TestHostileMessagesDelayNoOther publishes hostile messages with an agent's real credentials, one after the other, so
// that each one is the last of its batch.
func TestHostileMessagesDelayNoOther(t *testing.T) {
	t.Parallel()
	s := fixture.StartWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}})
	workload, healthy, cli := s.NewDeployment("hostile", 1), s.CreateRunning("healthy"), s.CLI()
	credentials, err := natsauth.ReadAgentCredentials(s.Agents()[0].CredentialsFile)
	require.NoError(t, err)
	agentID := s.AgentID
	refused := 0
	for service, subjects := range map[string][]func(name string) string{
		"state": {
			func(name string) string { return stack.Cell.Observed(agentID, "deployment", "a", name) },
			func(name string) string { return stack.Cell.Applied(agentID, name) },
		},
		stack.Deploys: {func(name string) string { return stack.Cell.ObservedWorkload(agentID, "deployment", "a", name) }},
	} {
		for _, subject := range subjects {
			for name, m := range hostileMessages(subject) {
				natstest.PublishRaw(t, credentials.ServerURLs[0], strconv.FormatInt(agentID, 10), credentials.Token, m)
				var letter fixture.DeadLetter
				require.Eventually(t, func() bool {
					for _, letter = range cli.DeadLetters("--service", service) {
						if letter.Subject == m.Subject {
							return true
						}
					}
					return false
				}, fixture.Timeout, fixture.PollInterval, "%s: %s on %.80s", service, name, m.Subject)
				sequence := strconv.FormatUint(letter.Sequence, 10)
				cli.OK("dead", "show", sequence)
				if letter.OmittedHeaders > 0 {
					refused++
					_, _, stderr := cli.Run("dead", "retry", sequence)
					require.Contains(t, stderr, "cannot be retried: 1 of its headers could not be stored")
				}
			}
		}
	}
	require.Equal(t, 6, refused, "one on each subject has too large headers, one a header that clients do not send")
	cli.OK("dead", "drop", "--all")
	require.NoError(t, s.Restart(t.Context(), stack.State))
	require.NoError(t, s.Restart(t.Context(), stack.Deploys))

	healthy.Stop()
	healthy.AwaitStopped()
	healthy.Start()
	healthy.AwaitRunning()
	workload.SetImage(fixture.SecondImage)
	workload.RequireFacts("started 1", "completed 1", "started 2", "completed 2")
	require.Empty(t, cli.DeadLetters())
}
