package stack_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

func options() stack.SecretsOptions {
	return stack.SecretsOptions{
		Name: "ls", NATS: natsauth.Options{Cell: "east"}, RelayCertificate: true, RelayHosts: []string{"relay.example"},
		PostgreSQLHost: "ls-postgresql.x.svc:5432",
	}
}

func TestEachPrincipalHasASecret(t *testing.T) {
	t.Parallel()
	// A fake API server: the test of the chart uses a real one.
	client := fake.NewClientset().CoreV1().Secrets("x")
	wanted := options()
	wanted.NATS.MapCells = []topology.Cell{"eu-2"}
	changes, err := stack.InitSecrets(t.Context(), client, wanted)
	require.NoError(t, err)
	for _, change := range changes {
		require.Equal(t, natsauth.Created, change.Change, change.Name)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	keys := map[string]string{}
	for _, secret := range list.Items {
		keys[secret.Name] = strings.Join(slices.Sorted(maps.Keys(secret.Data)), " ")
	}
	require.Equal(t, map[string]string{
		"ls-nats":       "nats-server.conf",
		"ls-state":      "callout.seed database.password database.url digest.key exchange.seed issuer.seed seal.seed state.seed sys.seed",
		"ls-admin":      "admin.token",
		"ls-deploys":    "database.password database.url deploys.seed",
		"ls-admission":  "admission.seed controllers.seed database.password database.url",
		"ls-runners":    "database.password database.url runners.seed signing.seed",
		"ls-gateway":    "authority.key authority.pub cookies.key gateway.seed host.key person.key person.pub",
		"ls-router":     "router.seed",
		"ls-cell-eu-2":  "cell-eu-2.seed",
		"ls-operator":   "cells.seed operator.seed",
		"ls-relay":      "relay.secret relay.seed",
		"ls-relay-tls":  "ca.crt tls.crt tls.key",
		"ls-postgresql": "password",
	}, keys)
}

func TestExistingKeysAreKept(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset().CoreV1().Secrets("x")
	_, err := stack.InitSecrets(t.Context(), client, options())
	require.NoError(t, err)
	before, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)

	changes, err := stack.InitSecrets(t.Context(), client, options())
	require.NoError(t, err)
	for _, change := range changes {
		require.Equal(t, natsauth.Kept, change.Change, change.Name)
	}

	require.NoError(t, client.Delete(t.Context(), "ls-deploys", metav1.DeleteOptions{}))
	changes, err = stack.InitSecrets(t.Context(), client, options())
	require.NoError(t, err)
	for _, change := range changes {
		want := map[string]natsauth.Change{"ls-deploys": natsauth.Created, "ls-nats": natsauth.Updated}[change.Name]
		if want == "" {
			want = natsauth.Kept
		}
		require.Equal(t, want, change.Change, change.Name)
	}
	after, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, after.Items, len(before.Items))
	for _, old := range before.Items {
		if old.Name == "ls-deploys" || old.Name == "ls-nats" {
			continue
		}
		i := slices.IndexFunc(after.Items, func(s corev1.Secret) bool { return s.Name == old.Name })
		require.Equal(t, old.Data, after.Items[i].Data, old.Name)
	}
}

// TestNewKeysAreAddedToSecretsThatExist is about upgrades: older versions made this Secret without the key.
func TestNewKeysAreAddedToSecretsThatExist(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset().CoreV1().Secrets("x")
	_, err := stack.InitSecrets(t.Context(), client, options())
	require.NoError(t, err)
	secret, err := client.Get(t.Context(), "ls-runners", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = seal.ParseKey(strings.TrimSpace(string(secret.Data["signing.seed"])))
	require.NoError(t, err)
	kept := maps.Clone(secret.Data)
	delete(kept, "signing.seed")
	secret.Data = maps.Clone(kept)
	_, err = client.Update(t.Context(), secret, metav1.UpdateOptions{})
	require.NoError(t, err)

	changes, err := stack.InitSecrets(t.Context(), client, options())
	require.NoError(t, err)
	require.Contains(t, changes, stack.SecretChange{Name: "ls-runners", Change: natsauth.Updated})
	secret, err = client.Get(t.Context(), "ls-runners", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, secret.Data["signing.seed"])
	delete(secret.Data, "signing.seed")
	require.Equal(t, kept, secret.Data)
}
