package replay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const cell = topology.Cell("local")

// history is a stream with ten events of two workspaces in turn.
func history(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.JetStream(t, natstest.Server(t))
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 28}))
	for i := range 10 {
		_, err := js.PublishMsg(
			t.Context(),
			&nats.Msg{
				Subject: cell.Workspace(1, fmt.Sprintf("w%d", i%2), "state_changed"),
				Data:    fmt.Appendf(nil, "%d", i),
			},
		)
		require.NoError(t, err)
	}
	return js
}

func collect(t *testing.T, js jetstream.JetStream, opts replay.Options) (data string, times []time.Time) {
	t.Helper()
	require.NoError(
		t,
		replay.Run(t.Context(), js, cell, opts, func(m stored.Message) error {
			data += string(m.Data)
			times = append(times, m.Stored)
			return nil
		}),
	)
	return data, times
}

func TestReplayInOrder(t *testing.T) {
	t.Parallel()
	js := history(t)
	all, times := collect(t, js, replay.Options{Subject: "workspace.>"})
	require.Equal(t, "0123456789", all)
	for want, opts := range map[string]replay.Options{
		"0123456789": {Subject: "workspace.>", OriginalPace: true},
		"13579":      {Subject: "workspace.1.w1.>"},
		"2345":       {Subject: "workspace.>", FromSequence: 3, ToSequence: 6},
		"3579":       {Subject: "workspace.1.w1.*", FromSequence: 3},
		"024":        {Subject: "workspace.1.w0.*", ToSequence: 6},
		"56789":      {Subject: "workspace.>", FromTime: times[5]},
		"01234":      {Subject: "workspace.>", ToTime: times[4]},
		"":           {Subject: "workspace.2.>"},
		"9":          {Subject: "workspace.>", FromSequence: 10, ToSequence: 99},
		"2345 also":  {Subject: "workspace.1.w1.*", Also: []string{"workspace.1.w0.*"}, FromSequence: 3, ToSequence: 6},
		"13 also":    {Subject: "workspace.1.w1.*", Also: []string{"workspace.2.*.*"}, ToSequence: 5},
		"0246 also":  {Subject: "workspace.2.>", Also: []string{"workspace.1.w0.*"}, ToTime: times[7]},
	} {
		got, _ := collect(t, js, opts)
		require.Equal(t, strings.TrimSuffix(want, " also"), got, "%+v", opts)
	}
	stream, err := js.Stream(t.Context(), topology.StreamWorkspaces)
	require.NoError(t, err)
	require.Zero(t, stream.CachedInfo().State.Consumers, "nothing of a replay is left")
}

func TestReplayEndsAtTheLastMessageAtItsStart(t *testing.T) {
	t.Parallel()
	js := history(t)
	seen := 0
	require.NoError(
		t,
		replay.Run(
			t.Context(),
			js,
			cell,
			replay.Options{Subject: "workspace.>"},
			func(stored.Message) error {
				seen++
				_, err := js.Publish(t.Context(), cell.Workspace(1, "w0", "state_changed"), []byte("new"))
				return err
			},
		),
	)
	require.Equal(t, 10, seen)
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	js := history(t)
	none := func(stored.Message) error { return nil }
	err := replay.Run(t.Context(), js, cell, replay.Options{Subject: "nothing.>"}, none)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	require.ErrorContains(t, err, "observed, desired")
	err = replay.Run(t.Context(), js, cell, replay.Options{Subject: "workspace.>", FromSequence: 1, FromTime: time.Now()},
		none)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
	err = replay.Run(t.Context(), js, cell, replay.Options{Subject: "workspace.>"},
		func(stored.Message) error { return fmt.Errorf("enough") })
	require.EqualError(t, err, "enough")
}
