package workspaces_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// TestSecretsHiddenInErrors lets a cluster refuse a Secret and quote its values, and the API refuse
// requests with secrets.
func TestSecretsHiddenInErrors(t *testing.T) {
	s := shared.Parallel(t)

	value := s.Secrets.New()
	quoteSecrets(s)
	w := s.CreateWith(&statev1.CreateWorkspaceRequest{Name: "quoted", Overrides: &statev1.WorkspaceOverrides{
		Image:       fixture.GoodImage,
		SecretEnv:   map[string]string{"TOKEN": value},
		SecretFiles: map[string][]byte{"key": []byte(value)},
	}})
	failed := w.Await("Error", func(now *statev1.Workspace) bool {
		return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_ERROR
	})
	require.NotEmpty(t, failed.GetMessage())
	require.Empty(t, s.Secrets.FindIn([]byte(failed.GetMessage())))
	require.NoError(
		t,
		s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), quoting,
			metav1.DeleteOptions{}),
	)
	w.AwaitRunning()
	require.Equal(t, []string{value}, w.SecretValues("-env"))

	for name, overrides := range map[string]*statev1.WorkspaceOverrides{
		"a bad name":        {SecretEnv: map[string]string{"A-B": value}},
		"a bad path":        {SecretFiles: map[string][]byte{"../up": []byte(value)}},
		"a plain one too":   {Env: map[string]string{"TOKEN": "plain"}, SecretEnv: map[string]string{"TOKEN": value}},
		"too much":          {SecretFiles: map[string][]byte{"key": []byte(strings.Repeat(value, 20_000))}},
		"another bad field": {Cpu: "lots", SecretEnv: map[string]string{"TOKEN": value}},
	} {
		_, err := s.API.Workspaces.CreateWorkspace(t.Context(), connect.NewRequest(&statev1.CreateWorkspaceRequest{
			Name: "refused", ProjectId: s.ProjectID, AgentId: s.AgentID, Overrides: overrides,
		}))
		require.Error(t, err, name)
		require.Empty(t, s.Secrets.FindIn([]byte(err.Error())), name)
	}
}

// quoting is the name of the admission policy that quotes values.
const quoting = "quotes-secrets"

// quoteSecrets makes the cluster refuse the Secrets of the workspace "quoted" with a message that
// contains their values. It returns when the policy is in force.
func quoteSecrets(s *fixture.System) {
	t := s.T
	t.Helper()
	_, err := s.Kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quoting"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(
		t.Context(),
		&admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: quoting},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{
					ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
						Rule: admissionv1.Rule{
							APIGroups:   []string{""},
							APIVersions: []string{"v1"},
							Resources:   []string{"secrets"},
						},
					}}},
				},
				MatchConditions: []admissionv1.MatchCondition{
					{Name: "quoted", Expression: `request.namespace == "quoting" || request.namespace.endsWith("-quoted")`},
				},
				Validations: []admissionv1.Validation{
					{
						Expression:        `!has(object.data) || !("TOKEN" in object.data)`,
						MessageExpression: `"the token is " + string(object.data["TOKEN"])`,
						Message:           "no expression",
					},
				},
			},
		},
		metav1.CreateOptions{},
	)
	require.NoError(t, err)
	_, err = s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(
		t.Context(),
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: quoting},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        quoting,
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
		metav1.CreateOptions{},
	)
	require.NoError(t, err)
	fixture.AwaitCluster(t, "the cluster quotes what it refuses", func(ctx context.Context) (bool, error) {
		_, err := s.Kube.CoreV1().Secrets("quoting").Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, StringData: map[string]string{"TOKEN": "open-sesame"},
		}, metav1.CreateOptions{})
		found := &fixture.Secrets{Values: []string{"open-sesame"}}
		return err != nil && len(found.FindIn([]byte(err.Error()))) > 0, nil
	})
}

// TestSecretsReachOnlyCluster creates secrets. The check of the package's system looks for their
// values everywhere else.
func TestSecretsReachOnlyCluster(t *testing.T) {
	s := shared.Parallel(t)

	variable, file := s.Secrets.New(), s.Secrets.New()
	w := s.CreateWith(&statev1.CreateWorkspaceRequest{Name: "secretive", Overrides: &statev1.WorkspaceOverrides{
		Image:       fixture.GoodImage,
		SecretEnv:   map[string]string{"TOKEN": variable},
		SecretFiles: map[string][]byte{"ssh/id": []byte(file)},
	}})
	shown := w.AwaitRunning()
	require.Equal(t, []string{"TOKEN"}, shown.GetSpec().GetSecretEnv())
	require.Equal(t, []string{"ssh/id"}, shown.GetSpec().GetSecretFiles())
	require.Equal(t, []string{variable}, w.SecretValues("-env"))
	require.Equal(t, []string{file}, w.SecretValues("-files"))
	before := w.PodUID()

	changed := s.Secrets.New()
	w.Update(&statev1.WorkspaceOverrides{SecretEnv: map[string]string{"TOKEN": changed}})
	w.Await("Running with the new value", func(now *statev1.Workspace) bool {
		return fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) &&
			now.GetDesiredRevision() > shown.GetDesiredRevision()
	})
	require.Equal(t, []string{changed}, w.SecretValues("-env"))
	w.AwaitNewPod(before)
}

func TestSecretsCanBeRemoved(t *testing.T) {
	s := shared.Parallel(t)
	update := func(w *fixture.Workspace, request *statev1.UpdateWorkspaceRequest) error {
		request.Workspace = w.Reference()
		_, err := s.API.Workspaces.UpdateWorkspace(t.Context(), connect.NewRequest(request))
		return err
	}

	variable, first, second := s.Secrets.New(), s.Secrets.New(), s.Secrets.New()
	w := s.CreateWith(&statev1.CreateWorkspaceRequest{Name: "forgetful", Overrides: &statev1.WorkspaceOverrides{
		Image:       fixture.GoodImage,
		Env:         map[string]string{"PLAIN": "x"},
		SecretEnv:   map[string]string{"TOKEN": variable},
		SecretFiles: map[string][]byte{"first": []byte(first), "second": []byte(second)},
	}})
	shown := w.AwaitRunning()
	require.ErrorContains(t, update(w, &statev1.UpdateWorkspaceRequest{RemovedSecretFiles: []string{"third"}}),
		`removed_secret_files: the workspace has no "third"`)
	require.Equal(t, shown.GetDesiredRevision(), w.Get().GetDesiredRevision())

	require.NoError(t, update(w, &statev1.UpdateWorkspaceRequest{
		RemovedEnv: []string{"PLAIN"}, RemovedSecretEnv: []string{"TOKEN"}, RemovedSecretFiles: []string{"first"},
	}))
	shown = w.Await("Running without the removed values", func(now *statev1.Workspace) bool {
		return fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) &&
			now.GetDesiredRevision() > shown.GetDesiredRevision()
	})
	require.Empty(t, shown.GetSpec().GetEnv())
	require.Empty(t, shown.GetSpec().GetSecretEnv())
	require.Equal(t, []string{"second"}, shown.GetSpec().GetSecretFiles())
	require.Equal(t, []string{second}, w.SecretValues("-files"))
	_, err := s.Kube.CoreV1().Secrets(w.Namespace).Get(t.Context(), w.Name+"-env", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)

	tooMany := map[string][]byte{}
	for i := range 201 {
		tooMany[strconv.Itoa(i)] = []byte("x")
	}
	require.ErrorContains(t, update(w, &statev1.UpdateWorkspaceRequest{
		Overrides: &statev1.WorkspaceOverrides{SecretFiles: tooMany},
	}), "the limit is 200")
}
