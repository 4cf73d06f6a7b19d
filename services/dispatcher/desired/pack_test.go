package desired_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
)

func TestUnpackReversesPack(t *testing.T) {
	t.Parallel()
	w := desired.Workspace{
		ID: "w", Name: "n", Namespace: "ws-7-n", Revision: 9, Target: events.DesiredTargetStopped, Size: 1234,
		Secrets: []events.SecretReference{{Name: "s", Digest: "d"}},
		Objects: []desired.Object{{
			Reference: desired.Reference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "ws-7-n", Name: "files"},
			Manifest: map[string]any{
				"apiVersion": "v1",
				"kind":       "ConfigMap",
				"metadata":   map[string]any{"name": "files", "namespace": "ws-7-n"},
				"data": map[string]any{
					"large": strings.Repeat("text ", 10_000),
				},
				"number": int64(math.MaxInt64),
				"share":  0.5,
				"list":   []any{nil, true},
			},
		}},
	}
	packed, err := desired.Pack(w)
	require.NoError(t, err)
	require.Less(t, len(packed), 2000)
	back, err := desired.Unpack(packed)
	require.NoError(t, err)
	require.Equal(t, w, back)
	_, err = desired.Unpack(packed[:10])
	require.Error(t, err)
}
