package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

const (
	defaultWorkloads = 12
	defaultActions   = 100
	// workloadsVariable and actionsVariable name the environment variables that replace the two
	// numbers.
	workloadsVariable = "LOCKSTEP_ROLLOUT_WORKLOADS"
	actionsVariable   = "LOCKSTEP_ROLLOUT_ACTIONS"
	// workloadsPerNode is how many workloads a node has room for, beside the DaemonSets.
	workloadsPerNode = 20
	watcherKills     = 2
	// outageMargin extends an outage: observations right before it may be unsent, and the first
	// list after it takes a moment.
	outageMargin = 10 * time.Second
)

// TestRollouts does random things to workloads while watcher and deploys are killed and NATS is
// restarted, and compares the facts with what a watch of the API server reported. A thousand actions
// over 120 workloads take some five minutes on two cores:
//
//	LOCKSTEP_ROLLOUT_WORKLOADS=120 LOCKSTEP_ROLLOUT_ACTIONS=1000 go test . -run TestRollouts -count=1 -timeout 30m
func TestRollouts(t *testing.T) {
	t.Parallel()
	runSeeds(t, runRollouts)
}

func runRollouts(t *testing.T, seed uint64) {
	t.Helper()
	workloads, actions := sizeOf(t, workloadsVariable, defaultWorkloads), sizeOf(t, actionsVariable, defaultActions)
	s := fixture.StartWith(t, stack.Options{
		Nodes:     2 + workloads/workloadsPerNode,
		Workloads: watcher.Workloads{Enabled: true},
		Programs:  fixture.BuildServices(t),
		Configure: longLeases,
	})
	u := &rolloutChaos{System: s, rng: rand.New(rand.NewPCG(seed, 1))}
	u.createWorkloads(workloads)

	faults := []disruption{u.killDeploys, u.killDeploys, u.restartNATS, u.restartNATS}
	for range watcherKills {
		faults = append(faults, u.killWatcher)
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	due := make([]int, len(faults))
	for i := range due {
		due[i] = rng.IntN(actions)
	}
	slices.Sort(due)
	sched := newSchedule(maxLead, due)
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error { return inject(ctx, rng, faults, sched) })
	group.Go(func() error { return u.run(ctx, actions, sched) })
	require.NoError(t, group.Wait())
	u.completeAll()
	u.requireFactsMatchAPIServer()
	fixture.RequireConsistentFacts(s)
}

// leaseDeadline is how long a watcher tries to renew its Lease.
const leaseDeadline = 6 * time.Second

// longLeases sets leases that a killed watcher loses and one on a busy machine keeps: each loss
// excuses missing facts.
func longLeases(_ string, config any) {
	if cfg, is := config.(*watcher.Config); is {
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = 8*time.Second, leaseDeadline, time.Second
	}
}

func sizeOf(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return otherwise
	}
	size, err := strconv.Atoi(given)
	require.NoError(t, err)
	return size
}

// rolloutChaos changes the workloads of one namespace at random.
type rolloutChaos struct {
	*fixture.System

	rng *rand.Rand
	all []*chaosWorkload
}

// chaosWorkload is one workload and its last settings.
type chaosWorkload struct {
	name, kind string
	image      string
	paused     bool
	partition  int // of a StatefulSet
}

// canComplete reports whether the workload's rollout can complete.
func (w *chaosWorkload) canComplete() bool {
	return !w.paused && w.partition == 0 && w.image != fixture.NeverReadyImage
}

const chaosNamespace = "chaos"

func (u *rolloutChaos) createWorkloads(workloads int) {
	t := u.T
	t.Helper()
	ctx := t.Context()
	_, err := u.Kube.CoreV1().Namespaces().Create(
		ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chaosNamespace}},
		metav1.CreateOptions{},
	)
	require.NoError(t, err)
	u.Recorder = fixture.RecordWorkloads(t, u.Kube, chaosNamespace)
	// The API server records who leads: on a busy machine a watcher may lose its Lease without
	// being killed.
	u.Recorder.Record(t, u.Kube.CoordinationV1().Leases(fixture.AgentNamespace(u.AgentID)).Watch, stack.Watcher)
	for i := range workloads {
		w := &chaosWorkload{name: fmt.Sprintf("web-%d", i), kind: "deployment", image: fixture.FirstImage}
		switch i % 4 {
		case 2:
			w.kind = "statefulset"
		case 3:
			w.kind = "daemonset"
		}
		u.all = append(u.all, w)
		require.NoError(t, u.create(ctx, w))
	}
}

