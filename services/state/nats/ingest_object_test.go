package nats_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/nats"
)

func kinds() []string {
	return []string{events.TypeObservedDeployment, events.TypeObservedReplicaSet, events.TypeObservedPod}
}

// example is the data of a type's whole example, as Go writes it.
func example(tb testing.TB, kind string) []byte {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "schemas", "examples", strings.TrimPrefix(kind, "dev.lockstep.")+".json"))
	require.NoError(tb, err)
	var e struct {
		Data json.RawMessage `json:"data"`
	}
	require.NoError(tb, json.Unmarshal(raw, &e))
	into, err := events.DecodeAny(kind, e.Data)
	require.NoError(tb, err)
	data, err := json.Marshal(into)
	require.NoError(tb, err)
	return data
}

func TestWholeExamplesArePlain(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds() {
		require.True(t, nats.Plain(kind, example(t, kind)), kind)
		require.False(t, nats.Plain(kind, []byte(`{}`)), kind)
	}
}

// FuzzWhatIsPlainIsAllowed: nothing is taken unasked that the schema refuses.
func FuzzWhatIsPlainIsAllowed(f *testing.F) {
	f.Add("upserted", "full", "1", "name", "2026-03-02T10:40:12Z", "waiting", 1)
	f.Add("deleted", "partial", "01", "", "2026-03-02T10:40:12.123456789+01:00", "terminated", -1)
	f.Add("", "", "x", "\xff<\u2028", "0000-01-01T00:00:00Z", "", 0)
	f.Fuzz(func(t *testing.T, verb, update, version, text, at, container string, number int) {
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return
		}
		meta := events.ObjectMeta{
			ClusterUID: text, Namespace: text, Name: text, UID: text, ResourceVersion: version, Verb: events.Verb(verb), UpdateType: events.UpdateType(update),
			ObservedAt: when, CreatedAt: &when, WorkspaceID: text, Labels: map[string]string{text: text},
		}
		conditions := []events.Condition{{Type: text, Status: text, Reason: text, LastTransitionTime: &when}}
		for _, d := range []any{
			events.ObservedDeployment{Object: meta, SpecReplicas: &number, AvailableReplicas: number, Generation: number, Conditions: conditions},
			events.ObservedReplicaSet{Object: meta, Deployment: text, Revision: number},
			events.ObservedPod{
				Object: meta, Deployment: text, Phase: text, Conditions: conditions,
				Containers: []events.ContainerState{{Name: text, State: events.ContainerStatus(container), ExitCode: number, RestartCount: number}},
			},
		} {
			data, err := json.Marshal(d)
			if err != nil {
				return
			}
			for _, kind := range kinds() {
				if nats.Plain(kind, data) {
					require.NoError(t, events.Validate(kind, data))
				}
			}
		}
	})
}

// FuzzWhatIsPlainIsStoredAsItCame: what is taken unasked is valid, and what Go makes of it is the same.
func FuzzWhatIsPlainIsStoredAsItCame(f *testing.F) {
	for i, kind := range kinds() {
		f.Add(i, example(f, kind))
	}
	f.Fuzz(func(t *testing.T, which int, data []byte) {
		if which < 0 || which >= len(kinds()) {
			return
		}
		kind := kinds()[which]
		if !nats.Plain(kind, data) {
			return
		}
		into, err := events.DecodeAny(kind, data)
		require.NoError(t, err)
		again, err := json.Marshal(into)
		require.NoError(t, err)
		require.Equal(t, string(again), string(data))
	})
}

func FuzzWithoutZeroBytes(f *testing.F) {
	f.Add("a\x00b\\u0000\\\x00")
	f.Fuzz(func(t *testing.T, text string) {
		data, err := json.Marshal(map[string]string{"t": text})
		require.NoError(t, err)
		var before, after map[string]string
		require.NoError(t, json.Unmarshal(data, &before))
		require.NoError(t, json.Unmarshal(nats.WithoutZeroBytes(data), &after))
		require.Equal(t, strings.ReplaceAll(before["t"], "\x00", ""), after["t"])
	})
}
