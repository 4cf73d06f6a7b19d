package watcher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
)

// workloadNamespace is a namespace of workloads that belong to no workspace.
type workloadNamespace struct {
	client    kubernetes.Interface
	namespace string
}

func (f *fixture) workloadNamespace(t *testing.T, suffix string) *workloadNamespace {
	t.Helper()
	s := &workloadNamespace{client: kubernetesClient(t), namespace: fmt.Sprintf("shop-%d%s", f.agent, suffix)}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	_, err := s.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	return s
}

// trackingConfig is a configuration of a watcher that tracks workloads in the namespaces.
func (f *fixture) trackingConfig(t *testing.T, selector string, namespaces ...*workloadNamespace) watcher.Config {
	t.Helper()
	cfg := f.config(t)
	cfg.Workloads.Enabled, cfg.Workloads.Selector = true, selector
	for _, s := range namespaces {
		cfg.Workloads.Namespaces = append(cfg.Workloads.Namespaces, s.namespace)
	}
	return cfg
}

func podsOf(name string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": name}
	return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/" + name + ":1"}}},
	}
}

func (s *workloadNamespace) meta(name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:   name,
		Labels: labels,
		Annotations: map[string]string{
			"lockstep.dev/commit":       "abc",
			"app.kubernetes.io/part-of": "shop",
			"example.org/other":         "x",
		},
	}
}

func (s *workloadNamespace) deployment(t *testing.T, name string, replicas int32, labels map[string]string) {
	t.Helper()
	selector, template := podsOf(name)
	_, err := s.client.AppsV1().Deployments(s.namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: s.meta(name, labels),
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template},
	}, metav1.CreateOptions{FieldManager: "tester"})
	require.NoError(t, err)
}

// settled waits until the controllers have nothing left to do for the Deployments.
func (s *workloadNamespace) settled(t *testing.T, names ...string) {
	t.Helper()
	settled(t, s.client, s.namespace, names...)
}

func (s *workloadNamespace) patch(t *testing.T, name, patch string) {
	t.Helper()
	options := metav1.PatchOptions{FieldManager: "patcher"}
	deployments := s.client.AppsV1().Deployments(s.namespace)
	_, err := deployments.Patch(t.Context(), name, types.MergePatchType, []byte(patch), options)
	require.NoError(t, err)
}

func (s *workloadNamespace) note(t *testing.T, name, note string) {
	t.Helper()
	s.patch(t, name, fmt.Sprintf(`{"metadata":{"annotations":{"lockstep.dev/note":%q}}}`, note))
}

// resyncedOf reads one whole full resync of a scope and returns its begin event and its members.
func (p *recorder) resyncedOf(t *testing.T, scope string) (recorded, []recorded) {
	t.Helper()
	begin := last(
		p.until(t, "the begin of a resync of "+scope, func(h recorded) bool { return begun(h) && h.Scope == scope }),
	)
	read := p.until(t, "its end", func(h recorded) bool { return ended(h) && h.ResyncID == begin.ResyncID })
	require.Equal(t, scope, last(read).Scope)
	var members []recorded
	for _, h := range read {
		if h.Object.ResyncID == begin.ResyncID {
			members = append(members, h)
		}
	}
	require.Equal(t, begin.Count, last(read).Count)
	require.Len(t, members, begin.Count)
	return begin, members
}

const workloads = report.ScopeWorkloads

func TestWorkloadsOfAllKindsAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.workloadNamespace(t, "")
	start(t, f.trackingConfig(t, "", s))
	recorder := f.record(t)
	begin, _ := recorder.resyncedOf(t, workloads)
	require.Equal(t, events.ResyncCauseStart, begin.Cause)
	selection, err := filter.NewSelection([]string{s.namespace}, "")
	require.NoError(t, err)
	require.Equal(t, selection.Digest(), begin.Selection)
	require.Len(t, begin.ListVersions, 5)
	require.Zero(t, begin.Count)

	s.deployment(t, "web", 1, map[string]string{"team": "shop"})
	s.deployment(t, "workspace", 0, map[string]string{object.LabelAgent: "1"})
	selector, template := podsOf("db")
	_, err = s.client.AppsV1().StatefulSets(s.namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: s.meta("db", nil),
		Spec:       appsv1.StatefulSetSpec{Selector: selector, Template: template, ServiceName: "db"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	selector, template = podsOf("log")
	_, err = s.client.AppsV1().DaemonSets(s.namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: s.meta("log", nil), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	missing := map[string]bool{
		"deployment web":         true,
		"statefulset db":         true,
		"daemonset log":          true,
		"replicaset web":         true,
		"controllerrevision db":  true,
		"controllerrevision log": true,
	}
	read := recorder.until(t, "all of them available", func(h recorded) bool {
		switch {
		case h.Type == events.TypeObservedWorkload && h.Available > 0 && h.Available == *h.Replica:
			delete(missing, h.Kind+" "+h.Object.Name)
		case h.Type == events.TypeObservedWorkloadRevision && h.Revised == 1:
			delete(missing, h.Kind+" "+h.Workload)
		}
		return len(missing) == 0
	})
	uids, digests := map[string]string{}, map[string]string{}
	for _, h := range read {
		switch h.Type {
		case events.TypeObservedWorkload:
			require.Equal(t, cellName.ObservedWorkload(f.agent, h.Kind, s.namespace, h.Object.Name), h.Subject)
			require.Equal(t, map[string]string{"lockstep.dev/commit": "abc", "app.kubernetes.io/part-of": "shop"},
				withoutRevision(h.Object.Annotations))
			require.Equal(t, "registry.example/"+h.Object.Name+":1", h.Template.Images[0].Image)
			require.NotNil(t, h.Template.ChangedAt)
			require.NotEmpty(t, h.Template.ChangedBy)
			require.NotEqual(t, "workspace", h.Object.Name, "workspaces are no workloads")
			uids[h.Object.Name] = h.Object.UID
			require.Contains(t, []string{"", h.Template.Digest}, digests[h.Object.Name], "the template does not change")
			digests[h.Object.Name] = h.Template.Digest
		case events.TypeObservedWorkloadRevision:
			kind := map[string]string{"web": "deployment", "db": "statefulset", "log": "daemonset"}[h.Workload]
			require.Equal(t, cellName.ObservedWorkload(f.agent, kind, s.namespace, h.Workload), h.Subject)
		}
		require.False(t, h.Object.FirstSeen)
	}
	for _, h := range read {
		if h.Type == events.TypeObservedWorkloadRevision {
			require.Equal(t, uids[h.Workload], h.WorkloadUID)
		}
	}

	s.patch(
		t,
		"web",
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-01-02T03:04:05Z"}}}}}`,
	)
	var restarted, second *recorded // in any order
	recorder.until(t, "the restart and its ReplicaSet", func(h recorded) bool {
		switch {
		case h.Template != nil && h.Template.RestartedAt != "":
			restarted = &h
		case h.Type == events.TypeObservedWorkloadRevision && h.Revised == 2:
			second = &h
		}
		return restarted != nil && second != nil
	})
	require.Equal(t, digests["web"], restarted.Template.Digest)
	if restarted.Template.ChangedAt.After(*restarted.Object.CreatedAt) { // both happened within one second
		require.Equal(t, "patcher", restarted.Template.ChangedBy)
	}
	require.Equal(t, "replicaset", second.Kind)
	s.patch(t, "web", `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}`)
	recorder.until(t, "another template", func(h recorded) bool {
		return h.Template != nil && h.Template.Digest != digests["web"] && h.Object.Name == "web"
	})

	require.NoError(t, s.client.AppsV1().Deployments(s.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	deleted := last(
		recorder.until(t, "the deletion", func(h recorded) bool {
			return h.Kind == "deployment" && h.Object.Verb == events.VerbDeleted
		}),
	)
	require.Equal(t, "web", deleted.Object.Name)
	require.False(t, deleted.Unselected)
}

func withoutRevision(annotations map[string]string) map[string]string {
	delete(annotations, "deployment.kubernetes.io/revision")
	return annotations
}

func TestSelectionChangesAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two, other := f.workloadNamespace(t, "-one"), f.workloadNamespace(t, "-two"), f.workloadNamespace(t, "-other")
	for _, s := range []*workloadNamespace{one, two, other} {
		s.deployment(t, "in", 0, map[string]string{"team": "shop"})
		s.deployment(t, "out", 0, map[string]string{"team": "pay"})
	}
	for _, s := range []*workloadNamespace{one, two, other} {
		s.settled(t, "in", "out")
	}
	p := start(t, f.trackingConfig(t, "team=shop", one, two))
	recorder := f.record(t)
	begin, members := recorder.resyncedOf(t, workloads)
	found := map[string]bool{}
	for _, h := range members {
		require.True(t, h.Object.FirstSeen)
		require.Contains(t, h.Object.Name, "in")
		if h.Type == events.TypeObservedWorkload {
			found[h.Object.Namespace] = true
		}
	}
	require.Equal(t, map[string]bool{one.namespace: true, two.namespace: true}, found)

	one.patch(t, "in", `{"metadata":{"labels":{"team":null}}}`)
	deleted := func(h recorded) bool { return h.Object.Verb == events.VerbDeleted }
	left := last(recorder.until(t, "the unselected workload", deleted))
	require.Equal(t, "in", left.Object.Name)
	require.True(t, left.Unselected)
	two.patch(t, "out", `{"metadata":{"labels":{"team":"shop"}}}`)
	missing := map[string]bool{events.TypeObservedWorkload: true, events.TypeObservedWorkloadRevision: true}
	read := recorder.until(t, "the newly selected workload and its ReplicaSet", func(h recorded) bool {
		if h.Object.Namespace == two.namespace {
			require.True(t, h.Object.FirstSeen, "%+v", h)
			delete(missing, h.Type)
		}
		return len(missing) == 0
	})
	for _, h := range read {
		require.NotEqual(t, one.namespace, h.Object.Namespace, "an unselected workload is not reported")
	}
	p.stop(t)

	start(t, f.trackingConfig(t, "", two))
	again, members := recorder.resyncedOf(t, workloads)
	require.NotEqual(t, begin.Selection, again.Selection)
	require.Len(t, of(members, events.TypeObservedWorkload, "out"), 1)
	for _, h := range members {
		require.Equal(t, two.namespace, h.Object.Namespace)
	}
}

func TestNoVersionOfAWorkloadIsLostInAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.workloadNamespace(t, "")
	p := start(t, f.trackingConfig(t, "", s))
	recorder := f.record(t)
	recorder.resyncedOf(t, workloads)
	f.server.Down()
	p.awaitReason(t, "nats", false, "not connected")
	s.deployment(t, "web", 0, nil)
	for i := range 5 {
		s.note(t, "web", fmt.Sprint(i))
	}
	require.NoError(t, f.server.Restart())
	read := recorder.until(t, "the last note", func(h recorded) bool {
		return h.Type == events.TypeObservedWorkload && h.Object.Annotations["lockstep.dev/note"] == "4"
	})
	notes, version := []string{}, 0
	for _, h := range of(read, events.TypeObservedWorkload, "web") {
		require.Zero(t, h.Skipped)
		require.Greater(t, atoi(t, h.Object.ResourceVersion), version-1, "in order")
		version = atoi(t, h.Object.ResourceVersion)
		if note := h.Object.Annotations["lockstep.dev/note"]; len(notes) == 0 || notes[len(notes)-1] != note {
			notes = append(notes, note)
		}
	}
	require.Equal(t, []string{"", "0", "1", "2", "3", "4"}, notes)
}

func TestBothScopesAnswerARequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, s := f.workspace(t), f.workloadNamespace(t, "")
	w.create(t, "ide", 0)
	s.deployment(t, "web", 0, nil)
	start(t, f.trackingConfig(t, "", s))
	recorder := f.record(t)
	f.configure(t, 1, 3600e9)
	f.request(t, "n")
	answered := map[string]recorded{}
	ends := 0
	read := recorder.until(t, "the answers of both", func(h recorded) bool {
		if begun(h) && h.Nonce == "n" {
			answered[h.Scope] = h
		}
		if ended(h) && h.ResyncID == answered[h.Scope].ResyncID {
			ends++
		}
		return ends == 2
	})
	require.Len(t, answered, 2)
	for _, h := range read {
		switch {
		case h.Object.ResyncID == "":
		case h.Object.Namespace == w.namespace:
			require.NotEqual(t, answered[workloads].ResyncID, h.Object.ResyncID)
			require.NotContains(t, h.Subject, ".workload.")
		default:
			require.Equal(t, s.namespace, h.Object.Namespace)
			require.NotEqual(t, answered[""].ResyncID, h.Object.ResyncID)
			require.Contains(t, h.Subject, ".workload.")
		}
	}
	require.Len(t, answered[""].ListVersions, 3)
	require.Empty(t, answered[""].Selection)
	f.awaitAcknowledged(t)
}

func TestRestoredClusterIsReportedInBothScopes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := kubetest.Start(t)
	server.Set(kubetest.StatefulSets, 100, statefulSet("old", 90))
	cfg := f.configWith(server.Kubeconfig(t))
	cfg.Workloads.Enabled = true
	start(t, cfg)
	recorder := f.record(t)
	_, members := recorder.resyncedOf(t, workloads)
	require.Len(t, members, 1)
	server.Set(kubetest.StatefulSets, 50, statefulSet("old", 40))
	server.Expire(1 << 30)
	begins, lower := map[string]bool{}, false
	recorder.until(t, "full resyncs of both scopes in a new session", func(h recorded) bool {
		if begun(h) {
			begins[h.Scope] = true
		}
		lower = lower || h.Object.ResourceVersion == "40"
		return lower && len(begins) == 2
	})
}