func (u *rolloutChaos) create(ctx context.Context, w *chaosWorkload) error {
	meta := metav1.ObjectMeta{Name: w.name}
	labels := map[string]string{"app": w.name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: w.image}}},
	}
	err := u.retry(ctx, "create "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.Kube.AppsV1().Deployments(chaosNamespace).Create(ctx, &appsv1.Deployment{
				ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		case "statefulset":
			_, err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		default:
			_, err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			return nil // an attempt without an answer
		}
		return err
	})
	w.paused, w.partition = false, 0
	return err
}

func (u *rolloutChaos) patch(ctx context.Context, w *chaosWorkload, patch string, subresources ...string) error {
	kind := types.StrategicMergePatchType
	if len(subresources) > 0 {
		kind = types.MergePatchType
	}
	return u.retry(ctx, "change "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.Kube.AppsV1().Deployments(chaosNamespace).Patch(
				ctx,
				w.name,
				kind,
				[]byte(patch),
				metav1.PatchOptions{},
				subresources...)
		case "statefulset":
			_, err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Patch(
				ctx,
				w.name,
				kind,
				[]byte(patch),
				metav1.PatchOptions{},
				subresources...)
		default:
			_, err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Patch(ctx, w.name, kind, []byte(patch), metav1.PatchOptions{})
		}
		return err
	})
}

func (u *rolloutChaos) delete(ctx context.Context, w *chaosWorkload) error {
	return u.retry(ctx, "delete "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			err = u.Kube.AppsV1().Deployments(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		case "statefulset":
			err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		default:
			err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// run changes workloads one after another. After a third of the changes it waits until the workload
// is complete.
func (u *rolloutChaos) run(ctx context.Context, actions int, sched *schedule) error {
	for range actions {
		if err := sched.awaitTurn(ctx); err != nil {
			return err
		}
		w := u.all[u.rng.IntN(len(u.all))]
		if err := u.act(ctx, w); err != nil {
			return err
		}
		sched.changed(1)
		if u.rng.IntN(3) == 0 && w.canComplete() {
			if err := u.awaitComplete(ctx, w); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *rolloutChaos) act(ctx context.Context, w *chaosWorkload) error {
	switch what := u.rng.IntN(24); {
	case what < 9:
		return u.edit(ctx, w, fmt.Sprintf("registry.example/shop:%d", u.rng.IntN(6)))
	case what < 11 && w.kind == "deployment":
		return u.edit(ctx, w, fixture.NeverReadyImage)
	case what < 13:
		return u.patch(
			ctx,
			w,
			fmt.Sprintf(
				`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
				time.Now().Format(time.RFC3339Nano),
			),
		)
	case what < 15 && w.kind != "daemonset":
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)))
	case what < 17 && w.kind != "daemonset": // as an autoscaler does
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)), "scale")
	case what < 18 && w.kind == "deployment":
		w.paused = !w.paused
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"paused":%t}}`, w.paused))
	case what < 19:
		return u.edit(ctx, w, fixture.FirstImage)
	case what < 21 && w.kind == "deployment" && w.canComplete():
		return u.deleteSet(ctx, w)
	case what < 21 && w.kind == "statefulset":
		w.partition = u.rng.IntN(3)
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, w.partition))
	case what < 22 && w.kind != "daemonset":
		// A DaemonSet's controller may wait five minutes for a pod that was deleted before it saw it.
		return u.deletePods(ctx, w)
	default:
		if err := u.delete(ctx, w); err != nil {
			return err
		}
		return u.create(ctx, w)
	}
}

// deleteSet deletes the newest ReplicaSet of a complete Deployment and waits for its replacement.
func (u *rolloutChaos) deleteSet(ctx context.Context, w *chaosWorkload) error {
	if err := u.awaitComplete(ctx, w); err != nil {
		return err
	}
	sets := u.Kube.AppsV1().ReplicaSets(chaosNamespace)
	var list *appsv1.ReplicaSetList
	err := u.retry(ctx, "list the ReplicaSets of "+w.name, func(ctx context.Context) (err error) {
		list, err = sets.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name})
		return err
	})
	if err != nil {
		return err
	}
	for _, set := range list.Items {
		if *set.Spec.Replicas == 0 {
			continue
		}
		err := u.retry(ctx, "delete ReplicaSet "+set.Name, func(ctx context.Context) error {
			err := sets.Delete(ctx, set.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &set.UID}})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return nil // it is gone already, by an attempt without an answer
			}
			return err
		})
		if err != nil {
			return err
		}
		err = u.await(ctx, "wait for another ReplicaSet "+set.Name, func(ctx context.Context) (bool, error) {
			now, err := sets.Get(ctx, set.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil && now.UID != set.UID && now.Status.AvailableReplicas == *now.Spec.Replicas, err
		})
		if err != nil {
			return err
		}
	}
	return u.awaitComplete(ctx, w)
}

