package events_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

const (
	tick     = `{"cluster_uid":"0b7c","observed_at":"2026-01-02T03:04:05.678Z"}`
	tickType = "dev.lockstep.observed.tick.v1: "
)

func TestDecodeReadsValidData(t *testing.T) {
	t.Parallel()
	decoded, err := events.Decode[events.ObservedTick]([]byte(tick))
	require.NoError(t, err)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	require.Equal(t, &events.ObservedTick{ClusterUID: "0b7c", ObservedAt: at}, decoded)

	byName, err := events.DecodeAny(events.TypeObservedTick, []byte(tick))
	require.NoError(t, err)
	require.Equal(t, decoded, byName)
}

func TestFaultsNameThePlaceAndTheRule(t *testing.T) {
	t.Parallel()
	pod := func(change string) string {
		object := map[string]any{
			"cluster_uid": "0b7c", "namespace": "ws-7-a", "name": "a", "uid": "9f1e", "resource_version": "4711",
			"verb": "upserted", "update_type": "partial", "observed_at": "2026-01-02T03:04:05.678Z",
		}
		require.NoError(t, json.Unmarshal([]byte(change), &object))
		raw, err := json.Marshal(map[string]any{"object": object, "deployment": "a", "phase": "Running"})
		require.NoError(t, err)
		return string(raw)
	}
	at := func(observedAt string) string { return `{"cluster_uid":"u","observed_at":"` + observedAt + `"}` }
	for name, tc := range map[string]struct {
		eventType, data, want string
	}{
		"valid":               {events.TypeObservedTick, tick, ""},
		"unknown field":       {events.TypeObservedTick, tick[:len(tick)-1] + `,"more":[{"a":1}]}`, ""},
		"unknown known value": {events.TypeResyncRequested, `{"nonce":"n","cause":"a_cause_of_next_year"}`, ""},
		"escaped name": {
			events.TypeObservedTick, `{"cluster\u005fuid":"\u0075","observed_at":"2026-01-02T03:04:05Z"}`, "",
		},
		"unknown type": {
			"dev.lockstep.observed.tick.v9", tick,
			`event type "dev.lockstep.observed.tick.v9": not in the registry of event types`,
		},
		"half a document": {
			events.TypeObservedTick, `{`, tickType + "data is not JSON: jsontext: unexpected EOF after offset 1",
		},
		"no document": {events.TypeObservedTick, ``, tickType + "data is not JSON: EOF"},
		"two documents": {
			events.TypeObservedTick, tick + tick, tickType + "data is not JSON: a second value follows the first",
		},
		"duplicate name": {
			events.TypeObservedTick, `{"cluster_uid":"a","cluster_uid":"b"}`,
			tickType + `data is not JSON: jsontext: duplicate object member name "cluster_uid"`,
		},
		"invalid UTF-8": {
			events.TypeObservedTick, "{\"cluster_uid\":\"\xff\"}",
			tickType + `data is not JSON: jsontext: invalid UTF-8 within "/cluster_uid" after offset 16`,
		},
		"another case": {
			events.TypeObservedTick, strings.Replace(tick, "cluster_uid", "Cluster_UID", 1),
			tickType + "/cluster_uid: is missing",
		},
		"null":    {events.TypeObservedTick, `null`, tickType + "/: is of type null, must be object"},
		"missing": {events.TypeObservedTick, `{}`, tickType + "/cluster_uid: is missing; /observed_at: is missing"},
		"type": {
			events.TypeObservedTick, `{"cluster_uid":7,"observed_at":"2026-01-02T03:04:05Z"}`,
			tickType + "/cluster_uid: is of type number, must be string",
		},
		"empty": {
			events.TypeObservedTick, `{"cluster_uid":"","observed_at":"2026-01-02T03:04:05Z"}`,
			tickType + "/cluster_uid: is empty",
		},
		"time": {
			events.TypeObservedTick, at("yesterday"), tickType + `/observed_at: "yesterday" is not a date-time of RFC 3339`,
		},
		"long value": {
			events.TypeObservedTick, at(strings.Repeat("x", 1000)),
			tickType + `/observed_at: "` + strings.Repeat("x", 64) + `…" is not a date-time of RFC 3339`,
		},
		"closed list of values": {
			events.TypeObservedPod, pod(`{"verb":"eaten"}`),
			`dev.lockstep.observed.pod.v1: /object/verb: "eaten" must be one of deleted, upserted`,
		},
		"pattern": {
			events.TypeObservedPod, pod(`{"resource_version":"4x"}`),
			`dev.lockstep.observed.pod.v1: /object/resource_version: "4x" does not match ^[0-9]+$`,
		},
		"map value": {
			events.TypeObservedPod, pod(`{"labels":{"a/b":1}}`),
			`dev.lockstep.observed.pod.v1: /object/labels/a~1b: is of type number, must be string`,
		},
		"minimum": {
			events.TypeAgentConfig, `{"config_revision":0,"full_resync_interval_ms":1000,"unschedulable_patience_ms":0}`,
			"dev.lockstep.control.config.v1: /config_revision: 0 is less than 1",
		},
		"fraction": {
			events.TypeAgentConfig, `{"config_revision":1.5,"full_resync_interval_ms":1000,"unschedulable_patience_ms":0}`,
			"dev.lockstep.control.config.v1: /config_revision: 1.5 must be an integer of 64 bits, without fraction or exponent",
		},
		"list as null": {
			events.TypeApplied, `{"workspace_id":"w","desired_revision":1,"observed_at":"2026-01-02T03:04:05Z","objects":null}`,
			"dev.lockstep.applied.applied.v1: /objects: is of type null, must be array",
		},
		"too few items": {
			events.TypeAgentRequests, `{"agent_id":1,"requests":[]}`,
			"dev.lockstep.agent.requests.v1: /requests: has 0 items, must have at least 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := events.Validate(tc.eventType, []byte(tc.data))
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tc.want)
		})
	}
}

