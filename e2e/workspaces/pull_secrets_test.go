package workspaces_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// TestPullSecretsOfAProjectReachItsPods sets, changes and removes credentials while a workspace runs. At the end of all
// tests the passwords are searched for in streams, tables and logs. The project is its own: all workspaces of a project
// get a new revision.
func TestPullSecretsOfAProjectReachItsPods(t *testing.T) {
	all := shared.Parallel(t)
	agent, projectID := newAgent(all, "private-images")
	here := *all
	here.ProjectID, here.AgentID = projectID, agent.ID
	s := &here
	w := s.CreateRunning("private-image")
	ctx, project := t.Context(), strconv.FormatInt(projectID, 10)
	file := filepath.Join(t.TempDir(), "password")
	set := func() string {
		password := s.Secrets.New()
		require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
		shown := s.CLI().OK("pull-secret", "set", "registry.example", "--project", project, "--username", "ci",
			"--password-file", file)
		require.NotContains(t, shown, password)
		return password
	}
	held := func(ctx context.Context) (*corev1.Secret, bool, error) {
		found, err := s.Kube.CoreV1().Secrets(w.Namespace).Get(ctx, w.Name+"-pull", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		return found, err == nil, err
	}
	awaitPassword := func(password string) {
		t.Helper()
		w.AwaitCluster("the Secret has the password", func(ctx context.Context) (bool, error) {
			found, exists, err := held(ctx)
			if !exists {
				return false, err
			}
			require.Equal(t, corev1.SecretTypeDockerConfigJson, found.Type)
			var config struct {
				Auths map[string]struct {
					Auth []byte `json:"auth"`
				} `json:"auths"`
			}
			require.NoError(t, json.Unmarshal(found.Data[corev1.DockerConfigJsonKey], &config))
			return string(config.Auths["registry.example"].Auth) == "ci:"+password, nil
		})
	}
	pod := func() corev1.Pod {
		t.Helper()
		pods, err := s.Kube.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, pods.Items, 1)
		return pods.Items[0]
	}
	before := pod()
	require.Empty(t, before.Spec.ImagePullSecrets)
	first := set()
	s.Secrets.Add(base64.StdEncoding.EncodeToString([]byte("ci:" + first)))
	awaitPassword(first)
	awaitPassword(set())
	w.AwaitRunning()
	require.Equal(t, before.UID, pod().UID, "no pod is replaced")
	require.NotContains(t, s.CLI().OK("pull-secret", "list", "--project", project, "-o", "json"), "secret-value")

	w.Restart()
	w.AwaitNewPod(before.UID)
	w.AwaitRestarted()
	require.Equal(t, []corev1.LocalObjectReference{{Name: w.Name + "-pull"}}, pod().Spec.ImagePullSecrets)
	other := s.Create("private-image-two", fixture.GoodImage)
	other.AwaitRunning()
	require.Len(t, other.SecretValues("-pull"), 1)

	s.CLI().OK("pull-secret", "remove", "registry.example", "--project", project)
	w.AwaitCluster("the Secret is gone", func(ctx context.Context) (bool, error) {
		_, exists, err := held(ctx)
		return !exists, err
	})
	w.Await("Running", fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING))
	account, err := s.Kube.CoreV1().ServiceAccounts(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, account.ImagePullSecrets)
}