// deletePods deletes all pods of a workload, which is no rollout.
func (u *rolloutChaos) deletePods(ctx context.Context, w *chaosWorkload) error {
	return u.retry(ctx, "delete the pods of "+w.name, func(ctx context.Context) error {
		return u.Kube.CoreV1().Pods(chaosNamespace).DeleteCollection(
			ctx,
			metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "app=" + w.name},
		)
	})
}

func (u *rolloutChaos) edit(ctx context.Context, w *chaosWorkload, image string) error {
	w.image = image
	return u.patch(
		ctx,
		w,
		fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image),
	)
}

// awaitComplete waits until the newest version of a workload is complete.
func (u *rolloutChaos) awaitComplete(ctx context.Context, w *chaosWorkload) error {
	err := u.await(
		ctx,
		fmt.Sprintf("wait for %s %s with %s", w.kind, w.name, w.image),
		func(ctx context.Context) (bool, error) { return u.isComplete(ctx, w) },
	)
	if err != nil {
		err = fmt.Errorf("%w; its pods: %s", err, u.pods(w))
	}
	return err
}

// pods describes the pods of a workload for a failure message.
func (u *rolloutChaos) pods(w *chaosWorkload) string {
	list, err := u.Kube.CoreV1().Pods(chaosNamespace).List(
		context.WithoutCancel(u.T.Context()),
		metav1.ListOptions{LabelSelector: "app=" + w.name},
	)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for i := range list.Items {
		p := &list.Items[i]
		lines = append(
			lines,
			fmt.Sprintf(
				"%s on %q is %s, deleted at %s, conditions %v",
				p.Name,
				p.Spec.NodeName,
				p.Status.Phase,
				p.DeletionTimestamp,
				p.Status.Conditions,
			),
		)
	}
	return strings.Join(lines, "; ")
}

