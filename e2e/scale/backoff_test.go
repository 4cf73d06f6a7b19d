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

// TestBackoffDelaysNobody lets the cluster refuse a thousand workspaces repeatedly. Healthy ones
// start and stop meanwhile.
func TestBackoffDelaysNobody(t *testing.T) {
	s := shared.Exclusive(t)
	refuseNamespaces(s, fmt.Sprintf("ws-%d-failing-", s.AgentID))
	begun := time.Now()
	failing := newWorkspaceGroup(s, "failing", failingSize, s.AgentID)
	t.Logf("%d workspaces asked for in %s", len(failing), time.Since(begun).Round(time.Millisecond))
	failing.await("Error", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR && now.GetReason() == "AdmissionRefused" &&
			strings.Contains(now.GetMessage(), "no room for the failing")
	})
	t.Logf("all were refused once %s after the first was asked for", time.Since(begun).Round(time.Millisecond))

	for i := range 3 {
		asked := time.Now()
		healthy := newWorkspaceGroup(s, "healthy-"+strconv.Itoa(i), 1, s.AgentID)[0]
		healthy.AwaitRunning()
		running := time.Since(asked)
		seen, turn := healthy.BackoffTurn()
		between := 0
		for _, attempts := range s.Failures(s.AgentID) {
			for _, failed := range attempts {
				if failed.ObservedAt.After(seen) && failed.ObservedAt.Before(turn) {
					between++
				}
			}
		}
		t.Logf("a healthy workspace was Running after %s; it waited %s for its turn, in which %d attempts at others ended",
			running.Round(time.Millisecond), turn.Sub(seen), between)
		require.Less(t, between, failingSize/4, "it does not wait for the others' next attempts")
	}
	require.Eventually(t, func() bool {
		consumer, err := s.JS.Consumer(t.Context(), topology.StreamDesired, topology.DispatcherConsumer(s.AgentID))
		return err == nil && consumer.CachedInfo().NumAckPending == 0 && consumer.CachedInfo().NumPending == 0
	}, fixture.Timeout, fixture.PollInterval, "what is tried again occupies no place in the consumer")

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
					Expression: "!object.metadata.name.startsWith(" + strconv.Quote(
						prefix,
					) + ")",
					Message: "there is no room for the failing",
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(
		t.Context(),
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: name,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        name.Name,
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
		metav1.CreateOptions{},
	)
	require.NoError(t, err)
	fixture.AwaitCluster(t, "the policy is in force", func(ctx context.Context) (bool, error) {
		_, err := s.Kube.CoreV1().Namespaces().Create(
			ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "probe"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}},
		)
		return err != nil && strings.Contains(err.Error(), "no room"), nil
	})
}
