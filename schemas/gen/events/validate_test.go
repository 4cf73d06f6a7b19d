package events_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

const tick = `{"cluster_uid":"0b7c","observed_at":"2026-01-02T03:04:05.678Z"}`

func TestValidateSaysWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	meta := func(change string) string {
		object := map[string]any{
			"cluster_uid": "0b7c", "namespace": "ws-7-a", "name": "a", "uid": "9f1e", "resource_version": "4711",
			"verb": "upserted", "update_type": "partial", "observed_at": "2026-01-02T03:04:05.678Z",
		}
		require.NoError(t, json.Unmarshal([]byte(change), &object))
		raw, err := json.Marshal(map[string]any{"object": object, "deployment": "a", "phase": "Running"})
		require.NoError(t, err)
		return string(raw)
	}
	for name, tc := range map[string]struct {
		eventType, data, want string
	}{
		"good":                {events.TypeObservedTick, tick, ""},
		"unknown field":       {events.TypeObservedTick, `{"cluster_uid":"0b7c","observed_at":"2026-01-02T03:04:05Z","more":1}`, ""},
		"unknown known value": {events.TypeResyncRequested, `{"nonce":"n","cause":"a_cause_of_next_year"}`, ""},
		"unknown type":        {"dev.lockstep.observed.tick.v9", tick, `event type "dev.lockstep.observed.tick.v9": is not in the registry of event schemas`},
		"no JSON":             {events.TypeObservedTick, `{`, "dev.lockstep.observed.tick.v1: data is no JSON: unexpected EOF"},
		"nothing":             {events.TypeObservedTick, ``, "dev.lockstep.observed.tick.v1: data is no JSON: EOF"},
		"two documents":       {events.TypeObservedTick, tick + tick, "dev.lockstep.observed.tick.v1: data is no JSON: invalid character after top-level value"},
		"null":                {events.TypeObservedTick, `null`, "dev.lockstep.observed.tick.v1: /: is of type null, must be object"},
		"missing":             {events.TypeObservedTick, `{}`, "dev.lockstep.observed.tick.v1: /cluster_uid: is missing; /observed_at: is missing"},
		"type":                {events.TypeObservedTick, `{"cluster_uid":7,"observed_at":"2026-01-02T03:04:05Z"}`, "dev.lockstep.observed.tick.v1: /cluster_uid: is of type number, must be string"},
		"empty":               {events.TypeObservedTick, `{"cluster_uid":"","observed_at":"2026-01-02T03:04:05Z"}`, "dev.lockstep.observed.tick.v1: /cluster_uid: is empty"},
		"format":              {events.TypeObservedTick, `{"cluster_uid":"u","observed_at":"yesterday"}`, `dev.lockstep.observed.tick.v1: /observed_at: "yesterday" is no date-time`},
		"nested":              {events.TypeObservedPod, meta(`{"verb":"eaten"}`), `dev.lockstep.observed.pod.v1: /object/verb: "eaten" is none of upserted, deleted`},
		"pattern":             {events.TypeObservedPod, meta(`{"resource_version":"4x"}`), `dev.lockstep.observed.pod.v1: /object/resource_version: "4x" does not match ^[0-9]+$`},
		"map value":           {events.TypeObservedPod, meta(`{"labels":{"a/b":1}}`), `dev.lockstep.observed.pod.v1: /object/labels/a~1b: is of type number, must be string`},
		"minimum":             {events.TypeAgentConfig, `{"config_revision":0,"full_resync_interval_ms":1000,"unschedulable_patience_ms":0}`, "dev.lockstep.control.config.v1: /config_revision: 0 is less than 1"},
		"long value":          {events.TypeObservedTick, `{"cluster_uid":"u","observed_at":"` + strings.Repeat("x", 1000) + `"}`, `dev.lockstep.observed.tick.v1: /observed_at: "` + strings.Repeat("x", 63) + "… is no date-time"},
		"list as null": {
			events.TypeApplied, `{"workspace_id":"w","desired_revision":1,"observed_at":"2026-01-02T03:04:05Z","objects":null}`,
			"dev.lockstep.applied.applied.v1: /objects: is of type null, must be array",
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

func TestValidateEndsALongListOfFaults(t *testing.T) {
	t.Parallel()
	objects := slices.Repeat([]string{`{"api_version":1,"kind":"Pod","name":"a"}`}, 50)
	data := fmt.Sprintf(`{"workspace_id":"w","desired_revision":1,"observed_at":"2026-01-02T03:04:05Z","objects":[%s]}`, strings.Join(objects, ","))
	err := events.Validate(events.TypeApplied, []byte(data))
	require.ErrorContains(t, err, "and 40 more")
	require.Equal(t, 10, strings.Count(err.Error(), "/objects/"))
}

func TestValidateMayBeCalledFromAnywhere(t *testing.T) {
	t.Parallel()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 50 {
				if err := events.Validate(events.TypeObservedTick, []byte(tick)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

func TestEveryTypeIsWhole(t *testing.T) {
	t.Parallel()
	types := events.Types()
	require.NotEmpty(t, types)
	for _, et := range types {
		found, ok := events.Lookup(et.Name)
		require.True(t, ok)
		require.Equal(t, et, found)
		data, ok := events.New(et.Name)
		require.True(t, ok)
		require.Equal(t, "*events."+et.Title, fmt.Sprintf("%T", data))
		var schema struct {
			Title string `json:"title"`
		}
		require.NoError(t, json.Unmarshal(et.Schema(), &schema))
		require.Equal(t, et.Title, schema.Title)
		// A name that has no schema is told apart from data that is refused.
		require.ErrorContains(t, events.Validate(et.Name, []byte(`[]`)), "must be object")
	}
	_, ok := events.Lookup("x")
	require.False(t, ok)
	_, ok = events.New("x")
	require.False(t, ok)
	require.Nil(t, events.Type{Name: "x"}.Schema())
}

func FuzzValidateNeverPanics(f *testing.F) {
	f.Add(events.TypeObservedTick, []byte(tick))
	f.Add(events.TypeObservedPod, []byte(`{"object":{"labels":{"":[]}},"containers":[{"exit_code":1e400}]}`))
	f.Add("", []byte("\xff"))
	f.Fuzz(func(_ *testing.T, eventType string, data []byte) {
		_ = events.Validate(eventType, data)
	})
}

func BenchmarkValidate(b *testing.B) {
	for b.Loop() {
		if err := events.Validate(events.TypeObservedTick, []byte(tick)); err != nil {
			b.Fatal(err)
		}
	}
}
