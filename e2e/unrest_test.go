package e2e_test

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

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

const (
	restlessWorkloads = 12
	restlessActions   = 100
	// restlessVariable and actionsVariable replace the two numbers.
	restlessVariable = "LOCKSTEP_ROLLOUT_WORKLOADS"
	actionsVariable  = "LOCKSTEP_ROLLOUT_ACTIONS"
	// workloadsPerNode is for how many there is room beside the DaemonSets, which are on every node.
	workloadsPerNode = 20
	watcherKills     = 2
	// blur of an outage: what was seen right before it may not have been sent, and the first look after it takes a moment.
	blur = 10 * time.Second
)

// TestUnrest does random things to workloads while watcher and deploys are killed and NATS is restarted, and compares what was told with what a watch of the API
// server saw. A thousand actions over 120 workloads take some five minutes on two cores:
//
//	LOCKSTEP_ROLLOUT_WORKLOADS=120 LOCKSTEP_ROLLOUT_ACTIONS=1000 go test . -run TestUnrest -count=1 -timeout 30m
func TestUnrest(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	workloads, actions := sizeOf(t, restlessVariable, restlessWorkloads), sizeOf(t, actionsVariable, restlessActions)
	s := startWith(t, stack.Options{
		Nodes: 2 + workloads/workloadsPerNode, Workloads: watcher.Workloads{Enabled: true}, Programs: buildServices(t), Configure: steadyLeases,
	})
	u := &unrest{system: s, dice: rand.New(rand.NewPCG(seed, 1))}
	u.open(workloads)

	fates := []fate{u.deploysDies, u.deploysDies, u.natsRestarts, u.natsRestarts}
	for range watcherKills {
		fates = append(fates, u.watcherDies)
	}
	dice := rand.New(rand.NewPCG(seed, 2))
	dice.Shuffle(len(fates), func(i, j int) { fates[i], fates[j] = fates[j], fates[i] })
	due := make([]int, len(fates))
	for i := range due {
		due[i] = dice.IntN(actions)
	}
	slices.Sort(due)
	pace := newPace(leadOfUsers, due)
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error { return befall(ctx, dice, fates, pace) })
	group.Go(func() error { return u.live(ctx, actions, pace) })
	require.NoError(t, group.Wait())
	u.settle()
	u.requireTruth()
	requireSoundFacts(s)
}

// steadyDeadline is how long a watcher with a steady Lease tries to renew it before it gives up.
const steadyDeadline = 6 * time.Second

// steadyLeases are lost by a watcher that is killed, and not by one on a busy machine: each loss excuses what is not known of that time.
func steadyLeases(_ string, config any) {
	if cfg, is := config.(*watcher.Config); is {
		cfg.Lease.Duration, cfg.Lease.RenewDeadline, cfg.Lease.RetryPeriod = 8*time.Second, steadyDeadline, time.Second
	}
}

func sizeOf(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return otherwise
	}
	size, err := strconv.Atoi(given)
	require.NoError(t, err)
	return size
}

// unrest is what happens to the workloads of one namespace.
type unrest struct {
	*system

	dice *rand.Rand
	all  []*restless
}

// restless is one workload.
type restless struct {
	name, kind string
	image      string
	paused     bool
	partition  int // of a StatefulSet
}

// restful says that nothing keeps it from becoming complete.
func (w *restless) restful() bool { return !w.paused && w.partition == 0 && w.image != neverImage }

const restlessNamespace = "restless"

