package scale_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// failingSize is how many workspaces the cluster refuses.
const failingSize = 1000

// TestBackoffDelaysNobody makes the cluster reject a thousand workspaces repeatedly. Healthy ones
// start meanwhile.
func TestBackoffDelaysNobody(t *testing.T) {
	s := shared.Exclusive(t)
	refuseNamespaces(s, fmt.Sprintf("ws-%d-failing-", s.AgentID))
	begun := time.Now()
	failing := newWorkspaceGroup(s, "failing", failingSize, s.AgentID)
	t.Logf("%d workspaces requested in %s", len(failing), time.Since(begun).Round(time.Millisecond))
	failing.await("Error", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR && now.GetReason() == "AdmissionRefused" &&
			strings.Contains(now.GetMessage(), "the policy rejects this namespace")
	})
	t.Logf("each was rejected at least once %s after the first request", time.Since(begun).Round(time.Millisecond))

	for i := range 3 {
		requested := time.Now()
		healthy := newWorkspaceGroup(s, "healthy-"+strconv.Itoa(i), 1, s.AgentID)[0]
		healthy.AwaitRunning()
		running := time.Since(requested)
		seen, turn := healthy.BackoffTurn()
		between := 0
		for _, attempts := range s.Failures(s.AgentID) {
			for _, failed := range attempts {
				if failed.ObservedAt.After(seen) && failed.ObservedAt.Before(turn) {
					between++
				}
			}
		}
		t.Logf("a healthy workspace was Running after %s; it was queued for %s, during which %d other attempts ended",
			running.Round(time.Millisecond), turn.Sub(seen), between)
		require.Less(t, between, failingSize, "it is not queued behind a retry of each other workspace")
	}
	require.Eventually(t, func() bool {
		consumer, err := s.JS.Consumer(t.Context(), topology.StreamDesired, topology.DispatcherConsumer(s.AgentID))
		return err == nil && consumer.CachedInfo().NumAckPending == 0 && consumer.CachedInfo().NumPending == 0
	}, fixture.Timeout, fixture.PollInterval, "retries are not pending in the consumer")

	attempts := 0
	failures := s.Failures(s.AgentID)
	for _, w := range failing {
		fixture.RequireBackOff(t, failures[w.ID])
		attempts += len(failures[w.ID])
	}
	t.Logf("%.1f attempts at each in %s", float64(attempts)/failingSize, time.Since(begun).Round(time.Millisecond))
}

// refuseNamespaces makes the cluster refuse namespaces with a prefix.
func refuseNamespaces(s *fixture.System, prefix string) {
	s.T.Helper()
	t, admission := s.T, s.Kube.AdmissionregistrationV1()
	name := metav1.ObjectMeta{Name: "no-failing"}
	_, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: name,
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule: admissionv1.Rule{
						APIGroups:   []string{""},
						APIVersions: []string{"v1"},
						Resources:   []string{"namespaces"},
					},
				}}},
			},
			Validations: []admissionv1.Validation{
				{
					Expression: "!object.metadata.name.startsWith(" + strconv.Quote(prefix) + ")",
					Message:    "the policy rejects this namespace",
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: name,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        name.Name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	require.NoError(t, err)
	fixture.AwaitCluster(t, "the policy is in force", func(ctx context.Context) (bool, error) {
		probe := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "probe"}}
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := s.Kube.CoreV1().Namespaces().Create(ctx, probe, dryRun)
		return err != nil && strings.Contains(err.Error(), "the policy rejects"), nil
	})
}
