package registry_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func put(t testing.TB, r *registry.Registry, entry interface{ Key() string }) {
	t.Helper()
	value, err := json.Marshal(entry)
	require.NoError(t, err)
	require.NoError(t, r.Put(entry.Key(), value))
}

func relay(id string) registry.Relay { return registry.Relay{ID: id, URL: "https://" + id} }

func connection(agent, id int64, relay string) registry.Connection {
	return registry.Connection{
		AgentID: agent, ID: id, RelayID: relay, ProjectID: 10 + agent, PodName: fmt.Sprint(id),
		ConnectedAt: time.Unix(100-id, 0).UTC(),
	}
}

func ids(connections []registry.Connection) []int64 {
	out := []int64{}
	for _, c := range connections {
		out = append(out, c.ID)
	}
	return out
}

func TestConnectionRequiresLease(t *testing.T) {
	t.Parallel()
	r := registry.New()
	one := connection(7, 1, "a")
	put(t, r, one)
	require.Empty(t, r.Agent(7), "its relay has no lease")
	require.Equal(t, []string{"connection.7.1"}, keys(r.Orphans()))
	put(t, r, relay("a"))
	require.Equal(t, []registry.Connection{one}, r.Agent(7))
	require.Equal(t, []registry.Connection{one}, r.Project(17))
	require.Empty(t, r.Orphans())
	found, hasLease := r.Relay("a")
	require.True(t, hasLease)
	require.Equal(t, relay("a"), found)

	put(t, r, relay("b"))
	put(t, r, connection(7, 2, "b"))
	put(t, r, connection(8, 3, "b"))
	require.Equal(t, []int64{2, 1}, ids(r.Agent(7)), "the oldest first")
	r.Delete("relay.b")
	require.Equal(t, []int64{1}, ids(r.Agent(7)))
	require.Empty(t, r.Agent(8))
	require.Equal(t, []string{"connection.7.2", "connection.8.3"}, keys(r.Orphans()))
	r.Delete("connection.7.1")
	require.Empty(t, r.Agent(7))
	require.Empty(t, r.Project(17))
}

func TestUpdateReplacesIndexes(t *testing.T) {
	t.Parallel()
	r := registry.New()
	put(t, r, relay("a"))
	put(t, r, connection(7, 1, "a"))
	moved := connection(7, 1, "a")
	moved.ProjectID = 99
	put(t, r, moved)
	require.Empty(t, r.Project(17))
	require.Equal(t, []registry.Connection{moved}, r.Project(99))
}

func TestSubscriberIsWoken(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]interface{ Key() string }{
		"the connection comes last": {relay("a"), connection(7, 1, "a")},
		"the lease comes last":      {connection(7, 1, "a"), relay("a")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := registry.New()
			added, stop := r.Subscribe(7)
			defer stop()
			others, stopOthers := r.Subscribe(8)
			defer stopOthers()
			put(t, r, steps[0])
			require.Empty(t, added)
			put(t, r, steps[1])
			require.Len(t, added, 1)
			require.Empty(t, others)
			<-added
			put(t, r, relay("a"))
			require.Empty(t, added, "a lease refresh does not wake subscribers")
		})
	}
}

func TestStaleEntriesAreDeletedAtEndOfResync(t *testing.T) {
	t.Parallel()
	r := registry.New()
	put(t, r, relay("a"))
	put(t, r, connection(7, 1, "a"))
	put(t, r, connection(7, 2, "a"))
	r.BeginResync()
	put(t, r, relay("a"))
	put(t, r, connection(7, 2, "a"))
	put(t, r, connection(7, 3, "a"))
	require.Equal(t, []int64{3, 2, 1}, ids(r.Agent(7)))
	r.EndResync()
	require.Equal(t, []int64{3, 2}, ids(r.Agent(7)))
	r.EndResync()
	require.Equal(t, []int64{3, 2}, ids(r.Agent(7)))
}

func TestInvalidEntriesAreIgnored(t *testing.T) {
	t.Parallel()
	r := registry.New()
	for _, key := range []string{
		"", "relay", "other.1", "connection.7", "connection.07.1", "connection.7.1.2", "connection.-7.1", "connection.7.0",
		"connection.a.b",
	} {
		require.Error(t, r.Put(key, []byte(`{}`)), key)
		r.Delete(key)
	}
	require.Error(t, r.Put("relay.a", []byte(`[`)))
	require.Error(t, r.Put("connection.7.1", []byte(`nonsense`)))
	require.Empty(t, r.Orphans())
}

// FuzzRegistry compares the registry with a simple model: two maps.
func FuzzRegistry(f *testing.F) {
	f.Add([]byte{0, 16, 33, 64, 1, 80})
	f.Fuzz(func(t *testing.T, steps []byte) {
		r := registry.New()
		leases, all := map[string]bool{}, map[string]registry.Connection{}
		for _, step := range steps {
			name := string('a' + rune(step&3))
			c := connection(int64(step>>2&1)+1, int64(step>>3&1)+1, name)
			c.ProjectID = int64(step>>4&1) + 1
			switch step >> 6 {
			case 0:
				put(t, r, relay(name))
				leases[name] = true
			case 1:
				r.Delete(relay(name).Key())
				delete(leases, name)
			case 2:
				put(t, r, c)
				all[c.Key()] = c
			case 3:
				r.Delete(c.Key())
				delete(all, c.Key())
			}
		}
		for n := int64(1); n <= 2; n++ {
			agents, projects := []string{}, []string{}
			for key, c := range all {
				if leases[c.RelayID] && c.AgentID == n {
					agents = append(agents, key)
				}
				if leases[c.RelayID] && c.ProjectID == n {
					projects = append(projects, key)
				}
			}
			require.ElementsMatch(t, agents, keys(r.Agent(n)))
			require.ElementsMatch(t, projects, keys(r.Project(n)))
		}
		orphans := []string{}
		for key, c := range all {
			if !leases[c.RelayID] {
				orphans = append(orphans, key)
			}
		}
		slices.Sort(orphans)
		require.ElementsMatch(t, orphans, keys(r.Orphans()))
	})
}

func keys(connections []registry.Connection) []string {
	out := []string{}
	for _, c := range connections {
		out = append(out, c.Key())
	}
	return out
}
