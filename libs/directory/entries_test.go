package directory_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

const cell = topology.Cell("local")

// entry is one message of the stream.
type entry struct {
	kind, key string
	data      any
}

func (e entry) subject() string { return cell.Directory(e.kind, e.key) }

func (e entry) payload(t testing.TB) []byte {
	t.Helper()
	raw, err := json.Marshal(e.data)
	require.NoError(t, err)
	return raw
}

func user(id int, state events.UserState) entry {
	return entry{"user", fmt.Sprint(id), events.DirectoryUser{UserID: id, State: state}}
}

func member(user int, kind directory.Kind, id int, role directory.Role) entry {
	return entry{
		"membership", fmt.Sprintf("%d-%s-%d", user, kind, id),
		events.DirectoryMembership{UserID: user, Scope: kind, ScopeID: id, Role: role},
	}
}

// tree is organization 1 with group 2, which contains group 3, which contains project 4 with agent 7. Project 5 is
// in group 6, a sibling of 2.
func tree() []entry {
	return []entry{
		{"organization", "1", events.DirectoryOrganization{OrganizationID: 1}},
		{"group", "2", events.DirectoryGroup{GroupID: 2, OrganizationID: 1}},
		{"group", "3", events.DirectoryGroup{GroupID: 3, OrganizationID: 1, ParentGroupID: 2}},
		{"project", "4", events.DirectoryProject{ProjectID: 4, GroupID: 3, OrganizationID: 1}},
		{"agent", "7", events.DirectoryAgent{AgentID: 7, ProjectID: 4}},
		{"group", "6", events.DirectoryGroup{GroupID: 6, OrganizationID: 1}},
		{"project", "5", events.DirectoryProject{ProjectID: 5, GroupID: 6, OrganizationID: 1}},
		user(10, events.UserStateActive),
	}
}

func fold(t *testing.T, entries ...entry) *directory.Fold {
	t.Helper()
	f := directory.NewFold()
	for i, e := range entries {
		news, err := f.Take(cell, e.subject(), int64(i+1), e.payload(t))
		require.NoError(t, err, e.subject())
		require.True(t, news)
	}
	return f
}

func TestRolesAreInherited(t *testing.T) {
	t.Parallel()
	four, five := directory.Scope{Kind: directory.Project, ID: 4}, directory.Scope{Kind: directory.Project, ID: 5}
	for name, c := range map[string]struct {
		more []entry
		at   directory.Scope
		want directory.Role
	}{
		"none":                  {nil, four, directory.RoleNone},
		"its own":               {[]entry{member(10, directory.Project, 4, "developer")}, four, "developer"},
		"from the group":        {[]entry{member(10, directory.Group, 3, "reader")}, four, "reader"},
		"from the group above":  {[]entry{member(10, directory.Group, 2, "maintainer")}, four, "maintainer"},
		"from the organization": {[]entry{member(10, directory.Organization, 1, "owner")}, four, "owner"},
		"the highest": {
			[]entry{member(10, directory.Organization, 1, "reader"), member(10, directory.Project, 4, "owner")}, four, "owner",
		},
		"the highest, from above": {
			[]entry{member(10, directory.Organization, 1, "owner"), member(10, directory.Project, 4, "reader")}, four, "owner",
		},
		"not upward": {
			[]entry{member(10, directory.Project, 4, "owner")},
			directory.Scope{Kind: directory.Group, ID: 3},
			directory.RoleNone,
		},
		"not sideways":             {[]entry{member(10, directory.Group, 2, "owner")}, five, directory.RoleNone},
		"somebody else's":          {[]entry{member(11, directory.Project, 4, "owner")}, four, directory.RoleNone},
		"a role of later versions": {[]entry{member(10, directory.Project, 4, "emperor")}, four, directory.RoleNone},
		"of a group": {
			[]entry{member(10, directory.Group, 2, "developer")}, directory.Scope{Kind: directory.Group, ID: 3}, "developer",
		},
		"of an organization": {
			[]entry{member(10, directory.Organization, 1, "developer")},
			directory.Scope{Kind: directory.Organization, ID: 1},
			"developer",
		},
		"nowhere": {
			[]entry{member(10, directory.Project, 99, "owner")},
			directory.Scope{Kind: directory.Project, ID: 99},
			directory.RoleNone,
		},
		"of nothing": {[]entry{member(10, directory.Organization, 1, "owner")}, directory.Scope{}, directory.RoleNone},
		"blocked": {
			[]entry{member(10, directory.Project, 4, "owner"), user(10, events.UserStateBlocked)}, four, directory.RoleNone,
		},
		"a strange state": {[]entry{member(10, directory.Project, 4, "owner"), user(10, "asleep")}, four, directory.RoleNone},
		"taken away": {[]entry{member(10, directory.Project, 4, "owner"), {
			"membership", "10-project-4", events.DirectoryMembership{
				UserID:  10,
				Scope:   directory.Project,
				ScopeID: 4,
				Role:    "owner",
				Deleted: true,
			},
		}}, four, directory.RoleNone},
		"a user deleted": {[]entry{
			member(10, directory.Project, 4, "owner"), {
				"user", "10", events.DirectoryUser{UserID: 10, State: events.UserStateActive, Deleted: true},
			},
		}, four, directory.RoleNone},
		"a group deleted above": {[]entry{
			member(10, directory.Project, 4, "owner"), {
				"group", "2", events.DirectoryGroup{GroupID: 2, OrganizationID: 1, Deleted: true},
			},
		}, four, directory.RoleNone},
		"groups in a circle": {[]entry{
			member(10, directory.Project, 4, "owner"), {
				"group", "2", events.DirectoryGroup{GroupID: 2, OrganizationID: 1, ParentGroupID: 3},
			},
		}, four, directory.RoleNone},
	} {
		f := fold(t, append(tree(), c.more...)...)
		require.Equal(t, c.want, f.Role(10, c.at), name)
		if c.at == four {
			require.Equal(t, c.want, f.AgentRole(10, 7), name)
		}
	}
	require.Equal(
		t, directory.RoleNone,
		fold(t, append(tree(), member(10, directory.Organization, 1, "owner"))...).AgentRole(10, 8),
		"an agent that is not there",
	)
}