// retry repeats an operation until the API server answers: a busy one may not, and then it is
// unknown whether the operation happened.
func (u *rolloutChaos) retry(ctx context.Context, what string, do func(ctx context.Context) error) error {
	return u.await(ctx, what, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// isRetryable reports whether an error leaves the outcome open.
func isRetryable(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError ||
		apierrors.IsTooManyRequests(err)
}

func (u *rolloutChaos) await(ctx context.Context, what string, is func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	ticker := time.NewTicker(fixture.PollInterval)
	defer ticker.Stop()
	for {
		there, err := is(ctx)
		switch {
		case err != nil && !isRetryable(err):
			return fmt.Errorf("%s: %w", what, err)
		case err == nil && there:
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

func (u *rolloutChaos) isComplete(ctx context.Context, w *chaosWorkload) (bool, error) {
	switch w.kind {
	case "deployment":
		o, err := u.Kube.AppsV1().Deployments(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			fixture.AllEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	case "statefulset":
		o, err := u.Kube.AppsV1().StatefulSets(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			o.Status.CurrentRevision == o.Status.UpdateRevision &&
			fixture.AllEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	default:
		o, err := u.Kube.AppsV1().DaemonSets(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && o.Status.DesiredNumberScheduled > 0 &&
			fixture.AllEqual(o.Status.DesiredNumberScheduled, o.Status.UpdatedNumberScheduled, o.Status.NumberAvailable), err
	}
}

// completeAll lets every workload complete.
func (u *rolloutChaos) completeAll() {
	t := u.T
	t.Helper()
	for _, w := range u.all {
		if w.paused {
			require.NoError(t, u.patch(t.Context(), w, `{"spec":{"paused":false}}`))
		}
		if w.partition > 0 {
			require.NoError(t, u.patch(t.Context(), w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`))
		}
		if w.image == fixture.NeverReadyImage {
			require.NoError(t, u.edit(t.Context(), w, fixture.ThirdImage))
		}
	}
	for _, w := range u.all {
		require.NoError(t, u.awaitComplete(t.Context(), w))
	}
}

// requireFactsMatchAPIServer waits until all facts are published and compares them with the API
// server's record.
func (u *rolloutChaos) requireFactsMatchAPIServer() {
	t := u.T
	t.Helper()
	var found history.Findings
	deadline, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	ticker := time.NewTicker(10 * fixture.PollInterval)
	defer ticker.Stop()
	for {
		found = history.Rollouts(fixture.HistoryRecords(u.Records(topology.FamilyDeploy)), u.Recorder.Truth(), u.outages())
		if len(found) == 0 {
			break
		}
		select {
		case <-ticker.C:
			continue
		case <-deadline.Done():
		}
		break
	}
	if len(found) > 0 {
		u.saveRecords()
	}
	require.Empty(t, found)
	rollouts := 0
	for _, w := range u.Recorder.Truth() {
		rollouts += len(w.Rollouts)
	}
	t.Logf(
		"%d lives of workloads, %d rollouts, %d times without a leader",
		len(u.Recorder.Truth()),
		rollouts,
		len(u.outages()),
	)
	require.GreaterOrEqual(t, len(u.outages()), watcherKills, "the API server saw the watcher die")
	require.GreaterOrEqual(t, rollouts, len(u.all), "the API server reported workloads")
}

// saveRecords writes what the API server and the services reported, for the analysis of a failure.
func (u *rolloutChaos) saveRecords() {
	t := u.T
	t.Helper()
	kept := filepath.Join(os.TempDir(), "lockstep-e2e-"+strings.ReplaceAll(t.Name(), "/", "_")+".json")
	file, err := os.OpenFile(kept, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	out := json.NewEncoder(file)
	require.NoError(t, u.Recorder.WriteTo(out))
	for _, r := range append(u.Records(topology.FamilyObserved), u.Records(topology.FamilyDeploy)...) {
		require.NoError(
			t,
			out.Encode(map[string]any{"sequence": r.Sequence, "subject": r.Subject, "data": json.RawMessage(r.Data)}),
		)
	}
	require.NoError(t, out.Encode(map[string]any{"outages": u.outages()}))
	require.NoError(t, file.Close())
	t.Logf("the records are in %s", kept)
}

// outages returns the periods in which no watcher led, with their margins.
func (u *rolloutChaos) outages() []history.Outage {
	outages := history.Outages(u.Recorder.All(), leaseDeadline)
	for i := range outages {
		outages[i].From, outages[i].Until = outages[i].From.Add(-outageMargin), outages[i].Until.Add(outageMargin)
	}
	return outages
}

func (u *rolloutChaos) killWatcher(ctx context.Context) error {
	return killOne(u.System, ctx, u.WatcherName())
}

func (u *rolloutChaos) killDeploys(ctx context.Context) error {
	return killOne(u.System, ctx, stack.Deploys)
}

func (u *rolloutChaos) restartNATS(context.Context) error { return u.NATS().Restart() }
