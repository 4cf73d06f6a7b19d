package runner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

func (f *fixture) contact(systemID string, info runner.Info) int64 {
	f.t.Helper()
	id, err := f.registry.Manager(f.t.Context(), 7, systemID, info, "192.0.2.1")
	require.NoError(f.t, err)
	return id
}

func TestIdlePollsWriteNoContact(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	info := runner.Info{Version: "17.9.3"}
	id := f.contact("s_1", info)
	require.Equal(t, 1, f.store.written())
	for range 39 {
		f.advance(time.Minute)
		require.Equal(t, id, f.contact("s_1", info))
	}
	require.Equal(t, 1, f.store.written())
	require.Equal(t, now.Add(39*time.Minute), f.registry.LastContact(7))
	f.advance(time.Minute)
	f.contact("s_1", info)
	require.Equal(t, 2, f.store.written())
	require.Equal(t, runner.Contact{
		RunnerID: 7, SystemID: "s_1", Info: info, Address: "192.0.2.1", At: now.Add(40 * time.Minute),
	}, f.store.contacts[1])
}

func TestChangedInfoIsWrittenAtMostOnceAMinute(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	f.contact("s_1", runner.Info{Version: "1", Executor: "shell"})
	f.advance(59 * time.Second)
	f.contact("s_1", runner.Info{Version: "2"})
	require.Equal(t, 1, f.store.written())
	f.advance(time.Second)
	f.contact("s_1", runner.Info{})
	require.Equal(t, 1, f.store.written(), "a request without information changes nothing")
	f.contact("s_1", runner.Info{Version: "2"})
	require.Equal(t, 2, f.store.written())
	require.Equal(t, runner.Info{Version: "2", Executor: "shell"}, f.store.contacts[1].Info)
	f.contact("s_1", runner.Info{Version: "3"})
	require.Equal(t, 2, f.store.written())
}

func TestContactOfADeletedRunnerIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	f.remove(7)
	_, err := f.registry.Manager(t.Context(), 7, "s_1", runner.Info{}, "")
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
}

func TestOutageKeepsKnownManagers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	id := f.contact("s_1", runner.Info{})
	f.store.change(func() { f.store.down = true })
	f.advance(time.Hour)
	require.Equal(t, id, f.contact("s_1", runner.Info{}))
	_, err := f.registry.Manager(t.Context(), 7, "s_22", runner.Info{}, "")
	require.ErrorIs(t, err, errDown)
	f.store.change(func() { f.store.down = false })
	require.Equal(t, id, f.contact("s_1", runner.Info{}))
	require.Equal(t, 1, f.store.written(), "the next attempt is after a minute")
	f.advance(time.Minute)
	f.contact("s_1", runner.Info{})
	require.Equal(t, 2, f.store.written())
}

func TestMemoryOfManagersIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	for i := range 4 {
		f.contact(fmt.Sprintf("s_%d", i), runner.Info{})
		f.advance(time.Second)
	}
	require.Equal(t, 4, f.store.written())
	f.contact("s_3", runner.Info{})
	require.Equal(t, 4, f.store.written())
	f.contact("s_0", runner.Info{})
	require.Equal(t, 5, f.store.written(), "the manager with the oldest contact is forgotten")
}

func TestForgottenManagerIsWrittenAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.add(7)
	f.run()
	f.contact("s_1", runner.Info{})
	f.registry.ForgetManager(7, "s_1")
	require.Zero(t, f.registry.LastContact(7))
	f.contact("s_1", runner.Info{})
	require.Equal(t, 2, f.store.written())
}
