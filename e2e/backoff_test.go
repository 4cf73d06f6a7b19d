package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// thousandInTroubleDelayNobody has a cluster refuse a thousand workspaces again and again, and healthy ones come and go meanwhile.
func thousandInTroubleDelayNobody(s *system) {
	t := s.t
	s.refuseNamespaces(fmt.Sprintf("ws-%d-troubled-", s.agent))
	begun := time.Now()
	troubled := s.newCrowd("troubled", troubledSize, s.agent)
	t.Logf("%d workspaces asked for in %s", len(troubled), time.Since(begun).Round(time.Millisecond))
	troubled.until("Error", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR && now.GetReason() == "AdmissionRefused" &&
			strings.Contains(now.GetMessage(), "no room for the troubled")
	})
	t.Logf("all were refused once %s after the first was asked for", time.Since(begun).Round(time.Millisecond))

	for i := range 3 {
		asked := time.Now()
		healthy := s.newCrowd("healthy-"+strconv.Itoa(i), 1, s.agent)[0]
		healthy.untilRunning()
		running := time.Since(asked)
		told, turn := healthy.turn()
		between := 0
		for _, attempts := range s.failures(s.agent) {
			for _, failed := range attempts {
				if failed.ObservedAt.After(told) && failed.ObservedAt.Before(turn) {
					between++
				}
			}
		}
		t.Logf("a healthy workspace was Running after %s; it waited %s for its turn, in which %d attempts at others ended",
			running.Round(time.Millisecond), turn.Sub(told), between)
		require.Less(t, between, troubledSize/4, "it does not wait for the others' next attempts")
	}
	require.Eventually(t, func() bool {
		consumer, err := s.js.Consumer(t.Context(), topology.StreamDesired, topology.DispatcherConsumer(s.agent))
		return err == nil && consumer.CachedInfo().NumAckPending == 0 && consumer.CachedInfo().NumPending == 0
	}, patience, clusterTick, "what is tried again occupies no place in the consumer")

	attempts := 0
	failures := s.failures(s.agent)
	for _, w := range troubled {
		requireBackOff(t, failures[w.id])
		attempts += len(failures[w.id])
	}
	t.Logf("%.1f attempts at each in %s", float64(attempts)/troubledSize, time.Since(begun).Round(time.Millisecond))
}

// turn is when the dispatcher was told of the workspace's revision, and when it began to work on the attempt that brought it about.
func (w *workspace) turn() (time.Time, time.Time) {
	w.t.Helper()
	desired, err := w.s.js.Stream(w.t.Context(), topology.StreamDesired)
	require.NoError(w.t, err)
	told, err := desired.GetLastMsgForSubject(w.t.Context(), stack.Cell.Desired(w.agent, w.id))
	require.NoError(w.t, err)
	results, err := w.s.js.Stream(w.t.Context(), topology.StreamApplied)
	require.NoError(w.t, err)
	raw, err := results.GetLastMsgForSubject(w.t.Context(), stack.Cell.Applied(w.agent, w.id))
	require.NoError(w.t, err)
	e, err := event.Decode(raw.Header, raw.Data)
	require.NoError(w.t, err)
	require.Equal(w.t, events.TypeApplied, e.Type())
	applied := decode[events.Applied](w.t, e)
	return told.Time, applied.ObservedAt.Add(-time.Duration(applied.DurationMs) * time.Millisecond)
}

// attempt that failed, as it was told of.
type attempt struct {
	events.ApplyFailed

	// run of the dispatcher: each begins to count anew.
	run string
}

// failures are what an agent's dispatcher told of failures, by workspace, in order.
func (s *system) failures(agent int64) map[string][]attempt {
	s.t.Helper()
	found := map[string][]attempt{}
	for _, r := range s.records(topology.FamilyApplied + "." + strconv.FormatInt(agent, 10)) {
		e, err := event.Decode(r.header, r.data)
		require.NoError(s.t, err)
		if e.Type() == events.TypeApplyFailed {
			failed := attemptOf(s.t, e)
			found[failed.WorkspaceID] = append(found[failed.WorkspaceID], failed)
		}
	}
	return found
}

func attemptOf(t *testing.T, e event.Event) attempt {
	t.Helper()
	return attempt{decode[events.ApplyFailed](t, e), e.ID()[strings.LastIndex(e.ID(), "/")+1:]}
}

// untilAttempt follows what the dispatcher tells of the workspace until so many attempts at a revision have failed, and returns all of them.
func (w *workspace) untilAttempt(number int, revision int64) []attempt {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	stream, err := w.s.js.Stream(ctx, topology.StreamApplied)
	require.NoError(w.t, err)
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{stack.Cell.Applied(w.agent, w.id)}})
	require.NoError(w.t, err)
	messages, err := consumer.Messages()
	require.NoError(w.t, err)
	defer messages.Stop()
	var failures []attempt
	for len(failures) == 0 || failures[len(failures)-1].Attempt < number {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if errors.Is(err, jetstream.ErrNoHeartbeat) {
			continue
		}
		require.NoError(w.t, err, "attempt %d at workspace %s", number, w.name)
		e, err := event.Decode(msg.Headers(), msg.Data())
		require.NoError(w.t, err)
		if e.Type() != events.TypeApplyFailed {
			continue
		}
		if failed := attemptOf(w.t, e); int64(failed.DesiredRevision) == revision {
			failures = append(failures, failed)
		}
	}
	return failures
}

// What the dispatcher's pauses are by default.
const (
	retryMin = time.Second
	retryMax = 5 * time.Minute
)

// requireBackOff checks the failures of one revision in a row: each attempt is told of, the pauses after them double, jittered, and are kept.
func requireBackOff(t *testing.T, failures []attempt) {
	t.Helper()
	require.NotEmpty(t, failures)
	var pause time.Duration
	for i, failed := range failures {
		if i == 0 || failed.run != failures[i-1].run {
			require.Equal(t, 1, failed.Attempt)
			pause = retryMin
		} else {
			before := failures[i-1]
			require.Equal(t, before.Attempt+1, failed.Attempt)
			// A moment is told in milliseconds.
			require.GreaterOrEqual(t, failed.ObservedAt.Sub(before.ObservedAt)+time.Millisecond, time.Duration(before.RetryAfterMs)*time.Millisecond, "attempt %d came too early", failed.Attempt)
			pause = min(2*pause, retryMax)
		}
		told := time.Duration(failed.RetryAfterMs) * time.Millisecond
		require.LessOrEqual(t, told, pause)
		require.GreaterOrEqual(t, told, (pause / 2).Truncate(time.Millisecond))
	}
}

// refuseNamespaces has the cluster refuse every namespace whose name begins so, for a reason of its own.
func (s *system) refuseNamespaces(prefix string) {
	s.t.Helper()
	t, admission := s.t, s.kube.AdmissionregistrationV1()
	name := metav1.ObjectMeta{Name: "no-troubled"}
	_, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: name,
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"namespaces"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: "!object.metadata.name.startsWith(" + strconv.Quote(prefix) + ")", Message: "there is no room for the troubled",
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitCluster(t, "the policy is in force", func(ctx context.Context) (bool, error) {
		_, err := s.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "probe"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "no room"), nil
	})
}