func (u *unrest) open(workloads int) {
	t := u.t
	t.Helper()
	ctx := t.Context()
	_, err := u.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: restlessNamespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	u.lookout = lookOut(t, u.kube, restlessNamespace)
	// Who leads is nobody's to say but the API server's: on a busy machine a watcher loses its Lease without being killed.
	u.lookout.hear(t, u.kube.CoordinationV1().Leases(home(u.agent)).Watch, stack.Watcher)
	for i := range workloads {
		w := &restless{name: fmt.Sprintf("web-%d", i), kind: "deployment", image: firstImage}
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

func (u *unrest) create(ctx context.Context, w *restless) error {
	meta := metav1.ObjectMeta{Name: w.name}
	labels := map[string]string{"app": w.name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	pods := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: w.image}}}}
	err := u.insist(ctx, "create "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.kube.AppsV1().Deployments(restlessNamespace).Create(ctx, &appsv1.Deployment{
				ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		case "statefulset":
			_, err = u.kube.AppsV1().StatefulSets(restlessNamespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		default:
			_, err = u.kube.AppsV1().DaemonSets(restlessNamespace).Create(ctx, &appsv1.DaemonSet{
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

func (u *unrest) patch(ctx context.Context, w *restless, patch string, subresources ...string) error {
	kind := types.StrategicMergePatchType
	if len(subresources) > 0 {
		kind = types.MergePatchType
	}
	return u.insist(ctx, "change "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.kube.AppsV1().Deployments(restlessNamespace).Patch(ctx, w.name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
		case "statefulset":
			_, err = u.kube.AppsV1().StatefulSets(restlessNamespace).Patch(ctx, w.name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
		default:
			_, err = u.kube.AppsV1().DaemonSets(restlessNamespace).Patch(ctx, w.name, kind, []byte(patch), metav1.PatchOptions{})
		}
		return err
	})
}

func (u *unrest) delete(ctx context.Context, w *restless) error {
	return u.insist(ctx, "delete "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			err = u.kube.AppsV1().Deployments(restlessNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		case "statefulset":
			err = u.kube.AppsV1().StatefulSets(restlessNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		default:
			err = u.kube.AppsV1().DaemonSets(restlessNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// live does things to workloads, one after the other; after a third of them it lets the workload come to rest.
func (u *unrest) live(ctx context.Context, actions int, pace *pace) error {
	for range actions {
		if err := pace.begin(ctx); err != nil {
			return err
		}
		w := u.all[u.dice.IntN(len(u.all))]
		if err := u.act(ctx, w); err != nil {
			return err
		}
		pace.done(1)
		if u.dice.IntN(3) == 0 && w.restful() {
			if err := u.rest(ctx, w); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *unrest) act(ctx context.Context, w *restless) error {
	switch what := u.dice.IntN(24); {
	case what < 9:
		return u.edit(ctx, w, fmt.Sprintf("registry.example/shop:%d", u.dice.IntN(6)))
	case what < 11 && w.kind == "deployment":
		return u.edit(ctx, w, neverImage)
	case what < 13:
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano)))
	case what < 15 && w.kind != "daemonset":
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.dice.IntN(4)))
	case what < 17 && w.kind != "daemonset": // as an autoscaler does
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.dice.IntN(4)), "scale")
	case what < 18 && w.kind == "deployment":
		w.paused = !w.paused
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"paused":%t}}`, w.paused))
	case what < 19:
		return u.edit(ctx, w, firstImage)
	case what < 21 && w.kind == "deployment" && w.restful():
		return u.deleteSet(ctx, w)
	case what < 21 && w.kind == "statefulset":
		w.partition = u.dice.IntN(3)
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, w.partition))
	case what < 22 && w.kind != "daemonset": // whose controller may wait five minutes for a pod that it made and that was deleted before it saw it
		return u.deletePods(ctx, w)
	default:
		if err := u.delete(ctx, w); err != nil {
			return err
		}
		return u.create(ctx, w)
	}
}

// deleteSet deletes the newest ReplicaSet of a Deployment at rest by hand, and waits until there is another.
func (u *unrest) deleteSet(ctx context.Context, w *restless) error {
	if err := u.rest(ctx, w); err != nil {
		return err
	}
	sets := u.kube.AppsV1().ReplicaSets(restlessNamespace)
	var list *appsv1.ReplicaSetList
	err := u.insist(ctx, "list the ReplicaSets of "+w.name, func(ctx context.Context) (err error) {
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
		err := u.insist(ctx, "delete ReplicaSet "+set.Name, func(ctx context.Context) error {
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
	return u.rest(ctx, w)
}

// deletePods has all pods of a workload replaced, which is no deploy.
func (u *unrest) deletePods(ctx context.Context, w *restless) error {
	return u.insist(ctx, "delete the pods of "+w.name, func(ctx context.Context) error {
		return u.kube.CoreV1().Pods(restlessNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=" + w.name})
	})
}

func (u *unrest) edit(ctx context.Context, w *restless, image string) error {
	w.image = image
	return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image))
}

// rest waits until the newest version of a workload that the API server told is complete.
func (u *unrest) rest(ctx context.Context, w *restless) error {
	err := u.await(ctx, fmt.Sprintf("wait for %s %s with %s", w.kind, w.name, w.image), func(ctx context.Context) (bool, error) { return u.resting(ctx, w) })
	if err != nil {
		err = fmt.Errorf("%w; its pods: %s", err, u.pods(w))
	}
	return err
}

// pods of a workload, for those who look for what went wrong.
func (u *unrest) pods(w *restless) string {
	list, err := u.kube.CoreV1().Pods(restlessNamespace).List(context.WithoutCancel(u.t.Context()), metav1.ListOptions{LabelSelector: "app=" + w.name})
	if err != nil {
		return err.Error()
	}
	var said []string
	for i := range list.Items {
		p := &list.Items[i]
		said = append(said, fmt.Sprintf("%s on %q is %s, deleted at %s, conditions %v", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp, p.Status.Conditions))
	}
	return strings.Join(said, "; ")
}

// insist does something until the API server has an answer: one that is busy may have none, and did it or did it not.
func (u *unrest) insist(ctx context.Context, what string, do func(ctx context.Context) error) error {
	return u.await(ctx, what, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// unanswered says of an error that the API server made none, or could not.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError || apierrors.IsTooManyRequests(err)
}

func (u *unrest) await(ctx context.Context, what string, is func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(clusterTick)
	defer ticker.Stop()
	for {
		there, err := is(ctx)
		switch {
		case err != nil && !unanswered(err):
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

func (u *unrest) resting(ctx context.Context, w *restless) (bool, error) {
	switch w.kind {
	case "deployment":
		o, err := u.kube.AppsV1().Deployments(restlessNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && allAre(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	case "statefulset":
		o, err := u.kube.AppsV1().StatefulSets(restlessNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && o.Status.CurrentRevision == o.Status.UpdateRevision &&
			allAre(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	default:
		o, err := u.kube.AppsV1().DaemonSets(restlessNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && o.Status.DesiredNumberScheduled > 0 &&
			allAre(o.Status.DesiredNumberScheduled, o.Status.UpdatedNumberScheduled, o.Status.NumberAvailable), err
	}
}

func allAre(want int32, counts ...int32) bool {
	return !slices.ContainsFunc(counts, func(n int32) bool { return n != want })
}

// settle lets everything come to rest.
func (u *unrest) settle() {
	t := u.t
	t.Helper()
	for _, w := range u.all {
		if w.paused {
			require.NoError(t, u.patch(t.Context(), w, `{"spec":{"paused":false}}`))
		}
		if w.partition > 0 {
			require.NoError(t, u.patch(t.Context(), w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`))
		}
		if w.image == neverImage {
			require.NoError(t, u.edit(t.Context(), w, thirdImage))
		}
	}
	for _, w := range u.all {
		require.NoError(t, u.rest(t.Context(), w))
	}
}

// requireTruth waits until everything is told, and says what is wrong when it is not.
func (u *unrest) requireTruth() {
	t := u.t
	t.Helper()
	var found history.Findings
	deadline, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * clusterTick)
	defer ticker.Stop()
	for {
		found = history.Rollouts(told(u.records(topology.FamilyDeploy)), u.lookout.truth(), u.outages())
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
		u.keep()
	}
	require.Empty(t, found)
	rollouts := 0
	for _, w := range u.lookout.truth() {
		rollouts += len(w.Rollouts)
	}
	t.Logf("%d lives of workloads, %d rollouts, %d times without a leader", len(u.lookout.truth()), rollouts, len(u.outages()))
	require.GreaterOrEqual(t, len(u.outages()), watcherKills, "the API server saw the watcher die")
	require.GreaterOrEqual(t, rollouts, len(u.all), "the API server was heard")
}

