package e2e_test

import (
	"context"
	"strings"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// secretsAreNotQuotedInErrors has a cluster that refuses a Secret and quotes its values, and callers whose requests with secrets are refused.
func secretsAreNotQuotedInErrors(s *system) {
	t := s.t
	value := s.secrets.make()
	s.quoteSecrets()
	w := s.createAs(&statev1.CreateWorkspaceRequest{Name: "quoted", Overrides: &statev1.WorkspaceOverrides{
		Image: goodImage, SecretEnv: map[string]string{"TOKEN": value}, SecretFiles: map[string][]byte{"key": []byte(value)},
	}})
	failed := w.until("Error", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR
	})
	require.NotEmpty(t, failed.GetMessage())
	require.Empty(t, s.secrets.findIn([]byte(failed.GetMessage())))
	require.NoError(t, s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), quoting, metav1.DeleteOptions{}))
	w.untilRunning()
	require.Equal(t, []string{value}, w.secretValues("-env"))

	for name, overrides := range map[string]*statev1.WorkspaceOverrides{
		"a bad name":        {SecretEnv: map[string]string{"A-B": value}},
		"a bad path":        {SecretFiles: map[string][]byte{"../up": []byte(value)}},
		"a plain one too":   {Env: map[string]string{"TOKEN": "plain"}, SecretEnv: map[string]string{"TOKEN": value}},
		"too much":          {SecretFiles: map[string][]byte{"key": []byte(strings.Repeat(value, 20_000))}},
		"another bad field": {Cpu: "lots", SecretEnv: map[string]string{"TOKEN": value}},
	} {
		_, err := s.api.Workspaces.CreateWorkspace(t.Context(), connect.NewRequest(&statev1.CreateWorkspaceRequest{
			Name: "refused", ProjectId: s.project, AgentId: s.agent, Overrides: overrides,
		}))
		require.Error(t, err, name)
		require.Empty(t, s.secrets.findIn([]byte(err.Error())), name)
	}
}

// quoting is the name of the policy that quotes.
const quoting = "quotes-secrets"

// quoteSecrets has the cluster refuse the Secrets of the workspace "quoted" with what is in them, and returns when it does.
func (s *system) quoteSecrets() {
	t := s.t
	t.Helper()
	_, err := s.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quoting"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: quoting},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
			}}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "quoted", Expression: `request.namespace == "quoting" || request.namespace.endsWith("-quoted")`}},
			Validations: []admissionv1.Validation{{
				Expression: `!has(object.data) || !("TOKEN" in object.data)`, MessageExpression: `"the token is " + string(object.data["TOKEN"])`, Message: "no expression",
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: quoting},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: quoting, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitCluster(t, "the cluster quotes what it refuses", func(ctx context.Context) (bool, error) {
		_, err := s.kube.CoreV1().Secrets("quoting").Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, StringData: map[string]string{"TOKEN": "open-sesame"},
		}, metav1.CreateOptions{})
		found := &secrets{values: []string{"open-sesame"}}
		return err != nil && len(found.findIn([]byte(err.Error()))) > 0, nil
	})
}
