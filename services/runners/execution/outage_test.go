package execution_test

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/wire"
)

// TestRequestsWithoutDatabaseAreUnavailable is about runners that must try again, and not give up their jobs.
func TestRequestsWithoutDatabaseAreUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7, 6)
	away, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	require.NoError(t, err)
	defer away.Close()
	jobs := f.serve(postgres.Executions{Pool: away}, f.first.keys)
	s := f.storage()
	s.rows.Pool = away
	artifacts := s.serve(f.first.Jobs)
	traces := postgres.Traces{Pool: away}
	for name, call := range map[string]func() error{
		"authorize": func() error { _, err := jobs.Authorize(t.Context(), ref, jobtoken.ScopeTrace); return err },
		"running": func() error {
			_, _, err := jobs.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateRunning})
			return err
		},
		"append": func() error { _, _, err := jobs.AppendTrace(t.Context(), ref, 0, []byte("x")); return err },
		"upload": func() error {
			_, err := artifacts.Store(t.Context(), ref, gitlab.Upload{Filename: "a", Type: "archive", Format: "zip"},
				bytes.NewReader(archive(t, "x")))
			return err
		},
		"download": func() error {
			_, err := artifacts.Open(t.Context(), gitlab.JobRef{ID: 6, Token: ref.Token}, true)
			return err
		},
		"read":  func() error { _, err := traces.ReadTrace(t.Context(), 7, 0, 10); return err },
		"watch": func() error { return traces.Watch(t.Context(), 7, begin) },
	} {
		err := call()
		require.True(t, fault.Is(err, errcode.Unavailable), "%s: %v", name, err)
	}
}
