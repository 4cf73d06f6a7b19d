package move_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/rpc"
)

// arriving is what another cell sends.
func (f *fixture) arriving(id string, organizationID, number int64) move.Move {
	return move.Move{ID: id, OrganizationID: organizationID, URL: f.two.url, Number: number}
}

func TestOnlyAdministratorsReceiveOrganizations(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for token, code := range map[string]fault.Code{
		"": errcode.Unauthenticated, "x": errcode.Unauthenticated, "user": errcode.PermissionDenied,
		"reader": errcode.PermissionDenied,
	} {
		target := rpc.NewTarget(http.DefaultClient, f.two.url, token, "one")
		m := f.arriving("m", organization, 1)
		_, err := target.Describe(t.Context())
		requireCode(t, code, err)
		requireCode(t, code, target.Begin(t.Context(), m, func(move.Arrival) error { return nil }))
		requireCode(t, code, target.Open(t.Context(), m))
		requireCode(t, code, target.Pipeline(t.Context(), m, 1, func(func(move.Piece) error) error { return nil }))
		requireCode(t, code, target.End(t.Context(), m, statev1.MoveOutcome_MOVE_OUTCOME_CANCELED, nil))
	}
	require.Zero(t, f.two.count(`SELECT count(*) FROM moves`))
}

func row(table string, columns map[string]any) *runnersv1.MovedRow {
	content, err := json.Marshal(columns)
	if err != nil {
		panic(err)
	}
	return &runnersv1.MovedRow{Table: table, Content: content}
}

// aRunner is a valid row of a runner, with changes.
func aRunner(change map[string]any) *runnersv1.MovedRow {
	columns := map[string]any{
		"id": 10, "type": "group_type", "organization_id": organization, "group_id": 2, "project_ids": []int64{},
		"description": "", "maintenance_note": "", "tags": []string{}, "run_untagged": true, "locked": false,
		"protected": false, "paused": false, "maximum_timeout_s": 0, "user_ids": []int64{}, "group_ids": []int64{},
		"token_hash": fmt.Sprintf(`\x%064d`, 1), "created_by": 5, "created_at": start, "revision": 1,
	}
	maps.Copy(columns, change)
	return row("runners", columns)
}

// TestForgedRunnersChangeNothing sends rows that a correct cell does not send.
func TestForgedRunnersChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	target := rpc.NewTarget(http.DefaultClient, f.two.url, "target", "one")
	m := f.arriving("m", organization, 1)
	for name, forged := range map[string]*runnersv1.MovedRow{
		"of another organization": aRunner(map[string]any{"organization_id": 2}),
		"of the instance":         aRunner(map[string]any{"type": "instance_type", "organization_id": 0}),
		"instance with an owner":  aRunner(map[string]any{"type": "instance_type"}),
		"an id of this cell":      aRunner(map[string]any{"id": int64(1)<<40 + 1000}),
		"no type":                 aRunner(map[string]any{"type": nil}),
		"not a number":            aRunner(map[string]any{"id": "x"}),
		"no JSON":                 {Table: "runners", Content: []byte("{")},
		"another table":           row("signing_keys", map[string]any{"id": "k"}),
		"a pipeline":              row("pipelines", map[string]any{"id": 3}),
		"a manager of nobody":     row("runner_managers", map[string]any{"id": 4, "runner_id": 99, "system_id": "s"}),
	} {
		err := target.Begin(t.Context(), m, func(to move.Arrival) error { return to.Row(forged) })
		require.Contains(t, []fault.Code{errcode.InvalidArgument, errcode.FailedPrecondition}, fault.CodeOf(err),
			"%s: %v", name, err)
		require.Zero(t, f.two.count(`SELECT count(*) FROM runners`), name)
	}
	// A stream that is cut stores nothing, either.
	err := target.Begin(t.Context(), m, func(to move.Arrival) error {
		require.NoError(t, to.Row(aRunner(nil)))
		return fault.New(errcode.Unavailable, "killed")
	})
	require.ErrorContains(t, err, "killed")
	require.Zero(t, f.two.count(`SELECT count(*) FROM runners`))
	require.NoError(t, target.Begin(t.Context(), m, func(to move.Arrival) error { return to.Row(aRunner(nil)) }))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`))

	// Another move, a cell itself and an older number are refused.
	for _, other := range []move.Move{
		f.arriving("other", organization, 2), f.arriving("", organization, 2), f.arriving("o", 0, 1), f.arriving("o", 8, 0),
	} {
		err := target.Begin(t.Context(), other, func(move.Arrival) error { return nil })
		require.Contains(t, []fault.Code{errcode.InvalidArgument, errcode.FailedPrecondition}, fault.CodeOf(err), "%v", err)
	}
	itself := rpc.NewTarget(http.DefaultClient, f.two.url, "target", "two")
	requireCode(t, errcode.InvalidArgument,
		itself.Begin(t.Context(), f.arriving("o", 8, 1), func(move.Arrival) error { return nil }))
}

// TestCancellationRemovesNothingThatDidNotArrive cancels moves that this cell does not know, or has opened.
func TestCancellationRemovesNothingThatDidNotArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.two.newRunner()
	target := rpc.NewTarget(http.DefaultClient, f.two.url, "target", "one")
	const canceled = statev1.MoveOutcome_MOVE_OUTCOME_CANCELED
	unknown := f.arriving("unknown", organization, 1)
	require.NoError(t, target.End(t.Context(), unknown, canceled, nil))
	require.NoError(t, target.End(t.Context(), unknown, canceled, nil))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`), "the organization was here before")
	requireCode(t, errcode.FailedPrecondition,
		target.Begin(t.Context(), unknown, func(move.Arrival) error { return nil }))
	requireCode(t, errcode.FailedPrecondition, target.Begin(t.Context(), f.arriving("here", organization, 1),
		func(move.Arrival) error { return nil }))
	require.NoError(t, target.End(t.Context(), f.arriving("here", organization, 1), canceled, nil))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`), "the organization was here before")
	opened := f.arriving("opened", 2, 1)
	require.NoError(t, target.Begin(t.Context(), opened, func(move.Arrival) error { return nil }))
	require.NoError(t, target.Open(t.Context(), opened))
	requireCode(t, errcode.FailedPrecondition, target.End(t.Context(), opened, canceled, nil))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM runners`))
}
