package cdevent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cdevents/sdk-go/pkg/api"
	v05 "github.com/cdevents/sdk-go/pkg/api/v05"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/rollout"
)

func facts() []events.Fact {
	return []events.Fact{
		events.FactStarted, events.FactProgressed, events.FactCompleted, events.FactDrained, events.FactStalled,
		events.FactRecovered, events.FactBlocked,
		events.FactUnblocked, events.FactPaused, events.FactResumed, events.FactSuperseded, events.FactCancelled,
		events.FactRolledBack, events.FactRestarted,
		events.FactPartitionReached, events.FactScaleStarted, events.FactScaleCompleted, events.FactRemoved,
		events.FactUnknown, events.FactGap,
		events.FactEnvironmentStarted, events.FactEnvironmentReady, events.FactEnvironmentFailed,
		events.FactEnvironmentRemoved,
	}
}

func sample(fact events.Fact, change events.Change) events.DeployFact {
	at := time.Date(2026, 3, 2, 10, 40, 12, 417_000_000, time.UTC)
	f := events.DeployFact{
		Fact:       fact,
		Sequence:   3,
		Ordinal:    1,
		OccurredAt: at.Truncate(time.Second),
		ObservedAt: at,
		Provenance: events.ProvenanceObserved,
		TimeSource: events.TimeSourceCondition,
		Reason:     "R",
		Message:    "ü ☃ \"quoted\"",
		Counts:     &events.Counts{Desired: 2},
		DurationMs: new(1200),
		Workload: events.Workload{
			ClusterUID: "6f1d9c34", AgentID: 7, Namespace: "shop", Kind: "deployment", Name: "checkout", UID: "u",
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"lockstep.dev/commit": "9fceb02"},
		},
	}
	switch {
	case strings.HasPrefix(string(fact), "environment_"):
		f.Workload.Kind = "group"
		f.Environment = &events.Environment{Group: "pr-1", Run: "9fceb02", Expected: 2, Url: "https://pr-1.example.com"}
	case fact == events.FactGap || fact == events.FactUnknown:
		f.Gap = &events.Gap{Revisions: []int{1, 2}, Since: at, Until: at, Cause: events.CauseWatcherDown}
	case strings.HasPrefix(string(fact), "scale_"):
		f.Scale = &events.Scale{From: 1, To: 2}
	case fact == events.FactRemoved:
	default:
		f.Rollout = &events.Rollout{
			ID: "6f1d9c34/u/42/6d4c", Revision: 42, Change: change, StartedAt: &at, StartedObservedAt: &at,
			Images: []events.Image{
				{Container: "init", Image: "busybox"},
				{Container: "app", Image: "registry.example.com:5000/shop/checkout:v2@sha256:abc"},
			},
		}
	}
	return f
}

// standard decodes the event with the library of CDEvents and validates it with the schema of the standard. The library
// returns a wrong type for custom events, so this function finds the schema by itself.
func standard(t *testing.T, e event.Event) api.CDEventV04 {
	cd, err := v05.NewFromJsonBytes(e.Data())
	require.NoError(t, err)
	kind, err := api.ParseType(e.Type())
	require.NoError(t, err)
	_, schema, err := api.CompiledSchemas.GetBySpecSubjectPredicate("0.5.1", kind.Subject, kind.Predicate, kind.Custom)
	require.NoError(t, err)
	var data map[string]any
	require.NoError(t, json.Unmarshal(e.Data(), &data))
	require.NoError(t, schema.Validate(data))
	require.Equal(t, e.Type(), data["context"].(map[string]any)["type"])
	if kind.Custom == "" {
		require.NoError(t, api.Validate(cd))
		require.Equal(t, e.Type(), cd.GetType().String())
	}
	return cd
}

// Each fact with each change is valid by the schemas of CDEvents and by our schema, and decodes without loss.
func TestEveryFactIsACDEvent(t *testing.T) {
	t.Parallel()
	for _, fact := range facts() {
		for _, change := range []events.Change{
			events.ChangeCreated, events.ChangeUpdated, events.ChangeRolledBack, events.ChangeRestarted,
		} {
			t.Run(string(fact)+"/"+string(change), func(t *testing.T) {
				t.Parallel()
				f := sample(fact, change)
				e, err := cdevent.Of("local", f)
				require.NoError(t, err)
				require.NoError(t, e.Validate())

				cd := standard(t, e)
				require.Equal(t, e.ID(), cd.GetId())
				require.Equal(t, e.Source(), cd.GetSource())
				require.Equal(t, e.Subject(), cd.GetSubjectId())
				require.True(t, f.OccurredAt.Equal(cd.GetTimestamp()))
				require.True(t, f.OccurredAt.Equal(e.Time()))
				raw, err := cd.GetCustomDataRaw()
				require.NoError(t, err)
				require.NoError(t, events.Validate(events.TypeDeployFact, raw))

				msg, err := event.Encode(e, "lockstep.local.deploy.x")
				require.NoError(t, err)
				back, err := event.Decode(msg.Header, msg.Data)
				require.NoError(t, err)
				read, err := cdevent.Read(back)
				require.NoError(t, err)
				require.Equal(t, f, read)
				require.Equal(t, rollout.ID(f), e.ID())

				again, err := cdevent.Of("local", f)
				require.NoError(t, err)
				require.Equal(t, e.Data(), again.Data())
			})
		}
	}
}

