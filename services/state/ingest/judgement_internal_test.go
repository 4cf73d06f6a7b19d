package ingest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/agent"
)

func TestFindingsAreDividedByWorkspace(t *testing.T) {
	t.Parallel()
	first, second, third := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}
	object := func(name string, workspaceID uuid.UUID) AbsentObject {
		return AbsentObject{Key: ObjectKey{Kind: KindPod, Name: name}, WorkspaceID: workspaceID}
	}
	foreign := []AbsentObject{object("a", uuid.Nil), object("b", uuid.Nil), object("c", uuid.Nil)}
	pod := []AbsentObject{object("d", second), object("e", second), object("f", second)}
	key := func(name string) []ObjectKey { return []ObjectKey{{Kind: KindDeployment, Name: name}} }
	for name, test := range map[string]struct {
		findings Findings
		chunks   []Findings
	}{
		"nothing": {},
		"objects without a workspace": {
			Findings{Absent: foreign}, []Findings{{Absent: foreign[:2]}, {Absent: foreign[2:]}},
		},
		"a workspace with more objects than a chunk": {
			Findings{Absent: pod}, []Findings{{Absent: pod}},
		},
		"absent objects of a workspace to repair": {
			Findings{Absent: pod[:1], Differing: []uuid.UUID{third, second, first}},
			[]Findings{{Absent: pod[:1], Differing: []uuid.UUID{first, second}}, {Differing: []uuid.UUID{third}}},
		},
		"a workspace that needs no repair": {
			Findings{Absent: pod[:1], Differing: []uuid.UUID{first}},
			[]Findings{{Absent: pod[:1], Differing: []uuid.UUID{first}}},
		},
		"all kinds of findings": {
			Findings{Absent: foreign[:1], Removable: key("g"), Differing: []uuid.UUID{first}, Unowned: key("h")},
			[]Findings{{Absent: foreign[:1], Differing: []uuid.UUID{first}}, {Removable: key("g"), Unowned: key("h")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.chunks, test.findings.chunks(2))
		})
	}
}

func TestJudgementHasALastStep(t *testing.T) {
	t.Parallel()
	empty := Judgement{}
	require.Len(t, empty.Steps(), 1, "the outcome is stored also without findings")
	large := Judgement{Findings: Findings{Removable: make([]ObjectKey, 2*findingsChunk+1)}}
	steps := large.Steps()
	require.Len(t, steps, 3)
	for n, step := range steps {
		require.Equal(t, n == 2, step.isLast)
	}
}

func TestListsCoverVersionsUpToTheirOwn(t *testing.T) {
	t.Parallel()
	r := EndedResync{Listed: agent.Versions{KindPod: "100"}}
	for version, covered := range map[string]bool{"99": true, "100": true, "101": false, "1000": false} {
		require.Equal(t, covered, r.covers(&Object{Kind: KindPod, ResourceVersion: version}), version)
	}
	require.False(t, r.covers(&Object{Kind: KindReplicaSet, ResourceVersion: "1"}), "the kind is not listed")
}
