package recovery_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/lab"
)

// secondCluster is a cluster beside the system's first one, with an agent. It keeps its data while
// it is stopped.
type secondCluster struct {
	*fixture.System

	primary *fixture.System // as seen from the first cluster
	name    string
	data    string
	lab     *runningLab
}

// runningLab is the cluster's current control plane and its client.
type runningLab struct {
	*lab.Lab

	kube kubernetes.Interface
}

// newSecondCluster starts a cluster and an agent in it. The embedded system has the new cluster as
// its own.
func newSecondCluster(s *fixture.System, name string) *secondCluster {
	s.T.Helper()
	there := *s
	r := &secondCluster{System: &there, primary: s, name: name, data: filepath.Join(s.T.TempDir(), name)}
	started := r.startLab()
	r.lab = &runningLab{started, fixture.KubeClient(s.T, started.Kubeconfig())}
	s.T.Cleanup(func() { require.NoError(s.T, r.lab.Stop()) })
	r.Kube = r.lab.kube
	r.ProjectID = s.NewProject(name)
	agent, err := s.AddAgent(s.T.Context(), r.ProjectID, name, r.lab.Kubeconfig())
	require.NoError(s.T, err)
	r.AgentID = agent.ID
	// Without an API server they would not drain in time if another program had taken its port.
	s.T.Cleanup(func() {
		for _, service := range []string{stack.WatcherOf(name), stack.DispatcherOf(name)} {
			require.NoError(s.T, s.StopService(service))
		}
	})
	return r
}

func (r *secondCluster) startLab() *lab.Lab {
	r.T.Helper()
	started, err := lab.Start(r.T.Context(), lab.Options{Name: r.name, Data: r.data, Progress: r.T.Output()})
	require.NoError(r.T, err)
	return started
}

// in returns the cluster for a subtest.
func (r *secondCluster) in(t testing.TB) *secondCluster {
	t.Helper()
	here := *r
	here.System, here.primary = r.In(t), r.primary.In(t)
	here.Kube = r.lab.kube
	return &here
}

// stoppedDuring stops the cluster, calls do and starts it again with the same address and
// certificates.
func (r *secondCluster) stoppedDuring(do func()) {
	r.T.Helper()
	before := r.lab.Server()
	require.NoError(r.T, r.lab.Stop())
	defer func() { // whatever came of it: others need it
		r.lab.Lab = r.startLab()
		if r.lab.Server() != before {
			r.addressChanged()
		}
	}()
	do()
}

// addressChanged reconnects everything when another program has taken the cluster's port meanwhile.
func (r *secondCluster) addressChanged() {
	r.T.Helper()
	r.lab.kube = fixture.KubeClient(r.T, r.lab.Kubeconfig())
	r.Kube = r.lab.kube
	for _, service := range []string{stack.WatcherOf(r.name), stack.DispatcherOf(r.name)} {
		require.NoError(r.T, r.Restart(r.T.Context(), service))
	}
}

func (r *secondCluster) store() string { return filepath.Join(r.data, "etcd") }

// copyStore copies the store of a stopped cluster.
func (r *secondCluster) copyStore() string {
	r.T.Helper()
	older := filepath.Join(r.T.TempDir(), "older")
	require.NoError(r.T, os.CopyFS(older, os.DirFS(r.store())))
	return older
}

// replaceStore replaces the store of a stopped cluster. An empty path gives a new cluster.
func (r *secondCluster) replaceStore(older string) {
	r.T.Helper()
	require.NoError(r.T, os.RemoveAll(r.store()))
	if older != "" {
		require.NoError(r.T, os.CopyFS(r.store(), os.DirFS(older)))
	}
}

// epoch returns the cluster epoch that the state service has recorded for the agent.
func (r *secondCluster) epoch() int64 {
	r.T.Helper()
	conn, err := pgx.Connect(r.T.Context(), r.Database().URL())
	require.NoError(r.T, err)
	defer conn.Close(r.T.Context())
	var epoch int64
	require.NoError(
		r.T,
		conn.QueryRow(r.T.Context(), `select epoch from state.agents where id = $1`, r.AgentID).Scan(&epoch),
	)
	return epoch
}