func TestErrorListsTheFirstTenFaults(t *testing.T) {
	t.Parallel()
	objects := slices.Repeat([]string{`{"api_version":1,"kind":"Pod","name":"a"}`}, 50)
	data := fmt.Sprintf(`{"workspace_id":"w","desired_revision":1,"observed_at":"2026-01-02T03:04:05Z","objects":[%s]}`,
		strings.Join(objects, ","))
	decoded, err := events.Decode[events.Applied]([]byte(data))
	require.ErrorContains(t, err, "and 40 more")
	require.Equal(t, 10, strings.Count(err.Error(), "/objects/"))
	require.Zero(t, decoded)
}

func TestDecodeIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var callers sync.WaitGroup
	for i := range 8 {
		data := fmt.Appendf(nil, `{"cluster_uid":"%d","observed_at":"2026-01-02T03:04:05Z"}`, i)
		callers.Go(func() {
			for range 50 {
				decoded, err := events.Decode[events.ObservedTick](data)
				if err != nil || decoded.ClusterUID != fmt.Sprint(i) {
					t.Error(decoded, err)
				}
			}
		})
	}
	callers.Wait()
}

func TestEveryTypeIsRegistered(t *testing.T) {
	t.Parallel()
	types := events.Types()
	require.NotEmpty(t, types)
	for _, et := range types {
		found, ok := events.Lookup(et.Name)
		require.True(t, ok)
		require.Equal(t, et, found)
		require.ErrorContains(t, events.Validate(et.Name, []byte(`[]`)), "must be object")
	}
	_, ok := events.Lookup("x")
	require.False(t, ok)
}

func FuzzValidateNeverPanics(f *testing.F) {
	f.Add(events.TypeObservedTick, []byte(tick))
	f.Add(events.TypeObservedPod, []byte(`{"object":{"labels":{"":[]}},"containers":[{"exit_code":1e400}]}`))
	f.Add("", []byte("\xff"))
	f.Fuzz(func(_ *testing.T, eventType string, data []byte) {
		_ = events.Validate(eventType, data)
	})
}

// BenchmarkDecode compares Decode with encoding/json, which does not validate.
func BenchmarkDecode(b *testing.B) {
	const pod = `{"object":{"cluster_uid":"0b7c","namespace":"ws-7-a","name":"a-1","uid":"9f1e","resource_version":"4711",` +
		`"verb":"upserted","update_type":"partial","observed_at":"2026-01-02T03:04:05.678Z","labels":{"app":"a","tier":"web"}},` +
		`"deployment":"a","phase":"Running","node":"n1","replicaset":"a-6f","pod_template_hash":"6f",` +
		`"conditions":[{"type":"Ready","status":"True","last_transition_time":"2026-01-02T03:04:05Z"}],` +
		`"containers":[{"name":"main","state":"running","ready":true,"image":"registry.example/a:1"}]}`
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(pod)))
		for b.Loop() {
			if _, err := events.Decode[events.ObservedPod]([]byte(pod)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.SetBytes(int64(len(pod)))
		for b.Loop() {
			var decoded events.ObservedPod
			if err := json.Unmarshal([]byte(pod), &decoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}
