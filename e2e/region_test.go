package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/lab"
)

// region is a cluster of its own beside the system's first, with an agent in it. It keeps its data, so that it can go away and come back.
type region struct {
	*system

	first *system // as seen from the first cluster
	name  string
	data  string
	lab   *present
}

// present is the cluster as long as it lasts.
type present struct{ *lab.Lab }

// newRegion starts a cluster and an agent in it. It returns the system as it is seen from there.
func (s *system) newRegion(name string) *region {
	s.t.Helper()
	there := *s
	r := &region{system: &there, first: s, name: name, data: filepath.Join(s.t.TempDir(), name)}
	r.lab = &present{r.startLab()}
	s.t.Cleanup(func() { require.NoError(s.t, r.lab.Stop()) })
	r.kube = clusterClient(r.t, r.lab.Kubeconfig())
	r.project = s.newProject(name)
	agent, err := s.AddAgent(s.t.Context(), r.project, name, r.lab.Kubeconfig())
	require.NoError(s.t, err)
	r.agent = agent.ID
	return r
}

func (r *region) startLab() *lab.Lab {
	r.t.Helper()
	started, err := lab.Start(r.t.Context(), lab.Options{Name: r.name, Data: r.data, Progress: r.t.Output()})
	require.NoError(r.t, err)
	return started
}

// in is the region for a subtest.
func (r *region) in(t *testing.T) *region {
	t.Helper()
	here := *r
	here.system, here.first = r.system.in(t), r.first.in(t)
	return &here
}

// without takes the cluster away while something is done, and brings it back under the address and with the certificates that it had.
func (r *region) without(do func()) {
	r.t.Helper()
	before := r.lab.Server()
	require.NoError(r.t, r.lab.Stop())
	defer func() { // whatever came of it: others need it
		r.lab.Lab = r.startLab()
		if r.lab.Server() != before {
			r.moved()
		}
	}()
	do()
}

// moved is what has to be done when another program has the cluster's port by now, so that the kubeconfig is another one.
func (r *region) moved() {
	r.t.Helper()
	r.kube = clusterClient(r.t, r.lab.Kubeconfig())
	for _, service := range []string{stack.WatcherOf(r.name), stack.DispatcherOf(r.name)} {
		require.NoError(r.t, r.Restart(r.t.Context(), service))
	}
}

func (r *region) store() string { return filepath.Join(r.data, "etcd") }

// copyStore copies the store of a cluster that is away.
func (r *region) copyStore() string {
	r.t.Helper()
	older := filepath.Join(r.t.TempDir(), "older")
	require.NoError(r.t, os.CopyFS(older, os.DirFS(r.store())))
	return older
}

// replaceStore puts a copy in the place of the store of a cluster that is away; an empty one makes it a new cluster.
func (r *region) replaceStore(older string) {
	r.t.Helper()
	require.NoError(r.t, os.RemoveAll(r.store()))
	if older != "" {
		require.NoError(r.t, os.CopyFS(r.store(), os.DirFS(older)))
	}
}

// epoch is which of its histories the agent's cluster is in.
func (r *region) epoch() int64 {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.Database().URL())
	require.NoError(r.t, err)
	defer conn.Close(r.t.Context())
	var epoch int64
	require.NoError(r.t, conn.QueryRow(r.t.Context(), `select epoch from state.agents where id = $1`, r.agent).Scan(&epoch))
	return epoch
}
