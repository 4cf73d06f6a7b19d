package execution_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/execution"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

// refused checks that no request with the token does anything or learns anything.
func (f *fixture) refused(ref gitlab.JobRef, why string) {
	f.t.Helper()
	before, trace := f.job(ref.ID), f.trace(ref.ID)
	_, err := f.first.Authorize(f.t.Context(), ref, jobtoken.ScopeTrace)
	require.True(f.t, fault.Is(err, errcode.PermissionDenied), "%s: %v", why, err)
	_, state, err := f.first.Update(f.t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.True(f.t, fault.Is(err, errcode.PermissionDenied), "%s: %v", why, err)
	require.Empty(f.t, state, why)
	_, state, err = f.first.AppendTrace(f.t.Context(), ref, 0, []byte("x"))
	require.True(f.t, fault.Is(err, errcode.PermissionDenied), "%s: %v", why, err)
	require.Empty(f.t, state, why)
	_, _, err = execution.Registry{Jobs: f.first.Jobs, Path: noPath}.Registry(f.t.Context(), ref.Token)
	require.True(f.t, fault.Is(err, errcode.Unauthenticated), "%s: %v", why, err)
	require.Equal(f.t, before, f.job(ref.ID), why)
	require.Equal(f.t, trace, f.trace(ref.ID), why)
}

func noPath(int64) (string, bool) { return "", false }

func TestTokenThatIsNotOfTheJobIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.running(7), f.running(8)
	before := f.job(7)
	for _, ref := range []gitlab.JobRef{{ID: 7, Token: two.Token}, {ID: 9, Token: one.Token}} {
		_, state, err := f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
		require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
		require.Empty(t, state)
	}
	_, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	claims := jobtoken.Claims{
		ID: "a", JobID: 7, ProjectID: 4, OrganizationID: 1, Attempt: 1, Cell: cell, Scopes: []jobtoken.Scope{
			jobtoken.ScopeUpdate, jobtoken.ScopeTrace,
		}, IssuedAt: begin, ExpiresAt: begin.Add(time.Hour),
	}
	id, own := f.first.keys.Current()
	forged, err := jobtoken.Sign(id, private, claims)
	require.NoError(t, err)
	unknown, err := jobtoken.Sign("unknown", private, claims)
	require.NoError(t, err)
	another, err := jobtoken.Sign(id, own, claims)
	require.NoError(t, err)
	claims.Cell = "other"
	foreign, err := jobtoken.Sign(id, own, claims)
	require.NoError(t, err)
	for why, token := range map[string]string{
		"malformed": "glcbt-x", "empty": "", "cut": one.Token[:len(one.Token)-1], "long": strings.Repeat("x", 10_000),
		"forged": forged, "of an unknown key": unknown, "of another cell": foreign,
		"signed, but not the one of the claim": another,
	} {
		f.refused(gitlab.JobRef{ID: 7, Token: token}, why)
	}
	require.Equal(t, before, f.job(7))
	require.Zero(t, f.count(`SELECT count(*) FROM claims WHERE confirmed_at IS NOT NULL`))
}

func TestTokenIsVoidFromTheReleaseOfItsClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.running(7)
	f.clock.pass(2 * time.Minute)
	require.NoError(t, f.maintenance().Once(t.Context()))
	require.Equal(t, job.Pending, f.job(7).State)
	f.refused(first, "released")
	second := f.take(7)
	f.refused(first, "taken again")
	_, err := f.first.Authorize(t.Context(), second, jobtoken.ScopeTrace)
	require.NoError(t, err)
	f.append(second, 0, "hello")
	f.refused(first, "confirmed by the other")
}

func TestExpiredTokenIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	f.append(ref, 0, "hello")
	f.clock.pass(time.Hour + 5*time.Minute - time.Second)
	_, err := f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
	f.clock.pass(time.Second)
	_, err = f.first.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.ErrorContains(t, err, "expired")
	_, _, err = f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.True(t, fault.Is(err, errcode.PermissionDenied), "%v", err)
	require.Equal(t, job.Running, f.job(7).State)
}

func TestTokenOfAKeyThatAReplicaDoesNotKnowYetIsAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	other := f.replica()
	require.Empty(t, other.keys.Keys())
	_, err := other.Authorize(t.Context(), ref, jobtoken.ScopeTrace)
	require.NoError(t, err)
}

func TestTokenWithoutAScopeIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	_, err := f.first.Authorize(t.Context(), ref, jobtoken.ScopeDownload)
	require.ErrorContains(t, err, "artifacts_download")
	require.True(t, fault.Is(err, errcode.PermissionDenied))
}

func TestRegistryKnowsRunningJobs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ref := f.running(7)
	registry := execution.Registry{Jobs: f.first.Jobs, Path: func(id int64) (string, bool) { return "group/app", id == 4 }}
	claims, rights, err := registry.Registry(t.Context(), ref.Token)
	require.NoError(t, err)
	require.EqualValues(t, 7, claims.JobID)
	require.True(t, claims.Permits(jobtoken.ScopeRegistryPush))
	require.Equal(t, "group/app", rights.Path)
	require.True(t, rights.Pull)
	require.True(t, rights.Push)
	registry.Path = noPath
	_, rights, err = registry.Registry(t.Context(), ref.Token)
	require.NoError(t, err)
	require.Empty(t, rights)
	_, _, err = f.first.Update(t.Context(), ref, wire.UpdateRequest{State: wire.UpdateSuccess})
	require.NoError(t, err)
	_, _, err = registry.Registry(t.Context(), ref.Token)
	require.True(t, fault.Is(err, errcode.Unauthenticated), "%v", err)
}