// keep what the API server and the services said, for those who look for what went wrong.
func (u *unrest) keep() {
	t := u.t
	t.Helper()
	kept := filepath.Join(os.TempDir(), "lockstep-e2e-"+t.Name()+".json")
	file, err := os.OpenFile(kept, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	out := json.NewEncoder(file)
	require.NoError(t, u.lookout.keep(out))
	for _, r := range append(u.records(topology.FamilyObserved), u.records(topology.FamilyDeploy)...) {
		require.NoError(t, out.Encode(map[string]any{"sequence": r.sequence, "subject": r.subject, "data": json.RawMessage(r.data)}))
	}
	require.NoError(t, out.Encode(map[string]any{"outages": u.outages()}))
	require.NoError(t, file.Close())
	t.Logf("what was said is kept in %s", kept)
}

// outages are when no watcher led, and right around.
func (u *unrest) outages() []history.Outage {
	outages := history.Outages(u.lookout.all(), steadyDeadline)
	for i := range outages {
		outages[i].From, outages[i].Until = outages[i].From.Add(-blur), outages[i].Until.Add(blur)
	}
	return outages
}

func (u *unrest) watcherDies(ctx context.Context) error { return u.killOne(ctx, u.watcher()) }

func (u *unrest) deploysDies(ctx context.Context) error { return u.killOne(ctx, stack.Deploys) }

func (u *unrest) natsRestarts(context.Context) error { return u.NATS().Restart() }
