package registration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/routable"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/registration"
	"lockstep.internal/services/runners/runner"
)

func TestCreateNeedsTheRoleOfTheType(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	adminWithoutScope, readsOnly := admin, maintainer
	adminWithoutScope.Scope, readsOnly.Scope = access.ScopeWrite, access.ScopeRead
	instance := registration.NewRunner{Type: runner.InstanceType, Settings: open()}
	group := registration.NewRunner{Type: runner.GroupType, GroupID: 3, Settings: open()}
	project := registration.NewRunner{Type: runner.ProjectType, ProjectID: 4, Settings: open()}
	other := func(typ runner.Type, group, project int64) registration.NewRunner {
		return registration.NewRunner{Type: typ, GroupID: group, ProjectID: project, Settings: open()}
	}
	for name, c := range map[string]struct {
		caller  access.Caller
		request registration.NewRunner
		code    fault.Code
	}{
		"instance, administrator":           {admin, instance, ""},
		"instance, token without the scope": {adminWithoutScope, instance, errcode.PermissionDenied},
		"instance, owner":                   {owner, instance, errcode.PermissionDenied},
		"group, owner":                      {owner, group, ""},
		"group, administrator":              {adminWithoutScope, group, ""},
		"group, maintainer":                 {maintainer, group, errcode.PermissionDenied},
		"group, stranger":                   {stranger, group, errcode.NotFound},
		"project, maintainer":               {maintainer, project, ""},
		"project, owner":                    {owner, project, ""},
		"project, reader":                   {reader, project, errcode.PermissionDenied},
		"project, stranger":                 {stranger, project, errcode.NotFound},
		"project, token that reads only":    {readsOnly, project, errcode.PermissionDenied},
		"nobody":                            {access.Caller{Scope: access.ScopeAdmin}, project, errcode.Unauthenticated},
		"project that does not exist":       {admin, other(runner.ProjectType, 0, 99), errcode.NotFound},
		"unknown type":                      {admin, other("x", 0, 0), errcode.InvalidArgument},
		"group without its id":              {admin, other(runner.GroupType, 0, 0), errcode.InvalidArgument},
		"project without its id":            {admin, other(runner.ProjectType, 0, 0), errcode.InvalidArgument},
		"project with a group":              {admin, other(runner.ProjectType, 3, 4), errcode.InvalidArgument},
		"instance with a project":           {admin, other(runner.InstanceType, 0, 4), errcode.InvalidArgument},
		"no tags and no jobs without tags": {
			admin, registration.NewRunner{Type: runner.InstanceType}, errcode.InvalidArgument,
		},
	} {
		issued, err := f.service.Create(t.Context(), c.caller, c.request)
		require.Equal(t, c.code, fault.CodeOf(err), "%s: %v", name, err)
		if c.code != "" {
			continue
		}
		require.Equal(t, issued.Runner, *f.valid(issued.Token), name)
		require.Equal(t, c.caller.UserID, issued.Runner.CreatedBy)
	}
}

func TestTokenNamesWhatTheRunnerIsOf(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *registration.Config) { c.TokenLifetime = time.Hour })
	for typ, want := range map[runner.Type]routable.Payload{
		runner.InstanceType: {Cell: "local", Type: 1, User: 1},
		runner.GroupType:    {Cell: "local", Organization: 1, Group: 3, Type: 2, User: 1},
		runner.ProjectType:  {Cell: "local", Organization: 1, Project: 4, Type: 3, User: 1},
	} {
		issued := f.create(typ)
		parsed, err := routable.Parse(issued.Token)
		require.NoError(t, err)
		require.Equal(t, want, parsed.Payload)
		require.Equal(t, now.Add(time.Hour), issued.Runner.TokenExpiresAt)
	}
}

func TestWhoSeesAndManagesRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for typ, c := range map[runner.Type]struct{ manage, see []access.Caller }{
		runner.InstanceType: {[]access.Caller{admin}, []access.Caller{owner, maintainer, reader, stranger}},
		runner.GroupType:    {[]access.Caller{admin, owner}, []access.Caller{maintainer}},
		runner.ProjectType:  {[]access.Caller{admin, owner, maintainer}, []access.Caller{reader}},
	} {
		id := f.create(typ).Runner.ID
		pause := func(by access.Caller) error {
			_, err := f.service.SetPaused(t.Context(), by, id, true)
			return err
		}
		allowed := map[int64]fault.Code{}
		for _, by := range c.manage {
			allowed[by.UserID] = ""
		}
		for _, by := range c.see {
			allowed[by.UserID] = errcode.PermissionDenied
		}
		for _, by := range []access.Caller{admin, owner, maintainer, reader, stranger} {
			code, sees := allowed[by.UserID]
			if !sees {
				code = errcode.NotFound
			}
			requireCode(t, code, pause(by))
			_, err := f.service.Get(t.Context(), by, id)
			require.Equal(t, sees, err == nil, "%s, user %d: %v", typ, by.UserID, err)
			_, err = f.service.Managers(t.Context(), by, id)
			requireCode(t, code, err)
			page, _ := f.service.List(by, registration.Filter{Type: typ, Limit: 10})
			require.Len(t, page, map[bool]int{true: 1, false: 0}[sees])
		}
		for _, by := range c.see {
			requireCode(t, errcode.PermissionDenied, f.service.Delete(t.Context(), by, id))
		}
		require.NoError(t, f.service.Delete(t.Context(), c.manage[0], id))
	}
}

func TestListIsFilteredAndPaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []int64
	for _, typ := range []runner.Type{runner.InstanceType, runner.GroupType, runner.ProjectType, runner.InstanceType} {
		ids = append(ids, f.create(typ).Runner.ID)
	}
	_, err := f.service.Update(t.Context(), admin, ids[3], 0, func(s *runner.Settings) { s.Tags = []string{"gpu", "arm"} })
	require.NoError(t, err)
	for name, c := range map[string]struct {
		filter registration.Filter
		want   []int64
		more   bool
	}{
		"all":           {registration.Filter{Limit: 4}, ids, false},
		"first page":    {registration.Filter{Limit: 2}, ids[:2], true},
		"next page":     {registration.Filter{Limit: 2, AfterID: ids[1]}, ids[2:], false},
		"after the end": {registration.Filter{Limit: 2, AfterID: ids[3]}, nil, false},
		"type":          {registration.Filter{Limit: 9, Type: runner.InstanceType}, []int64{ids[0], ids[3]}, false},
		"group":         {registration.Filter{Limit: 9, GroupID: 3}, ids[1:2], false},
		"of a project":  {registration.Filter{Limit: 9, ProjectID: 4}, ids, false},
		"of another":    {registration.Filter{Limit: 9, ProjectID: 5}, []int64{ids[0], ids[3]}, false},
		"tags":          {registration.Filter{Limit: 9, Tags: []string{"arm"}}, ids[3:], false},
	} {
		page, more := f.service.List(admin, c.filter)
		var got []int64
		for _, r := range page {
			got = append(got, r.ID)
		}
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.more, more, name)
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.create(runner.ProjectType)
	id := issued.Runner.ID
	updated, err := f.service.Update(t.Context(), maintainer, id, issued.Runner.Revision, func(s *runner.Settings) {
		s.Tags, s.Protected = []string{"linux", "arm", "linux"}, true
	})
	require.NoError(t, err)
	require.Equal(t, []string{"arm", "linux"}, updated.Tags)
	require.Equal(t, updated, *f.valid(issued.Token))
	_, err = f.service.Update(t.Context(), maintainer, id, 1, func(*runner.Settings) {})
	requireCode(t, errcode.Conflict, err)
	_, err = f.service.Update(t.Context(), maintainer, id, 0, func(s *runner.Settings) { s.MaximumTimeout = -1 })
	requireCode(t, errcode.InvalidArgument, err)
	_, err = f.service.Update(t.Context(), admin, 999, 0, func(*runner.Settings) {})
	requireCode(t, errcode.NotFound, err)
	require.Equal(t, updated, *f.valid(issued.Token))
}

func TestConcurrentUpdatesAreNotLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.create(runner.InstanceType).Runner.ID
	var group sync.WaitGroup
	for i := range 4 { // at most maxAttempts - 1: each attempt that fails means that another one succeeded
		group.Go(func() {
			_, err := f.service.Update(context.Background(), admin, id, 0, func(s *runner.Settings) {
				s.Tags = append(s.Tags, fmt.Sprint("tag", i))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	r, err := f.service.Get(t.Context(), admin, id)
	require.NoError(t, err)
	require.Equal(t, []string{"tag0", "tag1", "tag2", "tag3"}, r.Tags)
}

func TestResetAndDeletionMakeTheTokenVoid(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := f.create(runner.ProjectType)
	_, err := f.service.ResetToken(t.Context(), reader, old.Runner.ID)
	requireCode(t, errcode.PermissionDenied, err)
	fresh, err := f.service.ResetToken(t.Context(), maintainer, old.Runner.ID)
	require.NoError(t, err)
	f.void(old.Token)
	require.Equal(t, old.Runner.ID, f.valid(fresh.Token).ID)
	require.NoError(t, f.service.Delete(t.Context(), maintainer, old.Runner.ID))
	f.void(fresh.Token)
	requireCode(t, errcode.NotFound, f.service.Delete(t.Context(), maintainer, old.Runner.ID))
}

func TestLinksStayInOneOrganization(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	issued := f.create(runner.ProjectType)
	id := issued.Runner.ID
	link := func(by access.Caller, project int64) error {
		_, err := f.service.Link(t.Context(), by, id, project)
		return err
	}
	requireCode(t, errcode.FailedPrecondition, link(maintainer, 8)) // of another organization
	requireCode(t, errcode.NotFound, link(owner, 5))                // who has no role there
	requireCode(t, errcode.PermissionDenied, link(reader, 5))       // who does not manage the runner
	requireCode(t, errcode.NotFound, link(admin, 99))
	require.NoError(t, link(maintainer, 5))
	require.Equal(t, []int64{4, 5}, f.valid(issued.Token).ProjectIDs)
	requireCode(t, errcode.AlreadyExists, link(maintainer, 5))

	unlink := func(project int64) error {
		_, err := f.service.Unlink(t.Context(), maintainer, id, project)
		return err
	}
	requireCode(t, errcode.FailedPrecondition, unlink(4))
	require.NoError(t, unlink(5))
	requireCode(t, errcode.NotFound, unlink(5))
	_, err := f.service.Update(t.Context(), maintainer, id, 0, func(s *runner.Settings) { s.Locked = true })
	require.NoError(t, err)
	requireCode(t, errcode.FailedPrecondition, link(maintainer, 5))
	require.Equal(t, []int64{4}, f.valid(issued.Token).ProjectIDs)

	id = f.create(runner.InstanceType).Runner.ID
	requireCode(t, errcode.FailedPrecondition, link(admin, 5))
}
