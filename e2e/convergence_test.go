package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
)

// convergenceTick is between looks at the whole system.
const convergenceTick = 500 * time.Millisecond

// requireConverged waits until what is wanted, what is stored, what is sent and what there is are the same, and nothing is under way.
func (s *system) requireConverged() {
	t := s.t
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.Database().URL())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var found history.Findings
	converged := func() bool {
		found = append(history.Converged(s.rows(conn), told(s.records(topology.FamilyDesired)), s.cluster()), s.underway(conn)...)
		return len(found) == 0
	}
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(convergenceTick)
	defer ticker.Stop()
	for !converged() {
		if time.Now().After(deadline) {
			require.Empty(t, found, "the system does not converge")
		}
		<-ticker.C
	}
	var mirrored history.Findings
	require.Eventually(t, func() bool {
		mirrored = history.Mirrored(s.stored(conn), s.live())
		return len(mirrored) == 0
	}, patience, convergenceTick, "what is observed is not what there is")
	require.Empty(t, mirrored)
}

// rows are all workspaces of the database.
func (s *system) rows(conn *pgx.Conn) []history.Row {
	s.t.Helper()
	rows, err := conn.Query(s.t.Context(), `select id::text, name, namespace, desired_state, actual_state, desired_revision, applied_revision, coalesce(spec->>'image', '') from state.workspaces order by id`)
	require.NoError(s.t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Row, error) {
		var r history.Row
		return r, row.Scan(&r.ID, &r.Name, &r.Namespace, &r.DesiredState, &r.Actual, &r.Desired, &r.Applied, &r.Image)
	})
	require.NoError(s.t, err)
	return all
}

// underway finds what waits to be told or read.
func (s *system) underway(conn *pgx.Conn) history.Findings {
	t := s.t
	t.Helper()
	var found history.Findings
	var waiting int
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from state.outbox`).Scan(&waiting))
	if waiting > 0 {
		found = append(found, fmt.Sprintf("%d messages wait in the outbox", waiting))
	}
	for _, name := range []string{topology.StreamObserved, topology.StreamApplied} {
		stream, err := s.js.Stream(t.Context(), name)
		require.NoError(t, err)
		var sequence uint64
		require.NoError(t, conn.QueryRow(t.Context(), `select sequence from state.stream_cursors where stream = $1`, name).Scan(&sequence))
		if last := stream.CachedInfo().State.LastSeq; last != sequence {
			found = append(found, fmt.Sprintf("%s is read up to %d of %d", name, sequence, last))
		}
	}
	return found
}

// cluster is what there is of workspaces, whosever they are.
func (s *system) cluster() history.Cluster {
	t := s.t
	t.Helper()
	ctx, selector := t.Context(), metav1.ListOptions{LabelSelector: labelWorkspace}
	there := history.Cluster{Namespaces: map[string]string{}, Volumes: map[string]string{}, Inventories: map[string]string{}}
	deployments, err := s.kube.AppsV1().Deployments("").List(ctx, selector)
	require.NoError(t, err)
	for i := range deployments.Items {
		d := &deployments.Items[i]
		revision, err := strconv.Atoi(d.Annotations[desiredRevision])
		require.NoError(t, err)
		there.Deployments = append(there.Deployments, history.Deployment{
			Namespace: d.Namespace, Name: d.Name, Workspace: d.Labels[labelWorkspace], Revision: revision, Replicas: int(*d.Spec.Replicas),
			Image: d.Spec.Template.Spec.Containers[0].Image,
		})
	}
	namespaces, err := s.kube.CoreV1().Namespaces().List(ctx, selector)
	require.NoError(t, err)
	for i := range namespaces.Items {
		there.Namespaces[namespaces.Items[i].Name] = namespaces.Items[i].Labels[labelWorkspace]
	}
	claims, err := s.kube.CoreV1().PersistentVolumeClaims("").List(ctx, selector)
	require.NoError(t, err)
	for i := range claims.Items {
		there.Volumes[claims.Items[i].Namespace+"/"+claims.Items[i].Name] = claims.Items[i].Labels[labelWorkspace]
	}
	inventories, err := s.kube.CoreV1().ConfigMaps("").List(ctx, selector)
	require.NoError(t, err)
	for i := range inventories.Items {
		if strings.HasPrefix(inventories.Items[i].Name, "workspace-") {
			there.Inventories[inventories.Items[i].Name] = inventories.Items[i].Labels[labelWorkspace]
		}
	}
	return there
}

// stored are the objects that are there as the database knows.
func (s *system) stored(conn *pgx.Conn) []history.Object {
	s.t.Helper()
	rows, err := conn.Query(s.t.Context(), `select kind, namespace, name, uid, resource_version::text from state.observed_objects where not deleted`)
	require.NoError(s.t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Object, error) {
		var o history.Object
		return o, row.Scan(&o.Kind, &o.Namespace, &o.Name, &o.UID, &o.Version)
	})
	require.NoError(s.t, err)
	return all
}

// live are the objects that there are, of the kinds that are observed.
func (s *system) live() []history.Object {
	t := s.t
	t.Helper()
	ctx, selector := t.Context(), metav1.ListOptions{LabelSelector: labelAgent}
	var all []history.Object
	add := func(kind string, o metav1.Object) {
		all = append(all, history.Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()), Version: o.GetResourceVersion()})
	}
	deployments, err := s.kube.AppsV1().Deployments("").List(ctx, selector)
	require.NoError(t, err)
	for i := range deployments.Items {
		add("deployment", &deployments.Items[i])
	}
	sets, err := s.kube.AppsV1().ReplicaSets("").List(ctx, selector)
	require.NoError(t, err)
	for i := range sets.Items {
		add("replicaset", &sets.Items[i])
	}
	pods, err := s.kube.CoreV1().Pods("").List(ctx, selector)
	require.NoError(t, err)
	for i := range pods.Items {
		add("pod", &pods.Items[i])
	}
	return all
}

// volumes collects every volume of workspaces that there ever is from now on. What it returns ends it and gives them.
func (s *system) volumes() func() []history.Volume {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	options := metav1.ListOptions{LabelSelector: labelWorkspace}
	list, err := s.kube.CoreV1().PersistentVolumeClaims("").List(ctx, options)
	require.NoError(t, err)
	options.ResourceVersion = list.ResourceVersion
	var seen []history.Volume
	failed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			watching, err := s.kube.CoreV1().PersistentVolumeClaims("").Watch(ctx, options)
			if err != nil {
				failed <- err
				return
			}
			for e := range watching.ResultChan() {
				claim, is := e.Object.(metav1.Object)
				if !is {
					watching.Stop()
					failed <- fmt.Errorf("the watch says %v", e.Object)
					return
				}
				options.ResourceVersion = claim.GetResourceVersion()
				if e.Type == watch.Added {
					seen = append(seen, history.Volume{
						Namespace: claim.GetNamespace(), Name: claim.GetName(), UID: string(claim.GetUID()), Workspace: claim.GetLabels()[labelWorkspace],
					})
				}
			}
		}
		failed <- nil
	}()
	return func() []history.Volume {
		t.Helper()
		cancel()
		if err := <-failed; ctx.Err() == nil {
			require.NoError(t, err)
		}
		return seen
	}
}
