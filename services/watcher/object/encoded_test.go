package object_test

import (
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/watcher/object"
)

// The objects are those of a real API server.
func TestEncodedObjectsAreSmallAndKeepTheirIdentity(t *testing.T) {
	t.Parallel()
	for file, o := range map[string]metav1.Object{
		"deployment": &appsv1.Deployment{}, "replicaset": &metav1.PartialObjectMetadata{}, "pod": &corev1.Pod{},
	} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "..", "tools", "bench", "testdata", file+".json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, o))
		encoder := object.NewEncoder()
		first, err := encoder.Encode(o)
		require.NoError(t, err)
		o.SetName("another")
		o.SetLabels(map[string]string{object.LabelWorkspaceName: "another", object.LabelWorkspace: rand.Text()})
		o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
		encoded, err := encoder.Encode(o)
		require.NoError(t, err)
		t.Logf("%s: %d bytes of JSON, %d encoded, another %d", file, len(raw), first.Size(), encoded.Size())
		require.Less(t, encoded.Size(), 300, file)
		decoded, err := object.Decode(encoded)
		require.NoError(t, err)
		kind := object.Kind(file)
		require.Equal(t, object.KeyOf(kind, o), object.KeyOf(kind, encoded))
		require.Equal(t, object.KeyOf(kind, o), object.KeyOf(kind, decoded))
		require.Equal(t, o.GetLabels(), decoded.GetLabels())
		alone, err := object.NewEncoder().Encode(o)
		require.NoError(t, err)
		same, err := object.Decode(alone)
		require.NoError(t, err)
		require.Equal(t, same, decoded, "the first object of a kind changes no other")
		require.Equal(t, object.DeploymentOf(kind, o), encoded.Deployment())
		require.NotEmpty(t, encoded.Deployment())
	}
}

func TestOtherTypesAreNotEncoded(t *testing.T) {
	t.Parallel()
	_, err := object.NewEncoder().Encode(&appsv1.DaemonSet{})
	require.ErrorContains(t, err, "DaemonSet")
}