func TestTypes(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]events.DeployFact{
		"dev.cdevents.service.deployed.0.3.0":                    sample(events.FactCompleted, events.ChangeCreated),
		"dev.cdevents.service.upgraded.0.3.0":                    sample(events.FactCompleted, events.ChangeRestarted),
		"dev.cdevents.service.rolledback.0.3.0":                  sample(events.FactCompleted, events.ChangeRolledBack),
		"dev.cdevents.service.removed.0.3.0":                     sample(events.FactRemoved, ""),
		"dev.cdevents.service.published.0.3.0":                   sample(events.FactEnvironmentReady, ""),
		"dev.cdevents.environment.created.0.3.0":                 sample(events.FactEnvironmentStarted, ""),
		"dev.cdevents.environment.deleted.0.3.0":                 sample(events.FactEnvironmentRemoved, ""),
		"dev.cdeventsx.lockstep-rollout.environmentfailed.0.1.0": sample(events.FactEnvironmentFailed, ""),
		"dev.cdeventsx.lockstep-rollout.rolledback.0.1.0":        sample(events.FactRolledBack, events.ChangeRolledBack),
		"dev.cdeventsx.lockstep-rollout.partitionreached.0.1.0":  sample(events.FactPartitionReached, events.ChangeUpdated),
	} {
		require.Equal(t, want, cdevent.Type(f))
	}
}

func TestArtifactIsTheDeployedImage(t *testing.T) {
	t.Parallel()
	artifact := func(f events.DeployFact) string {
		e, err := cdevent.Of("local", f)
		require.NoError(t, err)
		cd := standard(t, e)
		content, ok := cd.(*v05.ServiceUpgradedEvent)
		require.True(t, ok)
		return content.Subject.Content.ArtifactId
	}
	f := sample(events.FactCompleted, events.ChangeUpdated)
	require.Equal(t, "pkg:oci/checkout@sha256%3Aabc?repository_url=registry.example.com%3A5000%2Fshop%2Fcheckout&tag=v2",
		artifact(f))
	f.Rollout.PreviousImages = []events.Image{{Container: "init", Image: "busybox:1"}}
	require.Equal(t, "pkg:oci/busybox", artifact(f), "the changed container")
	f.Rollout.PreviousImages = nil
	f.Rollout.Images = append([]events.Image{{Container: "checkout", Image: "x/y:1"}}, f.Rollout.Images...)
	require.Equal(t, "pkg:oci/y?repository_url=x%2Fy&tag=1", artifact(f), "the container with the name of the workload")
	f.Rollout.Images = nil
	require.Equal(t, "pkg:generic/checkout", artifact(f))
}

func TestInvalidFactsAreRefused(t *testing.T) {
	t.Parallel()
	_, err := cdevent.Of("local", events.DeployFact{Fact: events.FactStarted})
	require.ErrorContains(t, err, "name, cluster, and kind")
	e, err := cdevent.Of("local", sample(events.FactStarted, events.ChangeCreated))
	require.NoError(t, err)
	e.DataEncoded = []byte(`{"customData": {}}`)
	_, err = cdevent.Read(e)
	require.ErrorContains(t, err, "customData is not a deploy fact")
	e.DataEncoded = []byte(`[]`)
	_, err = cdevent.Read(e)
	require.ErrorContains(t, err, "decode the CDEvent")
	e.SetType("dev.lockstep.observed.tick.v1")
	_, err = cdevent.Read(e)
	require.ErrorContains(t, err, "not a type of deploy facts")
}

func FuzzEveryEncodedFactIsValid(f *testing.F) {
	f.Add("completed", "updated", "shop", "checkout", "registry.example.com/a/b:c", "https://x")
	f.Add("environment_started", "", "", "pr 1", "", ":")
	f.Fuzz(func(t *testing.T, fact, change, namespace, name, image, address string) {
		kind := sample(events.Fact(fact), events.Change(change))
		known := false
		for _, k := range facts() {
			known = known || k == kind.Fact
		}
		if !known {
			return
		}
		kind.Workload.Namespace, kind.Workload.Name = namespace, name
		if kind.Rollout != nil {
			kind.Rollout.Images = []events.Image{{Container: "c", Image: image}}
		}
		if kind.Environment != nil {
			kind.Environment.Url = address
		}
		e, err := cdevent.Of("local", kind)
		if err != nil {
			return
		}
		standard(t, e)
		_, err = cdevent.Read(e)
		require.NoError(t, err)
	})
}
