package replay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/replay"
	"lockstep.internal/tools/testkit/natstest"
)

func TestFollowPassesEachMessageThatIsStoredAfterItsStart(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string][]string{
		"workspace.>":       {cell.Workspace(1, "new", "created"), cell.Workspace(2, "new", "created")},
		"workspace.2.>":     {cell.Workspace(2, "new", "created")},
		"*.7.tick":          {cell.ObservedTick(7)},
		"observed.>":        {cell.ObservedTick(7), cell.ObservedTick(8)},
		">":                 {cell.ObservedTick(7), cell.ObservedTick(8), cell.Desired(7, "w"), cell.Workspace(1, "new", "created")},
		"directory.user.>":  {cell.Directory("user", "1")},
		"desired_log.*.w":   {cell.Prefix(topology.FamilyDesiredLog) + ".7.w"},
		"workspace.1.new.*": {cell.Workspace(1, "new", "created")},
	} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			js := history(t)
			publish := func() error {
				for _, subject := range []string{
					cell.Directory("user", "1"), cell.ObservedTick(7), cell.ObservedTick(8),
					cell.Prefix(topology.FamilyDesiredLog) + ".7.w", cell.Desired(7, "w"), cell.Workspace(1, "new", "created"),
					cell.Workspace(2, "new", "created"),
				} {
					if _, err := js.Publish(t.Context(), subject, []byte("new")); err != nil {
						return err
					}
				}
				return nil
			}
			enough := errors.New("enough")
			var got []string
			failed := func(err error) { t.Error(err) }
			err := replay.Follow(natstest.Context(t), js, cell, filter, publish, failed, func(m stored.Message) error {
				if got = append(got, m.Subject); len(got) == len(want) {
					return enough
				}
				return nil
			})
			require.ErrorIs(t, err, enough)
			require.Equal(t, want, got)
		})
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	js := history(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := func() error { cancel(); return nil }
	none := func(stored.Message) error { return nil }
	require.NoError(t, replay.Follow(ctx, js, cell, "workspace.>", cancelled, func(error) {}, none))
	err := replay.Follow(t.Context(), js, cell, "nothing.>", cancelled, func(error) {}, none)
	require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err))
}

func TestFollowContinuesAfterAnOutage(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	js := natstest.JetStream(t, server)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, cell, topology.Options{StorageBytes: 1 << 28}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	publish := func(agent int64) {
		_, err := natstest.JetStream(t, server).Publish(ctx, cell.ObservedTick(agent), []byte("x"))
		require.NoError(t, err)
	}
	enough := errors.New("enough")
	var got []string
	err := replay.Follow(ctx, js, cell, "observed.>", func() error {
		server.Down()
		require.Eventually(t, func() bool { return !js.Conn().IsConnected() }, time.Minute, time.Millisecond)
		return nil
	},
		func(err error) {
			if err == nil {
				got = append(got, "back")
				publish(8)
				return
			}
			got = append(got, "lost")
			require.NoError(t, server.Restart())
			publish(7)
		}, func(m stored.Message) error {
			if got = append(got, m.Subject); m.Subject == cell.ObservedTick(8) {
				return enough
			}
			return nil
		})
	require.ErrorIs(t, err, enough)
	require.Equal(t, []string{"lost", "back", cell.ObservedTick(7), cell.ObservedTick(8)}, got)
}

func TestFollowReportsAnOutageOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	js, admin := natstest.JetStream(t, server), natstest.JetStream(t, server)
	ensure := func() error {
		return topology.Ensure(natstest.Context(t), admin, cell, topology.Options{StorageBytes: 1 << 28})
	}
	require.NoError(t, ensure())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	restored := make(chan error, 1)
	failures := 0
	enough := errors.New("enough")
	err := replay.Follow(ctx, js, cell, "observed.>", func() error {
		sent := js.Conn().Stats().OutMsgs
		go func() {
			looks := time.NewTicker(time.Millisecond)
			defer looks.Stop()
			for ctx.Err() == nil && js.Conn().Stats().OutMsgs < sent+5 {
				<-looks.C
			}
			err := ensure()
			if err == nil {
				_, err = admin.Publish(ctx, cell.ObservedTick(7), []byte("x"))
			}
			restored <- err
		}()
		return admin.DeleteStream(ctx, topology.StreamObserved)
	}, func(err error) {
		if err != nil {
			failures++
		}
	}, func(stored.Message) error { return enough })
	require.ErrorIs(t, err, enough)
	require.NoError(t, <-restored)
	require.Equal(t, 1, failures)
}
