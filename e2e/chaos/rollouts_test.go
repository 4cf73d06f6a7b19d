package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

const (
	defaultWorkloads = 12
	defaultActions   = 100
	// workloadsVariable and actionsVariable name the environment variables that replace the defaults.
	workloadsVariable = "LOCKSTEP_ROLLOUT_WORKLOADS"
	actionsVariable   = "LOCKSTEP_ROLLOUT_ACTIONS"
	// workloadsPerNode is how many workloads a node has room for, beside the DaemonSets.
	workloadsPerNode = 20
	watcherKills     = 2
	// outageMargin extends an outage: observations right before it may be unsent, and the first
	// list after it takes a moment.
	outageMargin = 10 * time.Second
)

// TestRollouts changes workloads at random while watcher and deploys are killed and NATS is restarted. It
// compares the facts with what a watch of the API server reported. A thousand actions on 120 workloads take
// five minutes on two cores:
//
//	LOCKSTEP_ROLLOUT_WORKLOADS=120 LOCKSTEP_ROLLOUT_ACTIONS=1000 go test . -run TestRollouts -count=1 -timeout 30m
func TestRollouts(t *testing.T) {
	t.Parallel()
	runSeeds(t, runRollouts)
}

func runRollouts(t *testing.T, seed uint64) {
	t.Helper()
	workloads := numberFrom(t, workloadsVariable, defaultWorkloads)
	actions := numberFrom(t, actionsVariable, defaultActions)
	s := fixture.StartWith(t, stack.Options{
		Nodes:     2 + workloads/workloadsPerNode,
		Workloads: watcher.Workloads{Enabled: true},
		Programs:  fixture.BuildServices(t),
		Configure: fixture.LongLeases, // missing facts are allowed after each loss of a lease
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

// numberFrom returns the number in an environment variable.
func numberFrom(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	given := os.Getenv(variable)
	if given == "" {
		return otherwise
	}
	number, err := strconv.Atoi(given)
	require.NoError(t, err)
	return number
}

// rolloutChaos changes the workloads of one namespace at random.
type rolloutChaos struct {
	*fixture.System

	rng *rand.Rand
	all []*chaosWorkload
}

const chaosNamespace = "chaos"

func (u *rolloutChaos) createWorkloads(workloads int) {
	t := u.T
	t.Helper()
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chaosNamespace}}
	_, err := u.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
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
	switch choice := u.rng.IntN(24); {
	case choice < 9:
		return u.edit(ctx, w, fmt.Sprintf("registry.example/shop:%d", u.rng.IntN(6)))
	case choice < 11 && w.kind == "deployment":
		return u.edit(ctx, w, fixture.NeverReadyImage)
	case choice < 13:
		annotation := fmt.Sprintf(`{"kubectl.kubernetes.io/restartedAt":%q}`, time.Now().Format(time.RFC3339Nano))
		return u.patch(ctx, w, `{"spec":{"template":{"metadata":{"annotations":`+annotation+`}}}}`)
	case choice < 15 && w.kind != "daemonset":
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)))
	case choice < 17 && w.kind != "daemonset": // as an autoscaler does
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)), "scale")
	case choice < 18 && w.kind == "deployment":
		w.paused = !w.paused
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"paused":%t}}`, w.paused))
	case choice < 19:
		return u.edit(ctx, w, fixture.FirstImage)
	case choice < 21 && w.kind == "deployment" && w.canComplete():
		return u.deleteSet(ctx, w)
	case choice < 21 && w.kind == "statefulset":
		w.partition = u.rng.IntN(3)
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, w.partition))
	case choice < 22 && w.kind != "daemonset":
		// A DaemonSet's controller may wait five minutes for a pod that was deleted before it saw it.
		return u.deletePods(ctx, w)
	default:
		if err := u.delete(ctx, w); err != nil {
			return err
		}
		return u.create(ctx, w)
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
		published := fixture.HistoryRecords(u.Records(topology.FamilyDeploy))
		found = history.Rollouts(published, u.Recorder.ExpectedRollouts(), u.outages())
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
	workloads := u.Recorder.ExpectedRollouts()
	for _, w := range workloads {
		rollouts += len(w.Rollouts)
	}
	t.Logf("%d workloads, %d rollouts, %d outages of the leader", len(workloads), rollouts, len(u.outages()))
	require.GreaterOrEqual(t, len(u.outages()), watcherKills, "the leases show that the watcher died")
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
		record := map[string]any{"sequence": r.Sequence, "subject": r.Subject, "data": json.RawMessage(r.Data)}
		require.NoError(t, out.Encode(record))
	}
	require.NoError(t, out.Encode(map[string]any{"outages": u.outages()}))
	require.NoError(t, file.Close())
	t.Logf("the records are in %s", kept)
}

// outages returns the periods in which no watcher led, with their margins.
func (u *rolloutChaos) outages() []history.Outage {
	outages := history.Outages(u.Recorder.All(), fixture.LongLeaseDeadline)
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