// A full resync lists newer versions than the watch has reported. It waits for the watch.
func TestResyncWaitsForEarlierVersions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := kubetest.Start(t)
	server.Set(kubetest.StatefulSets, 100, statefulSet("db", 90))
	cfg := f.configWith(server.Kubeconfig(t))
	cfg.Workloads.Enabled = true
	cfg.Clock = clocktesting.NewFakeClock(epoch()) // the wait has no end
	start(t, cfg)
	recorder := f.record(t)
	recorder.resyncedOf(t, workloads)
	hold := server.Hold(kubetest.DaemonSets) // the last kind that is listed
	server.Set(kubetest.StatefulSets, 120, statefulSet("db", 110))
	f.request(t, "n")
	receive(t, hold.Reached)
	hold.Release()
	awaitWatch(t, server, kubetest.StatefulSets)
	server.Send(kubetest.StatefulSets, "MODIFIED", statefulSet("db", 105))
	server.Send(kubetest.StatefulSets, "MODIFIED", statefulSet("db", 110))
	read := recorder.until(t, "the member", func(h recorded) bool {
		return h.Object.ResourceVersion == "110" && h.Object.ResyncID != ""
	})
	begins, versions := false, []string{}
	for _, h := range of(read, events.TypeObservedWorkload, "db") {
		versions = append(versions, h.Object.ResourceVersion)
	}
	require.Equal(t, []string{"105", "110"}, versions)
	for _, h := range read {
		begins = begins || begun(h) && h.Scope == workloads
		require.True(t, begins || h.Object.UID == "", "nothing is published between the list and the begin")
	}
}

func statefulSet(name string, version int) *appsv1.StatefulSet {
	d := deployment(name, "1", version)
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: d.ObjectMeta,
	}
}