func TestRolesIncludeLowerRoles(t *testing.T) {
	t.Parallel()
	ranks := []directory.Role{"reader", "developer", "maintainer", "owner"}
	for i, has := range ranks {
		for j, least := range ranks {
			require.Equal(t, i >= j, directory.Includes(has, least), "%s %s", has, least)
		}
	}
	for _, none := range []directory.Role{directory.RoleNone, "emperor"} {
		require.False(t, directory.Includes(none, "reader"))
		require.False(t, directory.Includes("owner", none))
		require.False(t, directory.Includes(none, none), "nothing is allowed that is not named")
	}
}

func TestHigherRevisionWinsInAnyOrder(t *testing.T) {
	t.Parallel()
	f := fold(t, append(tree(), member(10, directory.Project, 4, "owner"))...)
	blocked := user(10, events.UserStateBlocked)
	news, err := f.Take(cell, blocked.subject(), 100, blocked.payload(t))
	require.NoError(t, err)
	require.True(t, news)
	for _, old := range []int64{0, 1, 99, 100} {
		active := user(10, events.UserStateActive)
		news, err = f.Take(cell, active.subject(), old, active.payload(t))
		require.NoError(t, err)
		require.False(t, news, "revision %d", old)
		require.Equal(t, directory.RoleNone, f.AgentRole(10, 7), "an older copy of the stream lets nobody in")
	}
	active := user(10, events.UserStateActive)
	_, err = f.Take(cell, active.subject(), 101, active.payload(t))
	require.NoError(t, err)
	require.Equal(t, directory.RoleOwner, f.AgentRole(10, 7))
}

func TestMalformedEventsChangeNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		subject, data string
		unknown       bool
	}{
		"no JSON":           {"lockstep.local.directory.user.10", `{`, false},
		"another's subject": {"lockstep.local.directory.user.10", `{"user_id":11,"state":"active"}`, false},
		"another cell":      {"lockstep.other.directory.user.10", `{"user_id":10,"state":"blocked"}`, false},
		"another family":    {"lockstep.local.desired.user.10", `{"user_id":10,"state":"blocked"}`, true},
		"another scope": {
			"lockstep.local.directory.membership.10-project-4",
			`{"user_id":10,"scope":"group","scope_id":2,"role":"owner"}`,
			false,
		},
		"a short key": {
			"lockstep.local.directory.key.k", `{"key_id":"k","algorithm":"EdDSA","public_key":"AAAA"}`, false,
		},
		"a key of another way": {
			"lockstep.local.directory.key.k",
			`{"key_id":"k","algorithm":"none","public_key":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`,
			true,
		},
		"a kind of the future": {"lockstep.local.directory.robot.1", `{}`, true},
		"no subject of ours":   {"other", `{}`, false},
	} {
		f := fold(t, append(tree(), member(10, directory.Project, 4, "reader"))...)
		news, err := f.Take(cell, c.subject, 1000, []byte(c.data))
		require.Error(t, err, name)
		require.Equal(t, c.unknown, directory.Unknown(err), "%s: %v", name, err)
		require.False(t, news)
		require.Equal(t, directory.RoleReader, f.AgentRole(10, 7), name)
	}
}

func TestAgentHasTheHashOfItsToken(t *testing.T) {
	t.Parallel()
	hash, err := natsauth.HashToken(natsauth.TokenAgent, natsauth.NewToken(natsauth.TokenAgent))
	require.NoError(t, err)
	encoded := hex.EncodeToString(hash[:])
	for name, c := range map[string]struct {
		hash string
		want natsauth.TokenHash
	}{
		"valid":                 {encoded, hash},
		"by an earlier version": {"", natsauth.TokenHash{}},
		"too short":             {encoded[2:], natsauth.TokenHash{}},
		"too long":              {encoded + "00", natsauth.TokenHash{}},
		"not hexadecimal":       {"x" + encoded[1:], natsauth.TokenHash{}},
	} {
		f := fold(t, entry{"agent", "7", events.DirectoryAgent{AgentID: 7, ProjectID: 4, TokenHash: c.hash, Revoked: true}})
		agent, known := f.Agent(7)
		require.True(t, known, name)
		require.Equal(
			t, directory.Agent{ID: 7, ProjectID: 4, Revoked: true, TokenHash: c.want}, agent, "%s: the other fields are valid",
			name,
		)
	}
}

func TestAgentIsNamedInMessages(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"east": `agent "east" (7)`, "": "agent 7"} {
		agent, known := fold(t, entry{"agent", "7", events.DirectoryAgent{AgentID: 7, ProjectID: 4, Name: name}}).Agent(7)
		require.True(t, known)
		require.Equal(t, want, agent.String())
	}
}

func TestAgentAcceptsThePreviousTokenUntilItsEnd(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	current, previous := natsauth.TokenHash{1}, natsauth.TokenHash{2}
	f := fold(t, entry{"agent", "7", events.DirectoryAgent{
		AgentID: 7, ProjectID: 4, TokenHash: hex.EncodeToString(current[:]),
		PreviousTokenHash: hex.EncodeToString(previous[:]), PreviousTokenValidUntil: &end,
	}})
	agent, known := f.Agent(7)
	require.True(t, known)
	require.True(t, agent.Accepts(current, end))
	require.True(t, agent.Accepts(previous, end.Add(-1)))
	require.False(t, agent.Accepts(previous, end))
	require.False(t, agent.Accepts(natsauth.TokenHash{3}, end.Add(-1)))
	require.False(t, agent.Accepts(natsauth.TokenHash{}, end.Add(-1)))
	require.False(t, directory.Agent{PreviousTokenValidUntil: end}.Accepts(natsauth.TokenHash{}, end.Add(-1)))
}

func FuzzTake(f *testing.F) {
	for _, e := range tree() {
		f.Add(e.subject(), e.payload(f))
	}
	f.Add(
		"lockstep.local.directory.membership.10-project-4",
		[]byte(`{"user_id":10,"scope":"project","scope_id":4,"role":"owner"}`),
	)
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		known := directory.NewFold()
		for i, e := range tree() {
			_, err := known.Take(cell, e.subject(), int64(i+1), e.payload(t))
			require.NoError(t, err)
		}
		_, err := known.Take(cell, subject, 1000, data)
		// Whatever one message says, it gives a role only to the user whom its subject names.
		if role := known.AgentRole(10, 7); role != directory.RoleNone {
			require.NoError(t, err)
			require.Contains(t, subject, "directory.membership.10-")
		}
	})
}
