package registration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/wire"
)

func TestVerifyRecordsTheContact(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.create(runner.InstanceType)
	verified, err := f.programs.Verify(t.Context(), issued.Token, "s_1")
	require.NoError(t, err)
	require.Equal(t, wire.Runner{ID: issued.Runner.ID, Token: issued.Token}, verified)
	managers, err := f.service.Managers(t.Context(), admin, issued.Runner.ID)
	require.NoError(t, err)
	require.Len(t, managers, 1)
	require.Equal(t, "s_1", managers[0].SystemID)
	require.Equal(t, runner.Online, managers[0].Status(now))
	contacts, err := f.service.LastContacts(t.Context(), issued.Runner.ID)
	require.NoError(t, err)
	require.Equal(t, map[int64]time.Time{issued.Runner.ID: now}, contacts)
	_, err = f.programs.Verify(t.Context(), "glrt-nonsense", "s_1")
	requireCode(t, errcode.PermissionDenied, err)

	requireCode(t, errcode.InvalidArgument, f.programs.DeleteManager(t.Context(), issued.Token, ""))
	require.NoError(t, f.programs.DeleteManager(t.Context(), issued.Token, "s_1"))
	requireCode(t, errcode.NotFound, f.programs.DeleteManager(t.Context(), issued.Token, "s_1"))
	contacts, err = f.service.LastContacts(t.Context(), issued.Runner.ID)
	require.NoError(t, err)
	require.Empty(t, contacts)
}

func TestRegistrationIsOffWithoutAToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	off := registration.NewPrograms(f.service, users{}, "")
	for _, token := range []string{"", registrationToken} {
		_, err := off.Register(t.Context(), wire.RegisterRequest{Token: token})
		require.ErrorIs(t, err, gitlab.ErrRegistrationOff)
	}
	_, err := f.programs.Register(t.Context(), wire.RegisterRequest{Token: "another"})
	requireCode(t, errcode.PermissionDenied, err)
	settings := wire.Settings{
		Description: "d", TagList: wire.Tags{"linux"}, AccessLevel: wire.RefProtected, MaximumTimeout: 60,
	}
	registered, err := f.programs.Register(t.Context(), wire.RegisterRequest{Token: registrationToken, Settings: settings})
	require.NoError(t, err)
	r := f.valid(registered.Token)
	require.Equal(t, registered.ID, r.ID)
	require.Equal(t, runner.InstanceType, r.Type)
	require.Equal(t, runner.Settings{
		Description: "d", Tags: []string{"linux"}, RunUntagged: true, Protected: true, MaximumTimeout: time.Minute,
	}, r.Settings)
	require.Zero(t, r.CreatedBy)
}

func TestUserCreatesARunnerWithAPersonalAccessToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *registration.Config) { c.TokenLifetime = time.Hour })
	project := int64(4)
	request := wire.CreateRunnerRequest{Type: wire.ProjectType, ProjectID: &project}
	created, err := f.programs.Create(t.Context(), "maintainer", request)
	require.NoError(t, err)
	require.Equal(t, now.Add(time.Hour), *created.TokenExpiresAt)
	r := f.valid(created.Token)
	require.Equal(t, []int64{4}, r.ProjectIDs)
	require.Equal(t, maintainer.UserID, r.CreatedBy)
	_, err = f.programs.Create(t.Context(), "maintainer", wire.CreateRunnerRequest{Type: wire.InstanceType})
	requireCode(t, errcode.PermissionDenied, err)
	_, err = f.programs.Create(t.Context(), "nobody", request)
	requireCode(t, errcode.Unauthenticated, err)
}

func TestRunnerResetsItsToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.create(runner.InstanceType)
	reset, err := f.programs.ResetToken(t.Context(), issued.Token)
	require.NoError(t, err)
	f.void(issued.Token)
	_, err = f.programs.ResetToken(t.Context(), issued.Token)
	requireCode(t, errcode.PermissionDenied, err)
	require.NoError(t, f.programs.Delete(t.Context(), reset.Token))
	f.void(reset.Token)
	requireCode(t, errcode.PermissionDenied, f.programs.Delete(t.Context(), reset.Token))
}

// TestOfTwoResetsOneSucceeds resets a token with several requests at once: the others had a token that is void.
func TestOfTwoResetsOneSucceeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.create(runner.InstanceType)
	var group sync.WaitGroup
	var mu sync.Mutex
	var tokens []string
	for range 4 {
		group.Go(func() {
			reset, err := f.programs.ResetToken(context.Background(), issued.Token)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				tokens = append(tokens, reset.Token)
			} else if !fault.Is(err, errcode.PermissionDenied) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Len(t, tokens, 1)
	f.valid(tokens[0])
}
