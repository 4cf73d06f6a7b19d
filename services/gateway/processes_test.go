package gateway_test

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
)

// TestProgramThatWasLeftIsActivity has two replicas and a real agent. Nobody is connected when the program works.
func TestProgramThatWasLeftIsActivity(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	agent := f.startAgent()
	cfg := f.config()
	cfg.Workspaces.ProcessInterval = time.Second
	cfg.Workspaces.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, agent)
	}
	r := f.start(cfg)
	f.start(cfg)
	signer, _ := f.newSigner()
	f.workspace(func(w *events.AccessWorkspace) { w.CountsProcesses = true })
	var client *ssh.Client
	require.Eventually(t, func() bool {
		var err error
		client, err = r.dial(ssh.PublicKeys(signer))
		return err == nil
	}, soon, 10*time.Millisecond)
	session, err := client.NewSession()
	require.NoError(t, err)
	output, err := session.Output("nohup sh -c 'while :; do :; done' > /dev/null 2>&1 & echo $!")
	require.NoError(t, err)
	program, err := strconv.Atoi(strings.TrimSpace(string(output)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(program, syscall.SIGKILL) })
	require.NoError(t, client.Close())
	_ = client.Wait()

	consumer, err := f.js.CreateConsumer(t.Context(), "ACTIVITY", jetstream.ConsumerConfig{
		FilterSubject: cell.Activity(id), AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: soon,
	})
	require.NoError(t, err)
	next := func() events.ActivityProcesses {
		for {
			m, err := consumer.Next(jetstream.FetchMaxWait(soon))
			require.NoError(t, err)
			e, err := event.Decode(m.Headers(), m.Data())
			require.NoError(t, err)
			if e.Type() == events.TypeActivityProcesses {
				var data events.ActivityProcesses
				require.NoError(t, json.Unmarshal(e.Data(), &data))
				return data
			}
		}
	}
	first := next()
	require.Equal(t, id, first.WorkspaceID)
	require.Equal(t, "sh", first.Programs[0].Name)
	require.Positive(t, first.Programs[0].ProcessorMs)
	require.WithinDuration(t, time.Now(), first.WorkedAt, soon)
	// Both replicas may report the same work, at times that differ by milliseconds.
	for next().WorkedAt.Before(first.WorkedAt.Add(cfg.Workspaces.ProcessInterval / 2)) {
		continue
	}
}
